"""A sandbox of the SDK as a backend of the tools."""

from __future__ import annotations

from collections.abc import Sequence

from sandlot.model.faults import known_fault
from sandlot.model.streams import Stream
from sandlot.sdk import AsyncSandbox
from sandlot.sdk.models.code import Execution
from sandlot.sdk.models.processes import CommandResult
from sandlot.toolset.backend import MAX_FILES, FileInfo, FileList, OnOutput, RichResult, RunResult


class SdkBackend:
    """A sandbox of the SDK. The caller closes or kills the sandbox."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    @property
    def id(self) -> str:
        """Id of the sandbox."""
        return self._sandbox.id

    async def run_code(self, code: str, language: str, *, timeout_s: float, on_output: OnOutput | None = None) -> RunResult:
        """See :class:`sandlot.toolset.backend.ToolBackend`, like all methods."""
        return _code_result(await self._sandbox.run_code(code, language, timeout=timeout_s, on_stdout=on_output, on_stderr=on_output))

    async def run_command(self, command: str, *, cwd: str | None, timeout_s: float, on_output: OnOutput | None = None) -> RunResult:
        """Run a shell command."""
        result = await self._sandbox.commands.run(command, cwd=cwd, timeout=timeout_s, on_stdout=on_output, on_stderr=on_output)
        return _command_result(result)

    async def start_command(self, command: str, *, cwd: str | None) -> int | None:
        """Start a shell command in the background."""
        return (await self._sandbox.commands.run(command, cwd=cwd, background=True)).pid

    async def install_packages(self, packages: Sequence[str], manager: str, *, on_output: OnOutput | None = None) -> RunResult:
        """Install packages."""
        return _command_result(await self._sandbox.install(packages, manager=manager, on_stdout=on_output, on_stderr=on_output))

    async def read_file(self, path: str) -> Stream[bytes]:
        """Return the content of a file."""
        return await self._sandbox.files.read(path, format="stream")

    async def write_file(self, path: str, content: bytes) -> None:
        """Create or replace a file."""
        await self._sandbox.files.write(path, content)

    async def list_files(self, path: str) -> FileList:
        """List a directory."""
        found = await self._sandbox.files.list(path, limit=MAX_FILES + 1)
        return FileList([FileInfo(each.name, each.kind, each.size_bytes, each.target) for each in found[:MAX_FILES]], more=len(found) > MAX_FILES)

    async def get_url(self, port: int) -> str:
        """Return the URL of a port."""
        return await self._sandbox.get_url(port)


def _code_result(run: Execution) -> RunResult:
    return RunResult(
        status=str(run.status),
        exit_code=run.exit_code,
        stdout=run.stdout,
        stderr=run.stderr,
        results=[RichResult(each.data, each.main) for each in run.results],
        results_omitted=run.results_omitted,
        error="" if run.error is None else str(run.error),
        fault=known_fault(run.fault),
        duration_s=run.duration_s,
        id=run.id,
    )


def _command_result(result: CommandResult) -> RunResult:
    return RunResult(
        status=result.reason,
        exit_code=result.exit_code,
        stdout=result.stdout,
        stderr=result.stderr,
        fault=known_fault(result.fault),
        duration_s=result.duration_s,
        id=result.id,
    )
