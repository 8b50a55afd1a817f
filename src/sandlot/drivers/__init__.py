"""Isolation drivers: create, limit and end sandboxes on this host."""
