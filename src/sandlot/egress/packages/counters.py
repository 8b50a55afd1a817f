"""Counters of the package cache, for ``/metrics``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Counts since the service started.

    Args:
        hits: Index pages and files that were in the store and fresh.
        misses: Index pages and files that were requested from upstream.
        stale: Index pages that were served although they had expired, because upstream did not respond.
        refused: Requests that the network policy of their sandbox does not allow.
        errors: Requests that failed because of upstream or the disk.
        upstream_requests: Requests to upstream, including retries and redirects but not files of the host's own folders.
        upstream_bytes: Bytes of upstream's response bodies.
        served_bytes: Bytes of response bodies that sandboxes took.
        mismatches: Files that did not match their digest or changed during a download.
        evictions: Files that were removed to make room.
    """

    hits: int = 0
    misses: int = 0
    stale: int = 0
    refused: int = 0
    errors: int = 0
    upstream_requests: int = 0
    upstream_bytes: int = 0
    served_bytes: int = 0
    mismatches: int = 0
    evictions: int = 0
