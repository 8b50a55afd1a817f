# Generated from src/sandlot/sdk/_async/sandboxes.py by scripts/unasync.py; change that file.
"""The sandboxes of a service, as ``client.sandboxes``."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Mapping

from sandlot.sdk import requests
from sandlot.sdk._sync import backend
from sandlot.sdk._sync.transport import Transport
from sandlot.sdk.converter import structure
from sandlot.sdk.models.sandboxes import SandboxInfo


class Sandboxes:
    """The caller's sandboxes; with an operator's key, everybody's."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(
        self,
        *,
        state: str | Iterable[str] | None = None,
        metadata: Mapping[str, str] | None = None,
        name: str | None = None,
        ended: bool = False,
        limit: int | None = None,
    ) -> builtins.list[SandboxInfo]:
        """List live sandboxes, oldest first.

        Args:
            state: Only sandboxes in this state, or in one of these states.
            metadata: Only sandboxes that have all of these entries.
            name: Only sandboxes of this name.
            ended: Include ended sandboxes whose records the service still keeps.
            limit: Maximum number of sandboxes. Default: all.
        """
        return backend.collected(self.iter(state=state, metadata=metadata, name=name, ended=ended, limit=limit))

    def iter(
        self,
        *,
        state: str | Iterable[str] | None = None,
        metadata: Mapping[str, str] | None = None,
        name: str | None = None,
        ended: bool = False,
        limit: int | None = None,
    ) -> Iterator[SandboxInfo]:
        """Iterate over live sandboxes, oldest first, and read them page by page. Arguments as in :meth:`list`."""
        params = requests.sandboxes_query(state=state, metadata=metadata, ended=ended, name=name)
        return self._transport.paginate("/v1/sandboxes", "sandboxes", SandboxInfo, params=params, limit=limit)

    def get(self, sandbox: str) -> SandboxInfo:
        """Get a sandbox by its id or name; by its id also after its end, while the service keeps its record.

        Raises:
            NotFoundError: ``sandbox_not_found``.
        """
        return structure(SandboxInfo, self._transport.request("GET", f"/v1/sandboxes/{requests.path_segment(sandbox)}"))

    def kill(self, sandbox: str) -> None:
        """End a sandbox and delete everything in it. Killing an ended sandbox does nothing.

        Args:
            sandbox: Id or name of the sandbox.

        Raises:
            NotFoundError: ``sandbox_not_found``.
        """
        self._transport.request("DELETE", f"/v1/sandboxes/{requests.path_segment(sandbox)}")
