"""Connections of sandboxes to destinations outside: their first bytes, and the refusals that programs read."""
