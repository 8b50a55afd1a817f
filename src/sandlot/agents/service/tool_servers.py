"""MCP servers of the operator, whose tools agents may call.

Invariants:
- A request names a server and nothing else of it: addresses and credentials come from the operator's file only.
- A run has one connection to each server. A call of a tool is made once.
- No text of a server reaches an event or the model with a credential in it, and none is longer than that of another tool.
- A response is read up to ``MAX_RESPONSE_BYTES``, whatever the server sends.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

import structlog

from sandlot.agents.service.tables import read_tables
from sandlot.host.blocking import outlast_cancellation
from sandlot.model.errors import InvalidRequestError
from sandlot.model.specs import MIB
from sandlot.toolset import output
from sandlot.toolset.images import decode_image
from sandlot.toolset.output import Image, Text, ToolResult

SANDBOX_TOOLS: Final = "code-exec"
"""Reserved name of a server that stands for the tools of the sandbox, which are no MCP server."""
TIMEOUT_S: Final = 60.0
"""Seconds until a call is given up, if the operator does not set ``timeout``."""
MAX_TOOLS: Final = 128
"""Number of tools of one server that are offered to a model; the others are left out."""
MAX_TOOL_BYTES: Final = 64 * 1024
"""Size of the description and the schema of a tool. A larger tool is left out."""
MAX_RESPONSE_BYTES: Final = 10 * MIB
"""Size of a response above which it is not read further and the request fails. The largest images of a result, and 2 MiB of text."""
CLOSE_S: Final = 5.0
"""Seconds for the end of a connection, after which it is cut."""
MAX_REASON_CHARS: Final = 200
"""Length above which the reason of a failure is cut."""
MIN_SECRET_CHARS: Final = 6
"""Minimum length of a part of a header that is redacted as a credential."""

_SERVER_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9-]{0,31}")
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")

_log = structlog.get_logger("sandlot.agents")


@dataclass(frozen=True, slots=True)
class ToolServerEntry:
    """An MCP server as the operator has configured it.

    Args:
        name: Name in requests.
        url: URL of the server's endpoint for streamable HTTP.
        headers: Headers of each request, such as ``Authorization``.
        timeout: Seconds until the connection or a call is given up.
    """

    name: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout: float = TIMEOUT_S

    def redact(self, text: str) -> str:
        """Return a text without the credentials of the server."""
        secrets = {part for value in self.headers.values() for part in (value, *value.split()) if len(part) >= MIN_SECRET_CHARS}
        secrets |= {self.url} if urlsplit(self.url).query or urlsplit(self.url).username else set()
        for secret in sorted(secrets, key=len, reverse=True):
            text = text.replace(secret, "[redacted]")
        return text


class ToolServerError(Exception):
    """A server cannot be reached, or does not speak MCP.

    Args:
        server: Name of the server.
        why: Reason, without credentials.
    """

    def __init__(self, server: str, why: str) -> None:
        super().__init__(f"The MCP server {server!r} cannot be used: {why}.")
        self.server = server


@dataclass(frozen=True, slots=True)
class ServerTool:
    """A tool of a server.

    Args:
        name: Name for the model: those of the server and of the tool.
        description: Description by the server.
        input_schema: JSON Schema of the arguments.
    """

    name: str
    description: str
    input_schema: dict[str, Any]


def load_tool_servers(path: Path) -> Mapping[str, ToolServerEntry]:
    """Read the servers from a file in TOML: a table ``[servers.NAME]`` for each, with the fields of :class:`ToolServerEntry`.

    Raises:
        InvalidRequestError: The file cannot be read, or a field is missing, unknown or out of range.
    """
    return {name: _entry(path, name, table) for name, table in read_tables(path, "server", _invalid).items()}


def _entry(path: Path, name: str, table: Mapping[str, Any]) -> ToolServerEntry:
    if name == SANDBOX_TOOLS:
        raise _invalid(path, f"the name {name!r} is that of the tools of the sandbox")
    if not _SERVER_NAME.fullmatch(name):
        raise _invalid(path, f"the name {name[:64]!r} must have 1 to 32 letters, digits and hyphens")
    if unknown := table.keys() - {"url", "headers", "timeout"}:
        raise _invalid(path, f"the server {name!r} has the unknown field {min(unknown)!r}; the fields are headers, timeout, url")
    url, headers, timeout = table.get("url"), table.get("headers", {}), table.get("timeout", TIMEOUT_S)
    if not isinstance(url, str) or urlsplit(url).scheme not in {"http", "https"}:
        raise _invalid(path, f"`url` of the server {name!r} is no URL")
    if not isinstance(headers, dict) or not all(isinstance(value, str) and value.isprintable() for value in headers.values()):
        raise _invalid(path, f"`headers` of the server {name!r} must have texts as values")
    if not isinstance(timeout, (int, float)) or isinstance(timeout, bool) or not 0 < timeout < float("inf"):
        raise _invalid(path, f"`timeout` of the server {name!r} is out of range")
    return ToolServerEntry(name, url, headers, timeout)


def _invalid(path: Path, why: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"The MCP servers in {path} cannot be used: {why}.",
        hint="Correct the file that SANDLOT_AGENT_MCP_SERVERS names.",
        fields={"field": "agent_mcp_servers"},
    )


class ServerTools:
    """Tools of the connected servers of one run."""

    def __init__(self, connections: Sequence[_Connection]) -> None:
        self._connections = {name: each for each in connections for name in each.tools}

    @property
    def tools(self) -> Sequence[ServerTool]:
        """All tools."""
        return [each.tools[name] for name, each in self._connections.items()]

    def __contains__(self, name: str) -> bool:
        """Return whether there is a tool of this name."""
        return name in self._connections

    async def call(self, name: str, arguments: object) -> ToolResult:
        """Call a tool. Each call has a result.

        Args:
            name: Name of a tool for the model.
            arguments: Arguments, as JSON text or parsed.
        """
        return await self._connections[name].call(name, arguments)


@asynccontextmanager
async def connect(entries: Sequence[ToolServerEntry]) -> AsyncGenerator[ServerTools]:
    """Connect to servers.

    Raises:
        ToolServerError: A server cannot be used.
    """
    async with AsyncExitStack() as stack:
        yield ServerTools([await stack.enter_async_context(_Connection(entry)) for entry in entries])


class _Connection:
    """Connection to one server. It has a task of its own, because an MCP client must be closed in the task that opened it."""

    def __init__(self, entry: ToolServerEntry) -> None:
        self._entry = entry
        self._client: Any = None
        self._is_open = asyncio.Event()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.tools: dict[str, ServerTool] = {}

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._keep_open(), name=f"mcp {self._entry.name}")
        opened = asyncio.create_task(self._is_open.wait())
        is_usable, problem = False, ""
        try:
            await asyncio.wait([self._task, opened], timeout=self._entry.timeout, return_when=asyncio.FIRST_COMPLETED)
            is_usable = self._is_open.is_set()
        finally:
            opened.cancel()
            if not is_usable:
                problem = self._problem()
                await outlast_cancellation(self._close())
        if not is_usable:
            raise ToolServerError(self._entry.name, problem)
        return self

    async def __aexit__(self, *_error: object) -> None:
        await outlast_cancellation(self._close())

    async def call(self, name: str, arguments: object) -> ToolResult:
        """Call a tool by its name for the model."""
        try:
            parsed = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
        except ValueError as error:
            return output.invalid_call(f"The arguments are no JSON: {error}.")
        if not isinstance(parsed, dict):
            return output.invalid_call("The arguments must be an object.")
        try:
            async with asyncio.timeout(self._entry.timeout):
                result = await self._client.call_tool(name.removeprefix(f"{self._entry.name}__"), parsed)
        except TimeoutError:
            return self._failed(f"it has not responded within {self._entry.timeout:g} seconds")
        except Exception as error:  # noqa: BLE001 - the client raises errors of several packages
            return self._failed(self._reason(error))
        return self._result(result)

    async def _keep_open(self) -> None:
        import httpx2  # noqa: PLC0415 - with the first run that needs it
        from mcp.client.client import Client  # noqa: PLC0415
        from mcp.client.streamable_http import streamable_http_client  # noqa: PLC0415

        from sandlot.agents.service.bounded_responses import limit_responses  # noqa: PLC0415

        entry = self._entry
        timeout = httpx2.Timeout(min(30.0, entry.timeout), read=entry.timeout)
        headers = {"Accept-Encoding": "identity", **entry.headers}
        hooks: Any = {"response": [limit_responses(MAX_RESPONSE_BYTES)]}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=timeout, event_hooks=hooks) as http,
            # The hook limits events as well.
            Client(streamable_http_client(entry.url, http_client=http, max_sse_event_size=None)) as self._client,
        ):
            await self._list_tools()
            self._is_open.set()
            await self._closing.wait()

    async def _list_tools(self) -> None:
        cursor, left_out = None, []
        while True:
            page = await self._client.list_tools(cursor=cursor)
            for tool in page.tools:
                name = f"{self._entry.name}__{tool.name}"
                description = self._entry.redact(tool.description or "")
                schema = json.dumps(tool.input_schema)
                size, is_clean = len(description) + len(schema), self._entry.redact(schema) == schema
                if len(self.tools) < MAX_TOOLS and _TOOL_NAME.fullmatch(name) and size <= MAX_TOOL_BYTES and is_clean:
                    self.tools[name] = ServerTool(name, description, tool.input_schema)
                else:
                    left_out.append(tool.name[:64])
            cursor = page.next_cursor
            if cursor is None or len(self.tools) + len(left_out) > 2 * MAX_TOOLS:
                break
        if left_out:
            _log.warning("tool_server.tools_left_out", server=self._entry.name, tools=left_out[:MAX_TOOLS])

    async def _close(self) -> None:
        assert self._task is not None  # noqa: S101 - entered
        self._closing.set()
        if self._is_open.is_set():
            await asyncio.wait([self._task], timeout=CLOSE_S)
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled() and (error := self._task.exception()) is not None:
            _log.info("tool_server.closed", server=self._entry.name, error=self._reason(error))

    def _problem(self) -> str:
        assert self._task is not None  # noqa: S101 - entered
        if not self._task.done():
            return f"it has not responded within {self._entry.timeout:g} seconds"
        error = self._task.exception()
        return "it has closed the connection" if error is None else self._reason(error)

    def _reason(self, error: BaseException) -> str:
        """Return the reason of a failure, without credentials: a part of one would not be found after the text is cut."""
        return self._entry.redact(_reason(error))[:MAX_REASON_CHARS]

    def _failed(self, why: str) -> ToolResult:
        text = f"Error: the MCP server {self._entry.name!r} failed: {why}. It is not known whether the call had an effect."
        return ToolResult((Text(text),), is_error=True)

    def _result(self, result: Any) -> ToolResult:  # noqa: ANN401 - CallToolResult, whose package is imported with the first run that needs it
        texts: list[str] = []
        images: list[Image] = []
        for each in result.content:
            if each.type == "text":
                texts.append(each.text)
            elif each.type == "image":
                image = output.checked_image(decode_image(each.data))
                if isinstance(image, Image) and len(images) < output.MAX_IMAGES:
                    images.append(image)
                else:
                    texts.append(f"[an image is not shown: {image if isinstance(image, str) else 'there are too many'}]")
            elif each.type == "resource" and hasattr(each.resource, "text"):
                texts.append(each.resource.text)
            else:
                texts.append(f"[content of type {each.type!r} is not shown]")
        whole = self._entry.redact("\n".join(texts)) or "(no text)"
        text = output.shorten(whole, output.MAX_OUTPUT_CHARS, "Call the tool again for less output.")
        return ToolResult((Text(text), *images), is_error=bool(result.is_error))


def _reason(error: BaseException) -> str:
    """Return the reason of a failure, without the address of the server."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return f"it responded with status {status}"
    text = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
