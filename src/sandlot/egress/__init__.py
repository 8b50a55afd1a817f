"""Requests that leave the host on behalf of sandboxes and tenants.

``packages`` is the package cache: sandboxes have no network and install packages through it. ``outbound`` sends requests to URLs that tenants
chose, such as webhooks.
"""
