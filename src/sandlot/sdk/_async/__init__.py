"""The client, written once: asynchronous. :mod:`sandlot.sdk._sync` is made from it by ``scripts/unasync.py``."""
