# Made from src/sandlot/sdk/_async/executions.py by scripts/unasync.py; change that file, not this one.
"""The log of executions."""

from __future__ import annotations

import builtins
from collections.abc import Iterator

from sandlot.sdk import requests
from sandlot.sdk._sync import backend
from sandlot.sdk._sync.transport import Transport
from sandlot.sdk.converter import structure
from sandlot.sdk.models.executions import ExecutionInfo


class Executions:
    """The log of runs: your own; with an operator's key everybody's."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, *, sandbox: str | None = None, limit: int | None = 100) -> builtins.list[ExecutionInfo]:
        """What ran, newest first.

        Args:
            sandbox: What ran in that one only.
            limit: So many at most; None is all that the service keeps.
        """
        return backend.collected(self.iter(sandbox=sandbox, limit=limit))

    def iter(self, *, sandbox: str | None = None, limit: int | None = None) -> Iterator[ExecutionInfo]:
        """The same, one by one: a page is asked for when the one before was used."""
        return self._transport.paginate("/v1/executions", "executions", ExecutionInfo, params=requests.omit_none(sandbox=sandbox), limit=limit)

    def get(self, execution: str) -> ExecutionInfo:
        """One run: what it was, what it wrote, how it ended.

        Args:
            execution: The id of the process or cell.

        Raises:
            NotFoundError: There is none, or it is older than what is kept.
        """
        return structure(ExecutionInfo, self._transport.request("GET", f"/v1/executions/{requests.path_segment(execution)}"))
