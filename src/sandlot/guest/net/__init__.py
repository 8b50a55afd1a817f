"""TCP over the link: the package index, tunnels to ports of programs in the sandbox, and connections of programs to other hosts."""
