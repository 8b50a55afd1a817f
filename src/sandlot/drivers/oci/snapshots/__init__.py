"""Snapshots of live sandboxes, from which any number of sandboxes can be started.

``take`` writes a snapshot step by step. ``image_files`` and ``manifest`` are its folder on disk. ``control_socket`` and ``command_line`` are the two
ways to send commands to a running runsc.
"""
