"""``container``: crun, on the host's own kernel, behind namespaces and a filter of system calls."""
