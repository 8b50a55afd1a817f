"""Runs of code and commands, as ``client.executions``."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator

from sandlot.sdk import requests
from sandlot.sdk._async import backend
from sandlot.sdk._async.transport import AsyncTransport
from sandlot.sdk.converter import structure
from sandlot.sdk.models.executions import ExecutionInfo


class AsyncExecutions:
    """The log of the caller's runs of code and commands; with an operator's key, of everybody's."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def list(self, *, sandbox: str | None = None, limit: int | None = None) -> builtins.list[ExecutionInfo]:
        """List runs, newest first.

        Args:
            sandbox: Only runs in this sandbox, by its id.
            limit: Maximum number of runs. Default: all that the service keeps.
        """
        return await backend.collected(self.iter(sandbox=sandbox, limit=limit))

    def iter(self, *, sandbox: str | None = None, limit: int | None = None) -> AsyncIterator[ExecutionInfo]:
        """Iterate over runs, newest first, and read them page by page. Arguments as in :meth:`list`."""
        return self._transport.paginate("/v1/executions", "executions", ExecutionInfo, params=requests.omit_none(sandbox=sandbox), limit=limit)

    async def get(self, execution: str) -> ExecutionInfo:
        """Get a run with its code or command, output and outcome.

        Args:
            execution: Id of the run, which for a command is the id of its process.

        Raises:
            NotFoundError: ``execution_not_found``: no such run, or the service no longer keeps it.
        """
        return structure(ExecutionInfo, await self._transport.request("GET", f"/v1/executions/{requests.path_segment(execution)}"))
