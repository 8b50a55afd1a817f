"""Code contexts, their kernels (the processes that run code), and their cells (the executions of code)."""
