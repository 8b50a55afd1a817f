"""The ``container`` driver: runs sandboxes with crun, on the host's own kernel."""
