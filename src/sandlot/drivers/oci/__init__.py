"""Drivers that start sandboxes with an OCI runtime: runsc (``gvisor``) and crun (``container``)."""
