"""A classifier as a web application: `protograph serve`."""
