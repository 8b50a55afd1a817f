# Generated from src/sandlot/sdk/_async/volumes.py by scripts/unasync.py; change that file.
"""Volumes, as ``client.volumes``."""

from __future__ import annotations

import builtins

from sandlot.model.sizes import parse_size
from sandlot.sdk import requests
from sandlot.sdk._sync.transport import Transport
from sandlot.sdk.converter import structure, structure_list
from sandlot.sdk.models.volumes import VolumeInfo


class Volumes:
    """The caller's volumes; with an operator's key, everybody's.

    A volume is a file system that outlives sandboxes; ``Sandbox.create(volumes=...)`` and ``attach_volume`` mount it.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(self, name: str, size: str | int | None = None) -> VolumeInfo:
        """Create an empty volume.

        Args:
            name: Up to 63 lower-case letters, digits, ``_`` and ``-``, unique among the caller's volumes.
            size: Size in bytes, or as text such as ``"10G"``; at least 16 MiB. Default: 1 GiB.

        Raises:
            ConflictError: Another volume of the caller has the name.
            LimitError: The quota is used up.
            UnavailableError: The node has no disk space for the volume now.
        """
        body = requests.omit_none(name=name, size_bytes=None if size is None else parse_size(size))
        return structure(VolumeInfo, self._transport.request("POST", "/v1/volumes", body=body))

    def list(self) -> builtins.list[VolumeInfo]:
        """List volumes, oldest first."""
        response = self._transport.request("GET", "/v1/volumes")
        return structure_list(VolumeInfo, response, "volumes")

    def get(self, volume: str) -> VolumeInfo:
        """Get a volume.

        Args:
            volume: Id or name of the volume.

        Raises:
            NotFoundError: ``volume_not_found``.
        """
        return structure(VolumeInfo, self._transport.request("GET", f"/v1/volumes/{requests.path_segment(volume)}"))

    def delete(self, volume: str) -> None:
        """Delete a volume and its content.

        Args:
            volume: Id or name of the volume.

        Raises:
            NotFoundError: ``volume_not_found``.
            ConflictError: The volume is attached to a sandbox.
        """
        self._transport.request("DELETE", f"/v1/volumes/{requests.path_segment(volume)}")
