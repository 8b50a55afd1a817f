"""Package registries (PyPI, npm, Debian): for each, a module that responds to requests, and modules for its index format."""
