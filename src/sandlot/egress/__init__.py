"""Requests that leave the host on behalf of sandboxes and tenants.

``packages`` is the package cache, through which sandboxes without a network install packages. ``policy`` decides which destinations may be reached.
``outbound`` resolves names, connects, and sends requests to URLs that tenants chose, such as webhooks. ``gateway`` compares the first bytes of a
connection with its destination.
"""
