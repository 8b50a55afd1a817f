"""Copies of files between this machine and a sandbox."""
