"""Support code for the package itself: no part of the public interface."""
