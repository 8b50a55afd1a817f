"""The package cache: package indexes and files for sandboxes, which have no network. ``cache.py`` is the entry point."""
