"""The machine's configuration of pip, npm and apt: the upstream package indexes and the access to them."""
