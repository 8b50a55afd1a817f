"""Processes of the sandbox: accounts, spawning, reaping, limits, terminals, and the ``process.*`` calls."""
