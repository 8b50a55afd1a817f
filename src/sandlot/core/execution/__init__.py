"""Code, commands and terminals in running sandboxes."""
