"""The bash kernel: ``kernel.py`` drives a bash that reads ``init.bash``."""
