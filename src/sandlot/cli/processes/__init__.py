"""Processes of a sandbox from the terminal: a shell, a list, their output, their end."""
