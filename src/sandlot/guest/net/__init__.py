"""TCP on the sandbox's loopback, carried over the link: the package index for programs inside, ports of programs for the host."""
