"""Runs of code and commands, as ``client.executions``."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator

from sandlot.sdk import notebook, requests
from sandlot.sdk._async import backend
from sandlot.sdk._async.transport import AsyncTransport
from sandlot.sdk.converter import structure
from sandlot.sdk.models.code import ExecutionResults
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

    async def results(self, execution: str) -> ExecutionResults:
        """Get the rich results and the exception of code; those so far while it runs.

        Args:
            execution: Id of the run.

        Raises:
            NotFoundError: ``execution_not_found``: no such run, or the service no longer keeps it.
        """
        path = f"/v1/executions/{requests.path_segment(execution)}/results"
        return structure(ExecutionResults, await self._transport.request("GET", path))

    async def notebook(self, sandbox: str) -> str:
        """Return a Jupyter notebook with the code that ran in a sandbox, its output, its results and its exceptions.

        The sandbox may have ended. Python code runs in the notebook; code in other languages is marked as ``%%bash`` or ``%%script``, or commented
        out. Commands are left out. The notebook is not signed: Jupyter shows no active content of it before you trust it.

        Args:
            sandbox: Id of the sandbox.

        Returns:
            The notebook in format 4.5, as the text of an ``.ipynb`` file.

        Raises:
            UnsupportedError: The package ``nbformat`` is not installed (``pip install 'sandlot[notebook]'``).
        """
        notebook.check_installed()
        runs = [run for run in reversed(await self.list(sandbox=sandbox)) if run.kind == "code"]
        return notebook.build([(run, await self.results(run.id) if run.results_bytes else None) for run in runs])
