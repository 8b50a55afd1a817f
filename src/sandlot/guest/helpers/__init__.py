"""Helpers: programs for work that would block the guest's loop. Each request starts one as a process.

The host starts them on the guest's own interpreter, as the user of the request; ``protocol/helpers.py`` lists them. They are modules of the
guest's zip, except ``sudo``, which ``/usr/bin/sudo`` of the image starts by its path.
"""
