"""Recipes, configuration, the training loop and run folders."""
