"""The synchronous client. Everything here but ``backend.py`` is made from :mod:`sandlot.sdk._async` by ``scripts/unasync.py``."""
