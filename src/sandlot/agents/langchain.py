"""Sandlot for LangChain: tools for any agent, and a backend of deepagents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sandlot.agents.extras import extra
from sandlot.agents.sandbox_tools import AsyncSandboxTools, SandboxTools
from sandlot.model.errors import ErrorCode, SandlotError
from sandlot.sdk import Output, Sandbox
from sandlot.toolset.output import Image, ToolResult
from sandlot.toolset.tools import Tool

with extra("langchain", "langchain_core"):
    from langchain_core.tools import StructuredTool

with extra("langchain", "deepagents"):
    from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
    from deepagents.backends.sandbox import BaseSandbox

MAX_OUTPUT_BYTES: Final = 8 * 1024 * 1024
"""Output of a command that the backend keeps. deepagents reads files through commands."""
COMMAND_TIMEOUT_S: Final = 30 * 60

_ERRORS: Final[dict[ErrorCode, str]] = {
    ErrorCode.PATH_NOT_FOUND: "file_not_found",
    ErrorCode.PERMISSION_DENIED: "permission_denied",
    ErrorCode.PATH_IS_DIRECTORY: "is_directory",
    ErrorCode.PATH_INVALID: "invalid_path",
    ErrorCode.PATH_NOT_DIRECTORY: "invalid_path",
    ErrorCode.PATH_NOT_REGULAR: "invalid_path",
    ErrorCode.PATH_LINK_LOOP: "invalid_path",
}
"""Code -> error of deepagents. Other errors are described by their message."""


def sandbox_tools(tools: SandboxTools | AsyncSandboxTools) -> list[StructuredTool]:
    """Return the tools of a sandbox for ``create_agent`` and ``bind_tools``.

    Args:
        tools: Tools. Asynchronous ones serve ``ainvoke`` only; synchronous ones serve ``invoke``, and ``ainvoke`` in a thread.
    """
    return [_tool(tools, each) for each in tools.tools]


def _tool(tools: SandboxTools | AsyncSandboxTools, tool: Tool) -> StructuredTool:
    name = tool.name
    options: dict[str, Any] = {"name": name, "description": tool.description, "args_schema": tool.input_schema}
    options["response_format"] = "content_and_artifact"
    if isinstance(tools, AsyncSandboxTools):

        async def acall(**arguments: Any) -> tuple[Any, ToolResult]:  # noqa: ANN401 - JSON
            result = await tools.call(name, arguments)
            return _content(result), result

        return StructuredTool.from_function(coroutine=acall, **options)

    def call(**arguments: Any) -> tuple[Any, ToolResult]:  # noqa: ANN401 - JSON
        result = tools.call(name, arguments)
        return _content(result), result

    return StructuredTool.from_function(call, **options)


def _content(result: ToolResult) -> Any:  # noqa: ANN401 - text or content blocks
    if not result.images:
        return result.text
    return [
        {"type": "image", "base64": each.data, "mime_type": each.media_type} if isinstance(each, Image) else {"type": "text", "text": each.text}
        for each in result.content
    ]


class SandboxBackend(BaseSandbox):  # type: ignore[misc]  # the package is not in every environment
    """Backend of deepagents: ``create_deep_agent(backend=SandboxBackend(sandbox))``.

    Args:
        sandbox: Sandbox to work in. The caller ends it.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    @property
    def id(self) -> str:
        """Id of the sandbox."""
        return self.sandbox.id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a shell command; standard output and standard error are one text, in the order in which they were written.

        Args:
            command: Command.
            timeout: Seconds until the command is killed; 0: no limit. Default: half an hour.
        """
        output = bytearray()
        omitted = 0

        def keep(piece: Output) -> None:
            nonlocal omitted
            room = MAX_OUTPUT_BYTES - len(output)
            output.extend(piece.data[:room])
            omitted += piece.lost_bytes + max(0, len(piece.data) - room)

        limit_s = COMMAND_TIMEOUT_S if timeout is None else timeout or None
        result = self.sandbox.commands.run(command, timeout=limit_s, on_output=keep)
        text = output.decode("utf-8", "replace")
        if result.timed_out:
            text += f"\nThe command was killed after {limit_s} s."
        return ExecuteResponse(output=text, exit_code=result.exit_code, truncated=omitted > 0)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files; errors are data."""
        return [FileUploadResponse(path=path, error=_error(path, lambda: self.sandbox.files.write(path, data))[1]) for path, data in files]  # noqa: B023

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files; errors are data."""
        found = []
        for path in paths:
            content, error = _error(path, lambda: self.sandbox.files.read(path, "bytes"))  # noqa: B023 - called at once
            found.append(FileDownloadResponse(path=path, content=content, error=error))
        return found


def _error(path: str, work: Callable[[], Any]) -> tuple[Any, Any]:
    """Return the result of a file operation and None, or None and its error."""
    if not path.startswith("/"):
        return None, "invalid_path"
    try:
        return work(), None
    except SandlotError as error:
        return None, _ERRORS.get(error.code, str(error))
