"""Sandboxes from outside: made, found, changed, kept, claimed, ended."""
