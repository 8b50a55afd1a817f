"""What the cache counts, for /metrics and for people."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Since the service began.

    Args:
        hits: Index pages and files that were found fresh in the store.
        misses: Index pages and files for which upstream was asked.
        stale: Index pages that were answered although they are old, because upstream did not answer.
        refused: Requests of sandboxes whose policy allows none.
        errors: Requests that failed by upstream's fault or the disk's.
        upstream_requests: Requests to upstream, repetitions and redirects included; files of the host's own folders are none.
        upstream_bytes: Bytes of their bodies.
        served_bytes: Bytes of bodies that sandboxes took.
        mismatches: Files that were not what their index says.
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
