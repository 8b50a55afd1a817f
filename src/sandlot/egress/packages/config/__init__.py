"""The machine's configuration of pip, npm and apt: the upstream package indexes, with their certificates, proxies and credentials."""
