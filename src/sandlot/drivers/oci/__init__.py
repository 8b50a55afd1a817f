"""Sandboxes by an OCI runtime: runsc today, with everything that is not runsc's kept apart for a second one."""
