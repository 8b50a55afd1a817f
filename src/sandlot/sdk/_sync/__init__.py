"""The synchronous client, which ``scripts/unasync.py`` generates from :mod:`sandlot.sdk._async`, except for its hand-written modules."""
