"""Helpers: programs for work that would block the guest's loop. Each request of the host starts a helper as a new process.

The host starts helpers on the guest's own interpreter, as the user of the request. ``protocol/helpers.py`` lists the helpers. They are
modules of the guest's zip file, except ``sudo``, which the image's ``/usr/bin/sudo`` starts by its path.
"""
