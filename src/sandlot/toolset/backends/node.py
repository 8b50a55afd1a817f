"""A sandbox of the node as a backend of the tools, without HTTP in between."""

from __future__ import annotations

import base64
import codecs
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Final

from sandlot.core.node import Node
from sandlot.model.access import Principal
from sandlot.model.executions import CodeResult, CommandResult, Display, ExecutionOptions, Output, code_exit_code
from sandlot.model.ids import SandboxId
from sandlot.model.packages import InstallParams, choose_manager
from sandlot.model.previews import DEFAULT_PREVIEW_LIFETIME_S
from sandlot.model.specs import CellSpec, ProcessSpec, shell_argv
from sandlot.model.streams import Stream
from sandlot.toolset.backend import FileInfo, FileList, OnOutput, RichResult, RunResult
from sandlot.web.preview_urls import PreviewAddresses, no_previews

_TEXT_TYPES: Final = ("text/", "application/json", "application/javascript", "image/svg+xml")


class NodeBackend:
    """A sandbox of the node.

    Args:
        node: Node that has the sandbox.
        principal: Caller.
        sandbox: Id of the sandbox.
        previews: Address of the previews. None: the ports of sandboxes have no URLs.
        origin: API of the calls, for the execution log.
    """

    def __init__(self, node: Node, principal: Principal, sandbox: str, *, previews: PreviewAddresses | None = None, origin: str = "native") -> None:
        self._node = node
        self._principal = principal
        self._sandbox = sandbox
        self._previews = previews
        self._options = ExecutionOptions(origin=origin)

    @property
    def id(self) -> str:
        """Id of the sandbox."""
        return self._sandbox

    async def run_code(self, code: str, language: str, *, timeout_s: float, on_output: OnOutput | None = None) -> RunResult:
        """See :class:`sandlot.toolset.backend.ToolBackend`, like all methods."""
        cell = CellSpec(code, language, timeout_s=timeout_s)
        return _code_result(await self._node.code.run(self._principal, self._sandbox, cell, self._options, on_output=_as_text(on_output)))

    async def run_command(self, command: str, *, cwd: str | None, timeout_s: float, on_output: OnOutput | None = None) -> RunResult:
        """Run a shell command."""
        spec = ProcessSpec(shell_argv(command), cwd=cwd, timeout_s=timeout_s)
        result = await self._node.processes.run(self._principal, self._sandbox, spec, options=self._options, on_output=_as_text(on_output))
        return _command_result(result)

    async def start_command(self, command: str, *, cwd: str | None) -> int | None:
        """Start a shell command in the background."""
        spec = ProcessSpec(shell_argv(command), cwd=cwd, timeout_s=None)
        return (await self._node.processes.launch(self._principal, self._sandbox, spec, options=self._options)).pid

    async def install_packages(self, packages: Sequence[str], manager: str, *, on_output: OnOutput | None = None) -> RunResult:
        """Install packages."""
        params = InstallParams(choose_manager(manager), tuple(packages))
        installed = await self._node.packages.install(self._principal, self._sandbox, params, self._options, on_output=_as_text(on_output))
        return _command_result(installed)

    async def read_file(self, path: str) -> Stream[bytes]:
        """Return the content of a file."""
        return await self._node.files.read(self._principal, self._sandbox, path)

    async def write_file(self, path: str, content: bytes) -> None:
        """Create or replace a file."""
        await self._node.files.write(self._principal, self._sandbox, path, _one(content))

    async def list_files(self, path: str) -> FileList:
        """List a directory. The node returns at most 1,000 entries at once."""
        page = await self._node.files.list(self._principal, self._sandbox, path)
        return FileList([FileInfo(each.name, each.kind, each.size, each.target) for each in page.entries], more=page.more)

    async def get_url(self, port: int) -> str:
        """Return the URL of a port."""
        signed = self._node.previews.sign(self._principal, self._sandbox, port, DEFAULT_PREVIEW_LIFETIME_S)
        if self._previews is None:
            raise no_previews()
        address = await self._previews.require_address()
        return address.url(SandboxId(self._sandbox), port, None if signed.public else signed.value)


def _code_result(result: CodeResult) -> RunResult:
    error, outcome = result.error, result.outcome
    return RunResult(
        status=outcome.status,
        exit_code=code_exit_code(outcome.status, None if error is None else (error.name, error.value)),
        stdout=result.stdout.text(),
        stderr=result.stderr.text(),
        results=[_rich_result(each) for each in result.results],
        results_omitted=result.results_omitted,
        error="" if error is None else "\n".join(line.rstrip("\n") for line in error.traceback) or f"{error.name}: {error.value}",
        fault=outcome.fault,
        duration_s=outcome.duration_s,
        id=outcome.execution,
    )


def _command_result(result: CommandResult) -> RunResult:
    outcome = result.outcome
    return RunResult(
        status=outcome.reason,
        exit_code=outcome.exit_code,
        stdout=result.stdout.text(),
        stderr=result.stderr.text(),
        fault=outcome.fault,
        duration_s=outcome.duration_s,
        id=outcome.process,
    )


def _rich_result(display: Display) -> RichResult:
    return RichResult(_encoded(display.data), display.main)


def _encoded(data: Mapping[str, str | bytes]) -> dict[str, str]:
    """Return text as it is, bytes of text types decoded, and other bytes in base64."""
    return {
        mime: item if isinstance(item, str) else item.decode("utf-8", "replace") if mime.startswith(_TEXT_TYPES) else base64.b64encode(item).decode()
        for mime, item in data.items()
    }


def _as_text(on_output: OnOutput | None) -> Callable[[Output], object] | None:
    """Return a function that passes the pieces of each channel on as text. A cut character waits for its rest."""
    if on_output is None:
        return None
    decoders = {channel: codecs.getincrementaldecoder("utf-8")("replace") for channel in (1, 2)}
    return lambda output: on_output(decoders[output.channel].decode(output.data))


async def _one(content: bytes) -> AsyncIterator[bytes]:
    yield content
