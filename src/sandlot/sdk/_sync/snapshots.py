# Made from src/sandlot/sdk/_async/snapshots.py by scripts/unasync.py; change that file, not this one.
"""Snapshots of a service: listed, looked at and removed, as ``client.snapshots``."""

from __future__ import annotations

import builtins
from collections.abc import Iterator

from sandlot.sdk import requests
from sandlot.sdk._sync import backend
from sandlot.sdk._sync.transport import Transport
from sandlot.sdk.converter import structure
from sandlot.sdk.models.snapshots import SnapshotInfo


class Snapshots:
    """The snapshots of a service: your own; with an operator's key everybody's. ``Sandbox.snapshot`` takes them."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, *, limit: int | None = None) -> builtins.list[SnapshotInfo]:
        """The snapshots that there are, oldest first.

        Args:
            limit: So many at most; all of them where left out.
        """
        return backend.collected(self.iter(limit=limit))

    def iter(self, *, limit: int | None = None) -> Iterator[SnapshotInfo]:
        """The same, one by one: a page is asked for when the one before was used."""
        return self._transport.paginate("/v1/snapshots", "snapshots", SnapshotInfo, params={}, limit=limit)

    def get(self, snapshot: str) -> SnapshotInfo:
        """What is known of a snapshot.

        Args:
            snapshot: Its id, or its name.

        Raises:
            NotFoundError: There is none.
        """
        return structure(SnapshotInfo, self._transport.request("GET", f"/v1/snapshots/{requests.path_segment(snapshot)}"))

    def delete(self, snapshot: str) -> None:
        """Remove a snapshot. Sandboxes that were started from it live on.

        Args:
            snapshot: Its id, or its name.

        Raises:
            NotFoundError: There is none.
        """
        self._transport.request("DELETE", f"/v1/snapshots/{requests.path_segment(snapshot)}")
