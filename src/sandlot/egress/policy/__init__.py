"""Decisions about destinations: which of them a sandbox or a tenant may reach. Pure."""
