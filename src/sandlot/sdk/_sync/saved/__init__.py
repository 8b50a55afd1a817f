# Made from src/sandlot/sdk/_async/saved/__init__.py by scripts/unasync.py; change that file, not this one.
"""Sandboxes that rest, are kept and come of one another."""
