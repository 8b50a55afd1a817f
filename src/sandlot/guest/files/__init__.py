"""Files for the host: calls, paths as a user sees them, and bodies on their way."""
