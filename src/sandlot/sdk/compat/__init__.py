"""Clients with the names and calls of a vendor's documentation, for vendors that publish no client."""
