"""The R kernel: ``kernel.py`` is the program that the guest starts. It executes R, which runs ``kernel.R``."""
