"""The ``gvisor`` driver: runs sandboxes with runsc, a kernel in user space between the tenant's code and the host."""
