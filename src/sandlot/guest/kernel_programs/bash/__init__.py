"""The bash kernel: ``kernel.py`` controls a bash process that executes ``init.bash``."""
