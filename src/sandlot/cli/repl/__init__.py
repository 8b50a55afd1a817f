"""Code in contexts from the terminal: a session that is typed, what cells show, the contexts themselves."""
