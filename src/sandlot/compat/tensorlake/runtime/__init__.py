"""The inside of one sandbox: its processes, files and terminals."""
