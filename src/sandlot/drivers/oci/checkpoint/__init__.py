"""Snapshots: a sandbox that runs is written down, and what was written down runs again, as often as one likes.

``images`` and ``manifest`` are the folder on the disk, ``control`` and ``cli`` the two ways to talk to a runtime that runs, ``taking``
the order in which a snapshot is made.
"""
