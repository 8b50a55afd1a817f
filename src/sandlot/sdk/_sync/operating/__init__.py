# Made from src/sandlot/sdk/_async/operating/__init__.py by scripts/unasync.py; change that file, not this one.
"""What operators ask of a service."""
