"""Programs beside the guest itself, each started by its own interpreter or the image's.

``kernel.py`` (image's python) and ``sudo.py`` (own interpreter) are shipped as plain sources. The others are modules of the guest's
zip, started by the host as ordinary processes on the guest's own interpreter, as the user that was asked for: what walks a tree, packs
or watches one would block the guest's loop.
"""
