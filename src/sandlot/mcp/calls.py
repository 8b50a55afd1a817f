"""Run the tool calls of MCP clients, apart from the protocol itself.

Invariants:
- The sandbox is opened or created only for a call whose arguments are right.
- The result of each call that used a sandbox names the sandbox.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from sandlot.mcp import tools
from sandlot.mcp.host import CreateOptions, SandboxHost
from sandlot.mcp.session_sandboxes import SessionSandbox
from sandlot.model.errors import SandlotError
from sandlot.toolset import output
from sandlot.toolset.backend import OnOutput, ToolBackend
from sandlot.toolset.output import Text, ToolResult
from sandlot.toolset.parameters import ArgumentsError, parse_arguments
from sandlot.toolset.toolset import Toolset, without_large_images

MAX_EVENT_BYTES: Final = 1024 * 1024
"""Largest server-sent event that Python's client of MCP accepts (``DEFAULT_MAX_SSE_EVENT_SIZE`` in ``mcp`` 2.3)."""
ENVELOPE_BYTES: Final = 4096
"""Largest size of what a message has beside the content of a result."""

Arguments = Mapping[str, Any]

_toolset = Toolset()


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call.

    Args:
        name: Name of the tool, as the client sent it.
        arguments: Arguments, as the client sent them.
        on_output: Called with each piece of output while a program runs.
        is_streamed: Returns True if the result is sent as a server-sent event, whose size is limited. It is called when the program has ended.
    """

    name: str
    arguments: Mapping[str, Any]
    on_output: OnOutput | None = None
    is_streamed: Callable[[], bool] = lambda: False


async def run_call(call: Call, host: SandboxHost, session_sandbox: SessionSandbox | None) -> ToolResult:
    """Run a tool call.

    Args:
        call: The call.
        host: Sandboxes of the caller.
        session_sandbox: Sandbox of the session. None: a call without a sandbox gets a new one.
    """
    if call.name in tools.IN_SANDBOX:
        return await _run_in_sandbox(call, host, session_sandbox)
    tool = tools.ABOUT_SANDBOXES.get(call.name)
    if tool is None:
        return output.invalid_call(f"There is no tool {call.name[:60]!r}. The tools are {', '.join(tools.ALL)}.")
    try:
        return await _HANDLERS[tool.name](host, parse_arguments(tool.parameters, call.arguments))
    except ArgumentsError as error:
        return output.invalid_call(str(error))
    except SandlotError as error:
        return output.error_result(error)


async def _run_in_sandbox(call: Call, host: SandboxHost, session_sandbox: SessionSandbox | None) -> ToolResult:
    try:
        arguments = parse_arguments(tools.IN_SANDBOX[call.name].parameters, call.arguments)
    except ArgumentsError as error:
        return output.invalid_call(str(error))
    wanted = arguments.pop("sandbox")
    opened: list[ToolBackend] = []
    note = ""

    async def open_sandbox() -> ToolBackend:
        nonlocal note
        if wanted is not None:
            backend = await host.open(wanted)
        else:
            backend, is_new = await (session_sandbox or SessionSandbox()).open(host)
            if is_new:
                note = f"[sandbox {backend.id} was created{'' if session_sandbox else '; pass it as `sandbox` to continue there'}]"
        opened.append(backend)
        return backend

    result = await _toolset.call(call.name, arguments, open_sandbox, on_output=call.on_output)
    if result.images and call.is_streamed():
        other = json.dumps([result.text, result.structured], ensure_ascii=False).encode(errors="replace")
        result = await without_large_images(opened[0], result, MAX_EVENT_BYTES - ENVELOPE_BYTES - len(other))
    sandbox = opened[0].id if opened else wanted or (session_sandbox.sandbox if session_sandbox is not None else None)
    if result.sandbox_ended and wanted is None and session_sandbox is not None and sandbox is not None:
        session_sandbox.forget(sandbox)
        note = "[The next call without `sandbox` starts a new sandbox.]"
    content = (*result.content, Text(note)) if note else result.content
    structured = dict(result.structured) if sandbox is None else {"sandbox": sandbox, **result.structured}
    return replace(result, content=content, structured=structured)


async def _create(host: SandboxHost, arguments: Arguments) -> ToolResult:
    options = CreateOptions(
        template=arguments["template"],
        snapshot=arguments["snapshot"],
        name=arguments["name"],
        timeout_s=arguments["timeout"],
        network=arguments["network"],
    )
    backend = await host.create(options)
    return output.text_result(f"Created sandbox {backend.id}.", {"sandbox": backend.id})


async def _list(host: SandboxHost, _: Arguments) -> ToolResult:
    found = await host.list()
    lines = [f"{each.id}  {each.state}  {each.template}{f'  {each.name}' if each.name else ''}" for each in found]
    rows = [
        {
            "id": each.id,
            "state": each.state,
            "template": each.template,
            "name": each.name,
            "created_at": None if each.created_at is None else each.created_at.isoformat(),
            "expires_at": None if each.expires_at is None else each.expires_at.isoformat(),
        }
        for each in found
    ]
    return output.text_result("\n".join(lines) or "There are no sandboxes.", {"sandboxes": rows})


async def _kill(host: SandboxHost, arguments: Arguments) -> ToolResult:
    await host.kill(arguments["sandbox"])
    return output.text_result(f"Sandbox {arguments['sandbox']} has ended.", {"sandbox": arguments["sandbox"]})


async def _snapshot(host: SandboxHost, arguments: Arguments) -> ToolResult:
    snapshot = await host.snapshot(arguments["sandbox"], arguments["name"])
    return output.text_result(f"Saved snapshot {snapshot}.", {"sandbox": arguments["sandbox"], "snapshot": snapshot})


async def _fork(host: SandboxHost, arguments: Arguments) -> ToolResult:
    copies = [*await host.fork(arguments["sandbox"], arguments["count"])]
    return output.text_result(f"Copies: {', '.join(copies)}", {"sandbox": arguments["sandbox"], "copies": copies})


async def _list_ports(host: SandboxHost, arguments: Arguments) -> ToolResult:
    found = await host.list_ports(arguments["sandbox"])
    lines = [f"{each.port} ({each.address}){f'  {each.url}' if each.url else ''}" for each in found]
    rows = [{"port": each.port, "address": each.address, "url": each.url} for each in found]
    return output.text_result("\n".join(lines) or "No program listens on a port.", {"sandbox": arguments["sandbox"], "ports": rows})


async def _list_refusals(host: SandboxHost, arguments: Arguments) -> ToolResult:
    report = await host.network(arguments["sandbox"])
    lines = [f"The network mode is {report.mode}."]
    for each in report.refusals:
        request = f" ({each.method} {each.path})" if each.method else ""
        lines.append(f"{output.printable(each.host)}:{each.port}{output.printable(request)}: {each.reason}, {each.count} times")
    rows = [
        {"reason": each.reason, "host": each.host, "port": each.port, "method": each.method, "path": each.path, "count": each.count}
        for each in report.refusals
    ]
    text = "\n".join(lines) if rows else f"{lines[0]} Nothing was refused."
    return output.text_result(
        output.shorten(text, output.MAX_OUTPUT_CHARS, ""), {"sandbox": arguments["sandbox"], "mode": report.mode, "refusals": rows}
    )


_HANDLERS: Mapping[str, Callable[[SandboxHost, Arguments], Awaitable[ToolResult]]] = {
    tools.CREATE.name: _create,
    tools.LIST.name: _list,
    tools.KILL.name: _kill,
    tools.SNAPSHOT.name: _snapshot,
    tools.FORK.name: _fork,
    tools.PORTS.name: _list_ports,
    tools.REFUSALS.name: _list_refusals,
}
