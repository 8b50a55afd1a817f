"""The ``container`` driver: crun, on the host's own kernel."""
