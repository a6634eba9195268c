"""Pages and figures about runs and results."""
