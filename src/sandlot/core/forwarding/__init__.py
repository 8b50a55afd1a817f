"""Connections to ports inside sandboxes."""
