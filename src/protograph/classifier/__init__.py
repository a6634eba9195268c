"""The classifier that users keep."""
