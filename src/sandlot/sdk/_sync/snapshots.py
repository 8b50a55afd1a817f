# Generated from src/sandlot/sdk/_async/snapshots.py by scripts/unasync.py; change that file.
"""Snapshots of sandboxes, as ``client.snapshots``."""

from __future__ import annotations

import builtins
from collections.abc import Iterator

from sandlot.sdk import requests
from sandlot.sdk._sync import backend
from sandlot.sdk._sync.transport import Transport
from sandlot.sdk.converter import structure
from sandlot.sdk.models.snapshots import SnapshotInfo


class Snapshots:
    """The caller's snapshots; with an operator's key, everybody's. ``Sandbox.snapshot`` creates them."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, *, limit: int | None = None) -> builtins.list[SnapshotInfo]:
        """List snapshots, oldest first.

        Args:
            limit: Maximum number of snapshots. Default: all.
        """
        return backend.collected(self.iter(limit=limit))

    def iter(self, *, limit: int | None = None) -> Iterator[SnapshotInfo]:
        """Iterate over snapshots, oldest first, and read them page by page. Arguments as in :meth:`list`."""
        return self._transport.paginate("/v1/snapshots", "snapshots", SnapshotInfo, params={}, limit=limit)

    def get(self, snapshot: str) -> SnapshotInfo:
        """Get a snapshot.

        Args:
            snapshot: Id or name of the snapshot.

        Raises:
            NotFoundError: ``snapshot_not_found``.
        """
        return structure(SnapshotInfo, self._transport.request("GET", f"/v1/snapshots/{requests.path_segment(snapshot)}"))

    def delete(self, snapshot: str) -> None:
        """Delete a snapshot. Sandboxes that were started from it keep running.

        Args:
            snapshot: Id or name of the snapshot.

        Raises:
            NotFoundError: ``snapshot_not_found``.
        """
        self._transport.request("DELETE", f"/v1/snapshots/{requests.path_segment(snapshot)}")
