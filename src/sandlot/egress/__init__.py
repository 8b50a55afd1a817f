"""Requests that leave the host on behalf of sandboxes and tenants.

``packages`` is the package cache, through which sandboxes without a network install packages. ``outbound`` sends requests to URLs that tenants chose,
such as webhooks. ``policy`` decides which destinations may be
reached, and ``gateway`` compares the first bytes of a connection with its destination.
"""
