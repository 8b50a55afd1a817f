"""The Python kernel: ``kernel.py`` starts it, ``sandlot_kernel`` is the kernel."""
