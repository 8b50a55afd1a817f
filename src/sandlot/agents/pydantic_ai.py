"""Sandlot for pydantic-ai: a workspace, and a toolset.

``agent.run(..., workspace=SandboxWorkspace())`` lets an agent work in a sandbox. The workspace never ends its sandbox: the id is in ``ref``, and the
timeout ends the sandbox at the latest.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from sandlot.agents.extras import extra
from sandlot.agents.os_errors import os_error
from sandlot.agents.sandbox_tools import AsyncSandboxTools, ConversationSandbox
from sandlot.model.errors import SANDBOX_GONE, ErrorCode, NotFoundError, SandlotError
from sandlot.sdk import AsyncSandbox, FileEntry
from sandlot.toolset.images import decode_image
from sandlot.toolset.output import Image, ToolResult
from sandlot.toolset.tools import Tool

with extra("pydantic-ai", "pydantic_ai"):
    from pydantic_ai import workspaces
    from pydantic_ai.messages import BinaryContent
    from pydantic_ai.tools import Tool as PydanticTool
    from pydantic_ai.toolsets import FunctionToolset
    from pydantic_ai.workspaces import WorkspaceOutputLimitError, WorkspaceRef, WorkspaceTimeoutError, WorkspaceUnavailableError

PROVIDER: Final = "sandlot"
PROGRAM_NOT_FOUND: Final = 127
"""Exit code of a missing program, as of a shell."""
MAX_OUTPUT_BYTES: Final = 2 * 1024 * 1024
"""Output of each stream that a result keeps."""


class SandboxWorkspace:
    """A workspace backend: commands and files of one sandbox.

    Args:
        ref: Workspace to attach to. None: the first operation creates a sandbox.
        options: Arguments of ``AsyncSandbox.create``; of these, ``client``, ``url`` and ``api_key`` also apply to ``ref``.

    Raises:
        ValueError: The workspace is of another provider.
    """

    def __init__(self, ref: WorkspaceRef | None = None, **options: Any) -> None:  # noqa: ANN401 - passed on
        if ref is not None and ref.provider != PROVIDER:
            raise ValueError(f"The workspace is of {ref.provider!r}, not of {PROVIDER!r}.")
        self._conversation = ConversationSandbox(attach=None if ref is None else ref.id, options=options)
        self._ref = ref
        self._working_dir: str | None = None

    @property
    def ref(self) -> WorkspaceRef | None:
        """Identity of the workspace; None before the sandbox is created."""
        present = self._conversation.present
        if self._ref is None and present is not None:
            self._ref = WorkspaceRef(provider=PROVIDER, id=present.id)
        return self._ref

    async def sandbox(self) -> AsyncSandbox:
        """Return the sandbox, and create it if there is none yet."""
        with _workspace_errors():
            return await self._conversation.get()

    async def aclose(self) -> None:
        """Close the connection; the sandbox keeps running."""
        if (present := self._conversation.present) is not None:
            await present.aclose()

    async def working_dir(self) -> str:
        """Return the working directory."""
        if self._working_dir is None:
            sandbox = await self.sandbox()
            with _workspace_errors():
                self._working_dir = await sandbox.files.realpath(".")
        return self._working_dir

    async def run(
        self, command: str | Sequence[str], *, shell: bool = False, env: Mapping[str, str] | None = None, timeout: float | None = None
    ) -> workspaces.CommandResult:
        """Run a command; see ``pydantic_ai.workspaces.SupportsCommands``."""
        if isinstance(command, str) != shell:
            raise TypeError("A shell command is a text, and a command without a shell is a list of program and arguments.")
        if timeout is not None and not 0 < timeout < float("inf"):
            raise ValueError("`timeout` must be a positive number of seconds.")
        sandbox = await self.sandbox()
        with _workspace_errors():
            try:
                result = await sandbox.commands.run(command, envs=env, timeout=timeout)
            except NotFoundError as error:
                if error.code is not ErrorCode.PROGRAM_NOT_FOUND:
                    raise
                return workspaces.CommandResult(exit_code=PROGRAM_NOT_FOUND, stdout="", stderr=f"{error.message}\n")
        if result.timed_out:
            raise WorkspaceTimeoutError(f"The command did not end within {timeout:g} s.", stdout=result.stdout, stderr=result.stderr)
        if result.stdout_omitted_bytes or result.stderr_omitted_bytes:
            text = f"The command wrote more than {MAX_OUTPUT_BYTES} bytes to a stream."
            raise WorkspaceOutputLimitError(text, limit=MAX_OUTPUT_BYTES, stdout=result.stdout, stderr=result.stderr)
        return workspaces.CommandResult(exit_code=result.exit_code, stdout=result.stdout, stderr=result.stderr)

    async def read_bytes(self, path: str) -> bytes:
        """Read a file; see ``pydantic_ai.workspaces.SupportsFilesystem`` for all file operations."""
        sandbox = await self.sandbox()
        with _workspace_errors(path):
            return await sandbox.files.read(path, "bytes")

    async def write_bytes(self, path: str, data: bytes) -> None:
        """Write a file, and create missing parent directories."""
        sandbox = await self.sandbox()
        with _workspace_errors(path):
            await sandbox.files.write(path, data)

    async def stat(self, path: str) -> workspaces.FileEntry:
        """Describe a file or directory; links are followed."""
        sandbox = await self.sandbox()
        with _workspace_errors(path):
            return _entry(path, await sandbox.files.stat(path))

    async def list_dir(self, path: str) -> list[workspaces.FileEntry]:
        """List a directory."""
        sandbox = await self.sandbox()
        with _workspace_errors(path):
            found = await sandbox.files.list(path)
        return [_entry(posixpath.join(path, each.name), await _followed(sandbox, each)) for each in found]

    async def make_dir(self, path: str) -> None:
        """Create a directory and its missing parents."""
        sandbox = await self.sandbox()
        with _workspace_errors(path):
            await sandbox.files.make_dir(path)

    async def remove(self, path: str) -> None:
        """Delete a file, or a directory with its content; the working directory and its parents are refused."""
        inside = await self.working_dir()
        if posixpath.join(inside, "").startswith(posixpath.join(posixpath.normpath(path), "")):
            raise ValueError(f"{path} contains the working directory.")
        sandbox = await self.sandbox()
        with _workspace_errors(path):
            await sandbox.files.remove(path)

    async def exists(self, path: str) -> bool:
        """Return True if the path exists."""
        sandbox = await self.sandbox()
        with _workspace_errors(path):
            return await sandbox.files.exists(path)

    async def realpath(self, path: str) -> str:
        """Resolve links; parts that do not exist stay as they are."""
        result = await self.run(["realpath", "--canonicalize-missing", "--zero", "--", path])
        if result.exit_code:
            raise OSError(result.stderr.strip())
        return result.stdout.removesuffix("\0")


def sandbox_toolset(tools: AsyncSandboxTools) -> FunctionToolset[Any]:
    """Return the tools of a sandbox as a toolset: ``Agent(..., toolsets=[sandbox_toolset(tools)])``."""
    return FunctionToolset([_tool(tools, each) for each in tools.tools])


def _tool(tools: AsyncSandboxTools, tool: Tool) -> PydanticTool[Any]:
    async def call(**arguments: Any) -> str | list[str | BinaryContent]:  # noqa: ANN401 - JSON
        return _content(await tools.call(tool.name, arguments))

    return PydanticTool.from_schema(call, tool.name, tool.description, tool.input_schema)


def _content(result: ToolResult) -> str | list[str | BinaryContent]:
    if not result.images:
        return result.text
    return [BinaryContent(decode_image(each.data), media_type=each.media_type) if isinstance(each, Image) else each.text for each in result.content]


async def _followed(sandbox: AsyncSandbox, entry: FileEntry) -> FileEntry:
    """Return the target of a link; the link itself if it leads nowhere or around in a circle."""
    if entry.kind != "symlink":
        return entry
    try:
        return await sandbox.files.stat(entry.path)
    except SandlotError as error:
        if error.code in SANDBOX_GONE:
            raise WorkspaceUnavailableError(str(error)) from error
        return entry


def _entry(path: str, entry: FileEntry) -> workspaces.FileEntry:
    size = entry.size_bytes if entry.kind == "file" else None
    return workspaces.FileEntry(name=posixpath.basename(path), path=path, is_dir=entry.is_dir, size=size)


@contextmanager
def _workspace_errors(path: str | None = None) -> Iterator[None]:
    try:
        yield
    except SandlotError as error:
        if error.code in SANDBOX_GONE:
            raise WorkspaceUnavailableError(str(error)) from error
        if (translated := os_error(error, path)) is not None:
            raise translated from error
        raise
