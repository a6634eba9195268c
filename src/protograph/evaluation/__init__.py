"""Measures, the balance of seen and novel classes, the answer "unknown", and what a model confuses."""
