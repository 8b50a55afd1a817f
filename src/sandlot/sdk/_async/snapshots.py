"""Snapshots of sandboxes, as ``client.snapshots``."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator

from sandlot.sdk import requests
from sandlot.sdk._async import backend
from sandlot.sdk._async.transport import AsyncTransport
from sandlot.sdk.converter import structure
from sandlot.sdk.models.snapshots import SnapshotInfo


class AsyncSnapshots:
    """The caller's snapshots; with an operator's key, everybody's. ``AsyncSandbox.snapshot`` creates them."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def list(self, *, limit: int | None = None) -> builtins.list[SnapshotInfo]:
        """List snapshots, oldest first.

        Args:
            limit: Maximum number of snapshots. Default: all.
        """
        return await backend.collected(self.iter(limit=limit))

    def iter(self, *, limit: int | None = None) -> AsyncIterator[SnapshotInfo]:
        """Iterate over snapshots, oldest first, and read them page by page. Arguments as in :meth:`list`."""
        return self._transport.paginate("/v1/snapshots", "snapshots", SnapshotInfo, params={}, limit=limit)

    async def get(self, snapshot: str) -> SnapshotInfo:
        """Get a snapshot.

        Args:
            snapshot: Id or name of the snapshot.

        Raises:
            NotFoundError: ``snapshot_not_found``.
        """
        return structure(SnapshotInfo, await self._transport.request("GET", f"/v1/snapshots/{requests.path_segment(snapshot)}"))

    async def delete(self, snapshot: str) -> None:
        """Delete a snapshot. Sandboxes that were started from it keep running.

        Args:
            snapshot: Id or name of the snapshot.

        Raises:
            NotFoundError: ``snapshot_not_found``.
        """
        await self._transport.request("DELETE", f"/v1/snapshots/{requests.path_segment(snapshot)}")
