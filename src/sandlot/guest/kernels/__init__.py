"""Code contexts: their kernels, which are the processes that run cells, and the cells."""
