"""Copying between this machine and a sandbox: what is copied to where, and how it travels."""
