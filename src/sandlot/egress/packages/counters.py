"""Counters of the package cache, which the service reports at ``/metrics``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Numbers of events in the package cache since the service started.

    Args:
        hits: Requests for index pages and files that were served from the store.
        misses: Requests for index pages and files that had to be fetched from upstream.
        stale: Expired index pages that were served because upstream did not respond.
        refused: Requests that the network policy of the requesting sandbox did not allow.
        errors: Requests that failed because of upstream or the disk.
        upstream_requests: HTTP requests to upstream, including retries and redirects. Reads of files on this host are not counted.
        upstream_bytes: Bytes of response bodies that were received from upstream.
        served_bytes: Bytes of response bodies that were sent to sandboxes.
        mismatches: Files that did not match their digest or changed during a download.
        evictions: Files that were removed from the store to make space for other files.
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
