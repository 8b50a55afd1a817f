"""TCP on the sandbox's loopback over the link: the package index for programs inside, and tunnels from the host to their ports."""
