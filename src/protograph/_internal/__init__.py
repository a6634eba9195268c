"""Support code for the package itself, not part of the public interface."""
