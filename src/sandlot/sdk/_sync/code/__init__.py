# Made from src/sandlot/sdk/_async/code/__init__.py by scripts/unasync.py; change that file, not this one.
"""Code in the contexts of a sandbox."""
