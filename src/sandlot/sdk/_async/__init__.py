"""The asynchronous client. ``scripts/unasync.py`` generates :mod:`sandlot.sdk._sync` from it."""
