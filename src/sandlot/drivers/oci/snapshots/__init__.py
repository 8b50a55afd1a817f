"""Snapshots of live sandboxes, from which any number of sandboxes can be started.

``take`` has the steps of writing a snapshot. ``image_files`` has the operations on the folder of a snapshot, and ``manifest`` the description of the
snapshot in this folder. ``control_socket`` and ``command_line`` are the two ways to send commands to a running runsc.
"""
