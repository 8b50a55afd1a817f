"""Programs that the guest ships as plain sources: ``kernel.py`` (image's python) and ``sudo.py`` (own interpreter)."""
