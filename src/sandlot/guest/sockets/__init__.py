"""TCP on the sandbox's own loopback that is carried over the link: the package index to programs inside, programs' ports to the host."""
