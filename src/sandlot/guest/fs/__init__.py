"""Files of the sandbox: the ``file.*`` calls, and paths opened as a user."""
