"""The Python kernel: the guest starts ``kernel.py``, and the package ``sandlot_kernel`` contains the implementation."""
