"""Snapshots of a service: listed, looked at and removed, as ``client.snapshots``."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from sandlot.sdk import requests
from sandlot.sdk._async import backend
from sandlot.sdk.models.snapshots import SnapshotInfo

if TYPE_CHECKING:
    from sandlot.sdk._async.client import AsyncClient


class AsyncSnapshots:
    """The snapshots of a service: your own; with an operator's key everybody's. ``AsyncSandbox.snapshot`` takes them.

    Args:
        client: Reaches it.
    """

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def list(self, *, limit: int | None = None) -> builtins.list[SnapshotInfo]:
        """The snapshots that there are, oldest first.

        Args:
            limit: So many at most; all of them where left out.
        """
        return await backend.collected(self.iter(limit=limit))

    def iter(self, *, limit: int | None = None) -> AsyncIterator[SnapshotInfo]:
        """The same, one by one: a page is asked for when the one before was used."""
        return self._client.items("/v1/snapshots", "snapshots", SnapshotInfo.parse, params={}, limit=limit)

    async def get(self, snapshot: str) -> SnapshotInfo:
        """What is known of a snapshot.

        Args:
            snapshot: Its id, or its name.

        Raises:
            NotFoundError: There is none.
        """
        return SnapshotInfo.parse(await self._client.request("GET", f"/v1/snapshots/{requests.path_segment(snapshot)}"))

    async def delete(self, snapshot: str) -> None:
        """Remove a snapshot. Sandboxes that were started from it live on.

        Args:
            snapshot: Its id, or its name.

        Raises:
            NotFoundError: There is none.
        """
        await self._client.request("DELETE", f"/v1/snapshots/{requests.path_segment(snapshot)}")
