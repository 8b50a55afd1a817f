"""Kernels for the host: the processes that run cells, and the cells."""
