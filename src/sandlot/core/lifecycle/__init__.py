"""Lifecycle of a sandbox: start, suspend, update, recover and end it."""
