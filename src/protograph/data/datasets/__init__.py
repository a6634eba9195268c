"""One file per dataset or kind of dataset."""
