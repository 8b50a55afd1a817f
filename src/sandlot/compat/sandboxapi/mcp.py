"""SandboxAPI's tools for models: an MCP server over streamable HTTP without state.

Revisions of the Model Context Protocol up to 2025-11-25: one JSON-RPC message in a POST, one JSON response; no server streams (GET is 405) and no MCP
sessions. Names, arguments and results of the tools for programs are those of the vendor's own MCP server. The two tools that work in a session are
described in the vendor's guide for agents; the tools that open and close a session are Sandlot's.

Invariants:
- A tool that fails returns a result with ``isError`` and a sentence for the model. A malformed message returns an error of JSON-RPC.
- If a client disconnects, its tool call is cancelled.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, cast

from pydantic import ValidationError

from sandlot import __version__
from sandlot.compat.sandboxapi import operations, translate
from sandlot.compat.sandboxapi.schemas import (
    CloseSessionRequest,
    CreateSessionRequest,
    EmptyRequest,
    ExecuteBatchRequest,
    ExecuteRequest,
    LanguageListResponse,
    RunCodeRequest,
    SessionExecuteRequest,
    SessionInstallRequest,
)
from sandlot.core.node import Node
from sandlot.model.access import Principal
from sandlot.model.errors import SandlotError
from sandlot.model.programs import OneShotParams
from sandlot.web.errors import validation_error
from sandlot.web.json_body import JsonParser
from sandlot.web.models import RequestModel, ResponseModel

VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Supported revisions, newest first."""
VERSION_HEADER = "mcp-protocol-version"

BAD_JSON, BAD_MESSAGE, NO_METHOD, BAD_PARAMS = -32700, -32600, -32601, -32602
"""JSON-RPC 2.0, 5.1."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """Response to a message.

    Args:
        status: HTTP status.
        body: JSON. Empty: no body.
    """

    status: int
    body: str = ""


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


async def respond(node: Node, principal: Principal, content: bytes, version: str | None, parser: JsonParser) -> Reply:
    """Return the response to one message.

    Args:
        node: Node that runs the tools.
        principal: Caller.
        content: Body of the request.
        version: Protocol revision of the request's header. None: there is no such header.
        parser: Parser of large bodies.

    Raises:
        LimitError: The body has too many values (``too_large``).
        InvalidRequestError: A large body is nested too deeply.
    """
    try:
        message = await parser.parse(content, lambda found: json.loads(found.decode()))
    except (ValueError, RecursionError):
        return _error(None, BAD_JSON, "The request's body is not JSON.", 400)
    if version is not None and version not in VERSIONS:
        return _error(None, BAD_MESSAGE, f"Revision {version[:30]!r} of MCP is not supported; use one of {', '.join(VERSIONS)}.", 400)
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        return _error(None, BAD_MESSAGE, "The request's body is not a single message of JSON-RPC 2.0.", 400)
    id_, method, params = message.get("id"), message.get("method"), message.get("params", {})
    if "id" not in message or "method" not in message:
        return Reply(202)  # a notification or a response, which has no response
    if type(id_) not in {int, str} or not isinstance(method, str) or not isinstance(params, dict):
        return _error(None, BAD_MESSAGE, "A request needs a method, an id that is a number or text, and params that are an object.", 400)
    return await _dispatch(node, principal, cast("int | str", id_), method, params)


async def _dispatch(node: Node, principal: Principal, id_: int | str, method: str, params: Json) -> Reply:
    match method:
        case "initialize":
            requested = params.get("protocolVersion")
            server = {"name": translate.VENDOR, "version": __version__}
            return _result(
                id_, {"protocolVersion": requested if requested in VERSIONS else VERSIONS[0], "capabilities": {"tools": {}}, "serverInfo": server}
            )
        case "ping":
            return _result(id_, {})
        case "tools/list":
            return _result(id_, {"tools": [_tool_description(name, tool) for name, tool in TOOLS.items()]})
        case "tools/call":
            name, arguments = params.get("name"), params.get("arguments") or {}
            tool = TOOLS.get(name) if isinstance(name, str) else None
            if tool is None:
                return _error(id_, BAD_PARAMS, f"There is no tool {str(name)[:50]!r}; there are {', '.join(TOOLS)}.")
            return _result(id_, await _call(node, principal, tool, arguments))
        case _:
            return _error(id_, NO_METHOD, f"There is no method {method[:50]!r}.")


async def _call(node: Node, principal: Principal, tool: Tool, arguments: Any) -> Json:  # noqa: ANN401 - JSON
    """Return the result of a tool call."""
    try:
        text, failed = await tool.call(node, principal, tool.arguments.model_validate(arguments)), False
    except ValidationError as error:
        text, failed = f"invalid parameters: {validation_error([{**each, 'loc': ('arguments', *each['loc'])} for each in error.errors()])}", True
    except SandlotError as error:
        text, failed = f"execution failed: {error}", True
    return {"content": [{"type": "text", "text": text}], "isError": failed}


def _tool_description(name: str, tool: Tool) -> Json:
    return {"name": name, "description": tool.description, "inputSchema": {"type": "object", "properties": {}} | tool.arguments.model_json_schema()}


def _result(id_: int | str, result: Json) -> Reply:
    return Reply(200, json.dumps({"jsonrpc": "2.0", "id": id_, "result": result}))


def _error(id_: int | str | None, code: int, message: str, status: int = 200) -> Reply:
    return Reply(status, json.dumps({"jsonrpc": "2.0", "id": id_, "error": {"code": code, "message": message}}))


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


def _program_params(body: ExecuteRequest) -> OneShotParams | SandlotError:
    try:
        return translate.program_params(body)
    except SandlotError as error:
        return error


async def _list_languages(_node: Node, _principal: Principal, _body: EmptyRequest) -> str:
    return _json(LanguageListResponse(languages=[translate.language_response(each) for each in translate.LANGUAGES]))


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

TOOLS: Mapping[str, Tool] = {
    "execute_code": Tool(
        f"Execute code once in a sandbox of its own, without network. Languages: {_LANGUAGES}. timeout: seconds, 10 by default, 300 at most.",
        ExecuteRequest,
        _execute,
    ),
    "execute_batch": Tool("Execute several programs like execute_code, each in a sandbox of its own.", ExecuteBatchRequest, _execute_batch),
    "list_languages": Tool("List all supported programming languages with their versions and examples.", EmptyRequest, _list_languages),
    "session_create": Tool(
        f"Open a session, which keeps variables, files and packages between calls. Languages: {_LANGUAGES}. "
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
