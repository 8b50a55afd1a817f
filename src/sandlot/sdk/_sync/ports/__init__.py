# Made from src/sandlot/sdk/_async/ports/__init__.py by scripts/unasync.py; change that file, not this one.
"""Ports of programs inside, reached from here."""
