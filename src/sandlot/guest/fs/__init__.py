"""Files of the sandbox: the handlers of the ``file.*`` calls, and functions that open paths with the permissions of a user."""
