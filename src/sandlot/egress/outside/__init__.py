"""Requests to addresses that tenants chose: which ones they may be, and how they are made."""
