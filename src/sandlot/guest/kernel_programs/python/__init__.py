"""The Python kernel: ``kernel.py`` is the program that starts it, ``sandlot_kernel`` its implementation."""
