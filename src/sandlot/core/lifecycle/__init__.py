"""Lifecycle of one sandbox: start, suspend, update, recover, end."""
