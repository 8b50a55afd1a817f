"""The log of executions."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator

from sandlot.sdk import requests
from sandlot.sdk._async import backend
from sandlot.sdk._async.transport import AsyncTransport
from sandlot.sdk.converter import structure
from sandlot.sdk.models.executions import ExecutionInfo


class AsyncExecutions:
    """The log of runs: your own; with an operator's key everybody's."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def list(self, *, sandbox: str | None = None, limit: int | None = 100) -> builtins.list[ExecutionInfo]:
        """What ran, newest first.

        Args:
            sandbox: What ran in that one only.
            limit: So many at most; None is all that the service keeps.
        """
        return await backend.collected(self.iter(sandbox=sandbox, limit=limit))

    def iter(self, *, sandbox: str | None = None, limit: int | None = None) -> AsyncIterator[ExecutionInfo]:
        """The same, one by one: a page is asked for when the one before was used."""
        return self._transport.paginate("/v1/executions", "executions", ExecutionInfo, params=requests.omit_none(sandbox=sandbox), limit=limit)

    async def get(self, execution: str) -> ExecutionInfo:
        """One run: what it was, what it wrote, how it ended.

        Args:
            execution: The id of the process or cell.

        Raises:
            NotFoundError: There is none, or it is older than what is kept.
        """
        return structure(ExecutionInfo, await self._transport.request("GET", f"/v1/executions/{requests.path_segment(execution)}"))
