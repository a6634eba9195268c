"""Measures, calibration, and what a model confuses."""
