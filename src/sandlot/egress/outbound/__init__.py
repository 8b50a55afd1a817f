"""Connections and requests to hosts that sandboxes and tenants chose: name lookups, address checks, and the HTTP client of webhooks."""
