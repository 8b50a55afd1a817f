# Generated from src/sandlot/sdk/_async/executions.py by scripts/unasync.py; change that file.
"""Runs of code and commands, as ``client.executions``."""

from __future__ import annotations

import builtins
from collections.abc import Iterator

from sandlot.sdk import requests
from sandlot.sdk._sync import backend
from sandlot.sdk._sync.transport import Transport
from sandlot.sdk.converter import structure
from sandlot.sdk.models.executions import ExecutionInfo


class Executions:
    """The log of the caller's runs of code and commands; with an operator's key, of everybody's."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, *, sandbox: str | None = None, limit: int | None = None) -> builtins.list[ExecutionInfo]:
        """List runs, newest first.

        Args:
            sandbox: Only runs in this sandbox, by its id.
            limit: Maximum number of runs. Default: all that the service keeps.
        """
        return backend.collected(self.iter(sandbox=sandbox, limit=limit))

    def iter(self, *, sandbox: str | None = None, limit: int | None = None) -> Iterator[ExecutionInfo]:
        """Iterate over runs, newest first, and read them page by page. Arguments as in :meth:`list`."""
        return self._transport.paginate("/v1/executions", "executions", ExecutionInfo, params=requests.omit_none(sandbox=sandbox), limit=limit)

    def get(self, execution: str) -> ExecutionInfo:
        """Get a run with its code or command, output and outcome.

        Args:
            execution: Id of the run, which for a command is the id of its process.

        Raises:
            NotFoundError: ``execution_not_found``: no such run, or the service no longer keeps it.
        """
        return structure(ExecutionInfo, self._transport.request("GET", f"/v1/executions/{requests.path_segment(execution)}"))
