"""The ``gvisor`` driver: runsc, a kernel in user space between the code and the host."""
