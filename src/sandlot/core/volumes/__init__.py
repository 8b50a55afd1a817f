"""Volumes: filesystems that outlive sandboxes."""
