"""Helpers: programs for work that would block the guest's loop. Each request of the host starts a helper as a new process.

The host starts helpers on the guest's own interpreter, as the user of the request. ``protocol/helpers.py`` lists the helpers. The helpers
are modules of the guest's zip file. Only ``sudo`` is a separate file, which the image's ``/usr/bin/sudo`` starts.
"""
