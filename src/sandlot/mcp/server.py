"""The protocol's side of the MCP server, on the MCP SDK: the revisions of the protocol with sessions, and the one without (2026-07-28).

Invariants:
- A tool call runs in a task of asyncio. The MCP SDK cancels with cancel scopes of anyio, in which each await of a cleanup would be cancelled again.
- A cancelled call has ended its program before the server answers anything else about the call.
- An error of a tool is a result that a model can read. Only a call without a known tool, and a resource, have errors of the protocol.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import anyio
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError

from sandlot import __version__
from sandlot.mcp import resources, tools
from sandlot.mcp.calls import Call, run_call
from sandlot.mcp.host import SandboxHost
from sandlot.mcp.session_sandboxes import SessionSandbox
from sandlot.model.errors import SandlotError
from sandlot.toolset.output import Image, Text, ToolResult, error_result

NAME: Final = "sandlot"
PROGRESS_S: Final = 1.0
"""Interval at which the progress of a call is reported."""
CLEANUP_S: Final = 30.0
COPIES: Final = 3
"""Copies of a result that exist while its response is built: the result, the message, and its JSON."""
MAX_LINE_CHARS: Final = 200
RESOURCE_NOT_FOUND: Final = -32002
"""Error code of the revisions up to 2025-11-25 for a resource that does not exist."""

Context = ServerRequestContext[Any, Any]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CallScope:
    """Sandboxes, permission and memory of one request.

    Args:
        host: Sandboxes of the scope.
        session_sandbox: Sandbox of the session; None if the request has no session.
        working: Returns a context manager for the work of the call, which ends the work with an error once the API key is revoked.
        take_memory: Takes memory in bytes for a result until it has been sent. It raises an error if the caller has taken too much.
        is_streamed: Returns True if the response to the request is a stream of server-sent events.
    """

    host: SandboxHost
    session_sandbox: SessionSandbox | None
    working: Callable[[], AbstractContextManager[None]] = nullcontext
    take_memory: Callable[[int], None] = lambda _: None
    is_streamed: Callable[[], bool] = lambda: False


def create_server(scope_of: Callable[[Context], CallScope]) -> Server[Any]:
    """Return a server with all tools.

    Args:
        scope_of: Function that returns the scope of a request.
    """

    async def list_tools(_context: Context, _params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=_TOOLS)

    async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        return await _call_tool(context, params, scope_of(context))

    async def list_resources(_context: Context, _params: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
        return types.ListResourcesResult(resources=[])  # the files of all sandboxes are too many for a list

    async def list_templates(_context: Context, _params: types.PaginatedRequestParams | None) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(resource_templates=[_TEMPLATE])

    async def read_resource(context: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        return await _read_resource(scope_of(context), str(params.uri))

    return Server(
        NAME,
        version=__version__,
        title="Sandlot",
        instructions=tools.INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
    )


async def _call_tool(context: Context, params: types.CallToolRequestParams, scope: CallScope) -> types.CallToolResult:
    progress = _Progress(context)
    call = Call(params.name, params.arguments or {}, progress.add if progress.is_wanted else None, scope.is_streamed)

    async def work() -> ToolResult:
        try:
            with scope.working():
                result = await progress.report_during(run_call(call, scope.host, scope.session_sandbox))
                scope.take_memory(COPIES * result.size_chars)
                return result
        except SandlotError as error:  # the permission of the caller ended, or there is no memory for the result
            return error_result(error)

    return call_result(await run_in_own_task(work()))


async def run_in_own_task(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a task of asyncio, which is cancelled once, and which has ended when this call ends."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task})
    finally:
        if not task.done():
            task.cancel()
            with anyio.move_on_after(CLEANUP_S, shield=True):
                await asyncio.wait({task})
    return task.result()


def call_result(result: ToolResult) -> types.CallToolResult:
    """Return a result in the form of the protocol. Files with the rest of long output and with images that are not shown are linked as resources."""
    content: list[types.ContentBlock] = []
    for each in result.content:
        match each:
            case Text(text):
                content.append(types.TextContent(text=text))
            case Image(media_type, data):
                content.append(types.ImageContent(data=data, mime_type=media_type))
    if sandbox := result.structured.get("sandbox"):
        if path := result.structured.get("output_file"):
            content.append(_link(sandbox, path, "text/plain", "The whole output."))
        files = [path for path in result.structured.get("image_files", ()) if path.startswith("/")]
        content += [_link(sandbox, path, resources.media_type(path), "An image that is not shown.") for path in files]
    return types.CallToolResult(content=content, structured_content=dict(result.structured), is_error=result.is_error)


def _link(sandbox: str, path: str, media_type: str, description: str) -> types.ResourceLink:
    uri = str(resources.FileUri(sandbox, path))
    return types.ResourceLink(uri=uri, name=path.rpartition("/")[2], mime_type=media_type, description=description)


async def _read_resource(scope: CallScope, uri: str) -> types.ReadResourceResult:
    file = resources.parse_uri(uri)
    if file is None:
        raise MCPError(RESOURCE_NOT_FOUND, f"There is no resource {uri[:200]!r}. Resources have the form {resources.TEMPLATE}.", {"uri": uri[:1000]})
    try:
        content = await run_in_own_task(resources.read(scope.host, file))
        scope.take_memory(COPIES * len(content))
    except SandlotError as error:
        raise MCPError(RESOURCE_NOT_FOUND, str(error), {"uri": uri[:1000], "code": str(error.code), "fault": str(error.fault)}) from None
    kind = resources.media_type(file.path)
    try:
        text = content.decode()
    except UnicodeDecodeError:
        blob = types.BlobResourceContents(uri=uri, mime_type=kind, blob=base64.b64encode(content).decode())
        return types.ReadResourceResult(contents=[blob])
    kind = "text/plain" if kind == "application/octet-stream" else kind
    return types.ReadResourceResult(contents=[types.TextResourceContents(uri=uri, mime_type=kind, text=text)])


def wants_progress(context: Context) -> bool:
    """Return True if the client of a request wants to know its progress."""
    return (context.meta or {}).get("progress_token") is not None


class _Progress:
    """Reports the seconds and the last line of output of a call, if its client asks for progress."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._line = ""
        self.is_wanted = wants_progress(context)

    def add(self, text: str) -> None:
        """Take a piece of output."""
        lines = [line for line in text.splitlines() if line.strip()]
        if lines:
            self._line = lines[-1][-MAX_LINE_CHARS:]

    async def report_during(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the work of the call, and report its progress meanwhile."""
        if not self.is_wanted:
            return await work
        reporting = asyncio.ensure_future(self._report())
        try:
            return await work
        finally:
            reporting.cancel()
            with suppress(asyncio.CancelledError):
                await reporting

    async def _report(self) -> None:
        seconds = 0
        while True:
            await self._context.session.report_progress(seconds, message=self._line or f"running for {seconds} s")
            await asyncio.sleep(PROGRESS_S)
            seconds += 1


_TEMPLATE: Final = types.ResourceTemplate(
    uri_template=resources.TEMPLATE, name="file", title="File in a sandbox", description="Content of a file, at most 4 MiB. PATH is absolute."
)
_TOOLS: Final = [
    types.Tool(
        name=each.name,
        title=each.title,
        description=each.description,
        input_schema=each.input_schema,
        output_schema=tools.output_schema(each.name),
        annotations=types.ToolAnnotations(
            title=each.title, read_only_hint=each.read_only, destructive_hint=each.name in tools.DESTRUCTIVE, open_world_hint=False
        ),
    )
    for each in tools.ALL.values()
]
