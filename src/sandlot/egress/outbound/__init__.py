"""Requests to URLs that tenants chose: the address policy and the HTTP client that enforces it."""
