"""Where packages come from: the machine's own configuration of pip, npm and apt, read as these read it."""
