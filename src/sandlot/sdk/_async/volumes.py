"""Volumes of a service: made, listed, looked at and deleted, as ``client.volumes``."""

from __future__ import annotations

import builtins

from sandlot.sdk import requests
from sandlot.sdk._async.transport import AsyncTransport
from sandlot.sdk.converter import structure, structure_list
from sandlot.sdk.models.volumes import VolumeInfo


class AsyncVolumes:
    """The volumes of a service: your own; with an operator's key everybody's. ``AsyncSandbox.create(volumes=...)`` attaches them."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def create(self, name: str, size: str | int | None = None) -> VolumeInfo:
        """Make a volume: files that outlive the sandboxes that have it.

        Args:
            name: What to call it: up to 63 lower-case letters, digits, ``_`` and ``-``; no two of yours have one name.
            size: What may be written to it: bytes, or such as ``"10G"``; 1 GiB by default, 16 MiB at least.

        Returns:
            It, empty.

        Raises:
            InvalidRequestError: The name is none, or the size is out of bounds.
            ConflictError: You have one of that name.
            LimitError: Your quota does not allow it.
            UnavailableError: The node has no room for it now.
        """
        body = requests.omit_none(name=name, size_bytes=None if size is None else requests.parse_size(size))
        return structure(VolumeInfo, await self._transport.request("POST", "/v1/volumes", body=body))

    async def list(self) -> builtins.list[VolumeInfo]:
        """The volumes that there are, oldest first."""
        answer = await self._transport.request("GET", "/v1/volumes")
        return structure_list(VolumeInfo, answer, "volumes")

    async def get(self, volume: str) -> VolumeInfo:
        """What is known of a volume.

        Args:
            volume: Its id, or its name.

        Raises:
            NotFoundError: There is none.
        """
        return structure(VolumeInfo, await self._transport.request("GET", f"/v1/volumes/{requests.path_segment(volume)}"))

    async def delete(self, volume: str) -> None:
        """Delete a volume, and all that is in it.

        Args:
            volume: Its id, or its name.

        Raises:
            NotFoundError: There is none.
            ConflictError: A sandbox has it.
        """
        await self._transport.request("DELETE", f"/v1/volumes/{requests.path_segment(volume)}")
