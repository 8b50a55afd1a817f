"""Helpers: programs of the guest that run beside it, as processes, because their work would block the guest's loop.

The host starts them on the guest's own interpreter, as the user of the request. They are modules of the guest's zip, except ``sudo``, which
``/usr/bin/sudo`` of the image starts by its path.
"""
