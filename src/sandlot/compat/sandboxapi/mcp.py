"""SandboxAPI's tools for models: the tools of the vendor's MCP server, on the transport of :mod:`sandlot.mcp`, without sessions.

Names, arguments and results of the tools for programs are those of the vendor's own MCP server. The two tools that work in a session are described in
the vendor's guide for agents; the tools that open and close a session are Sandlot's.

Invariants:
- A tool that fails returns a result with ``isError`` and a sentence for the model.
- If a client cancels a call or disconnects, the call is cancelled.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import mcp_types as types
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from sandlot import __version__
from sandlot.compat.sandboxapi import operations, translate
from sandlot.compat.sandboxapi.schemas import (
    CloseSessionRequest,
    CreateSessionRequest,
    EmptyRequest,
    ExecuteBatchRequest,
    ExecuteRequest,
    RunCodeRequest,
    SessionExecuteRequest,
    SessionInstallRequest,
)
from sandlot.core.node import Node
from sandlot.mcp.http_sessions import Sessions, principal_of, request_of
from sandlot.mcp.server import Context, run_in_own_task
from sandlot.model.access import Principal
from sandlot.model.errors import SandlotError
from sandlot.model.programs import ProgramParams
from sandlot.web.dependencies import get_node
from sandlot.web.errors import validation_error
from sandlot.web.models import RequestModel, ResponseModel

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that models can call.

    Args:
        description: Description for the model.
        arguments: Schema of the arguments.
        call: Runs the tool and returns JSON as text.
    """

    description: str
    arguments: type[RequestModel]
    call: Callable[[Node, Principal, Any], Awaitable[str]]


def create_http_server(_sessions: Sessions) -> Server[Any]:
    """Return the server of the vendor's endpoint."""

    async def list_tools(_context: Context, _params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_tool_description(name, tool) for name, tool in TOOLS.items()])

    async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        tool, request = TOOLS.get(params.name), request_of(context)
        if tool is None:
            raise MCPError(types.INVALID_PARAMS, f"There is no tool {params.name[:50]!r}; there are {', '.join(TOOLS)}.")
        return await run_in_own_task(_call(get_node(request), principal_of(request), tool, params.arguments or {}))

    return Server(translate.VENDOR, version=__version__, on_list_tools=list_tools, on_call_tool=call_tool)


async def _call(node: Node, principal: Principal, tool: Tool, arguments: Json) -> types.CallToolResult:
    """Return the result of a tool call."""
    try:
        text, failed = await tool.call(node, principal, tool.arguments.model_validate(arguments)), False
    except ValidationError as error:
        text, failed = f"invalid parameters: {validation_error([{**each, 'loc': ('arguments', *each['loc'])} for each in error.errors()])}", True
    except SandlotError as error:
        text, failed = f"execution failed: {error}", True
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=failed)


def _tool_description(name: str, tool: Tool) -> types.Tool:
    schema = {"type": "object", "properties": {}} | tool.arguments.model_json_schema()
    return types.Tool(name=name, description=tool.description, input_schema=schema)


def _json(response: ResponseModel) -> str:
    return response.model_dump_json()


# ----------------------------------------------------------------------------------------------------------------------------- tools


async def _execute(node: Node, principal: Principal, body: ExecuteRequest) -> str:
    return _json(await operations.run_program(node, principal, body))


async def _execute_batch(node: Node, principal: Principal, body: ExecuteBatchRequest) -> str:
    results: list[Json] = [{} for _ in body.executions]
    async with aclosing(await node.programs.run_batch(principal, [_program_params(each) for each in body.executions])) as batch:
        async for item in batch:
            program = body.executions[item.index]
            if isinstance(item.outcome, SandlotError):
                failure = {"id": "", "status": "error", "language": program.language, "stdout": "", "stderr": f"execution failed: {item.outcome}"}
                results[item.index] = failure | {"exit_code": -1, "execution_time_ms": 0, "memory_used_kb": 0}
            else:
                results[item.index] = translate.execute_response(item.outcome, translate.language(program.language)).model_dump()
    completed = sum(1 for each in results if each["exit_code"] == 0)
    return json.dumps({"results": results, "total": len(results), "completed": completed, "failed": len(results) - completed}, ensure_ascii=False)


def _program_params(body: ExecuteRequest) -> ProgramParams | SandlotError:
    try:
        return translate.program_params(body)
    except SandlotError as error:
        return error


async def _list_languages(node: Node, principal: Principal, _body: EmptyRequest) -> str:
    return _json(await operations.list_languages(node, principal))


async def _create(node: Node, principal: Principal, body: CreateSessionRequest) -> str:
    return _json(await operations.create_session(node, principal, body))


async def _execute_in_session(node: Node, principal: Principal, body: SessionExecuteRequest) -> str:
    return _json(await operations.run_code(node, principal, body.session_id, RunCodeRequest(code=body.code, timeout=body.timeout)))


async def _install(node: Node, principal: Principal, body: SessionInstallRequest) -> str:
    return _json(await operations.install_packages(node, principal, body.session_id, body))


async def _close(node: Node, principal: Principal, body: CloseSessionRequest) -> str:
    await operations.close_session(node, principal, body.session_id)
    return json.dumps({"id": body.session_id, "status": "closed"})


_LANGUAGES = ", ".join(each.id for each in translate.LANGUAGES)
_SESSION_LANGUAGES = ", ".join(each.id for each in translate.LANGUAGES if each.has_sessions)

TOOLS: Mapping[str, Tool] = {
    "execute_code": Tool(
        f"Execute code once in a sandbox of its own, without network. Languages: {_LANGUAGES}. timeout: seconds, 10 by default, 300 at most.",
        ExecuteRequest,
        _execute,
    ),
    "execute_batch": Tool("Execute several programs like execute_code, each in a sandbox of its own.", ExecuteBatchRequest, _execute_batch),
    "list_languages": Tool("List all supported programming languages with their versions and examples.", EmptyRequest, _list_languages),
    "session_create": Tool(
        f"Open a session, which keeps variables, files and packages between calls. Languages: {_SESSION_LANGUAGES}. "
        "idle_ttl: seconds without use until the session is closed, 600 by default.",
        CreateSessionRequest,
        _create,
    ),
    "session_execute": Tool("Execute code in a session, with the variables and files of earlier code.", SessionExecuteRequest, _execute_in_session),
    "session_install_packages": Tool(
        "Install packages in a session with pip, npm or apt. Code can import them at once.", SessionInstallRequest, _install
    ),
    "session_close": Tool("Close a session and delete its files.", CloseSessionRequest, _close),
}
