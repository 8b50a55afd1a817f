"""TCP over the link: the package index on the sandbox's loopback, and tunnels from the host to ports of programs in the sandbox."""
