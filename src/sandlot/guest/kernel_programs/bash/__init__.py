"""The bash kernel: ``kernel.py`` is the program that the guest starts. It controls a bash process, which executes ``init.bash``."""
