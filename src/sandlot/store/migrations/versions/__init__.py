"""The steps, one module for each, in order."""
