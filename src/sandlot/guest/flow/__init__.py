"""Bytes and time in the guest: the event loop, the link's descriptors, children's pipes, and output kept by offset."""
