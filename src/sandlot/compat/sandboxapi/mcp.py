"""SandboxAPI's tools for models: an MCP server over streamable HTTP that keeps nothing between two messages.

Model Context Protocol, revisions up to 2025-11-25: one JSON-RPC message in a POST, one JSON answer; no streams of the server's own (GET is 405), no
sessions of MCP. Tool names, arguments and results of programs are those of the vendor's own MCP server; its guide for agents has the two that work
in a session, and whoever calls these can open and close one here.

Laws:
- A tool that fails is a result with ``isError`` and a sentence, which a model reads; a message that is none is an error of JSON-RPC.
- A client that goes away ends what its call runs.
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
    BatchBody,
    CloseBody,
    CodeBody,
    ExecuteBody,
    LanguagesAnswer,
    NothingBody,
    SessionBody,
    SessionCodeBody,
    SessionPackagesBody,
)
from sandlot.core.node import Node
from sandlot.model.access import Principal
from sandlot.model.errors import SandlotError
from sandlot.model.programs import OneShotParams
from sandlot.web.errors import validation_error
from sandlot.web.models import RequestModel, ResponseModel

VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Revisions whose messages for tools are these, newest first."""
VERSION_HEADER = "mcp-protocol-version"

BAD_JSON, BAD_MESSAGE, NO_METHOD, BAD_PARAMS = -32700, -32600, -32601, -32602
"""JSON-RPC 2.0, 5.1."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """What a message is answered with.

    Args:
        status: HTTP's.
        body: JSON; empty where nothing is to be said.
    """

    status: int
    body: str = ""


@dataclass(frozen=True, slots=True)
class Tool:
    """Something that a model can call.

    Args:
        description: For the model.
        takes: Its arguments.
        call: Does it; gives JSON as text.
    """

    description: str
    takes: type[RequestModel]
    call: Callable[[Node, Principal, Any], Awaitable[str]]


async def answer(node: Node, principal: Principal, content: bytes, version: str | None) -> Reply:
    """Answer one message.

    Args:
        node: Who does what it asks for.
        principal: For whom.
        content: The request's body.
        version: The revision that its header names, where it has one.
    """
    try:
        message = json.loads(content)
    except (ValueError, RecursionError):
        return _failed(None, BAD_JSON, "The request's body is no JSON.", 400)
    if version is not None and version not in VERSIONS:
        return _failed(None, BAD_MESSAGE, f"MCP of {version[:30]!r} is not spoken here; there are {', '.join(VERSIONS)}.", 400)
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        return _failed(None, BAD_MESSAGE, "The request's body is no single message of JSON-RPC 2.0.", 400)
    id_, method, params = message.get("id"), message.get("method"), message.get("params", {})
    if "id" not in message or "method" not in message:
        return Reply(202)  # a notification, or an answer to what was never asked: taken, and nothing is to be said of it
    if type(id_) not in {int, str} or not isinstance(method, str) or not isinstance(params, dict):
        return _failed(None, BAD_MESSAGE, "A request has an id that is a number or a text, a method, and params that are an object.", 400)
    return await _requested(node, principal, cast("int | str", id_), method, params)


async def _requested(node: Node, principal: Principal, id_: int | str, method: str, params: Json) -> Reply:
    match method:
        case "initialize":
            asked = params.get("protocolVersion")
            told = {"name": translate.NAME, "version": __version__}
            return _done(id_, {"protocolVersion": asked if asked in VERSIONS else VERSIONS[0], "capabilities": {"tools": {}}, "serverInfo": told})
        case "ping":
            return _done(id_, {})
        case "tools/list":
            return _done(id_, {"tools": [_told(name, tool) for name, tool in TOOLS.items()]})
        case "tools/call":
            name, arguments = params.get("name"), params.get("arguments") or {}
            tool = TOOLS.get(name) if isinstance(name, str) else None
            if tool is None:
                return _failed(id_, BAD_PARAMS, f"There is no tool {str(name)[:50]!r}; there are {', '.join(TOOLS)}.")
            return _done(id_, await _called(node, principal, tool, arguments))
        case _:
            return _failed(id_, NO_METHOD, f"There is no method {method[:50]!r}.")


async def _called(node: Node, principal: Principal, tool: Tool, arguments: Any) -> Json:  # noqa: ANN401 - JSON
    """What a model is told of its call."""
    try:
        text, failed = await tool.call(node, principal, tool.takes.model_validate(arguments)), False
    except ValidationError as error:
        text, failed = f"invalid parameters: {validation_error([{**each, 'loc': ('arguments', *each['loc'])} for each in error.errors()])}", True
    except SandlotError as error:
        text, failed = f"execution failed: {error}", True
    return {"content": [{"type": "text", "text": text}], "isError": failed}


def _told(name: str, tool: Tool) -> Json:
    return {"name": name, "description": tool.description, "inputSchema": {"type": "object", "properties": {}} | tool.takes.model_json_schema()}


def _done(id_: int | str, result: Json) -> Reply:
    return Reply(200, json.dumps({"jsonrpc": "2.0", "id": id_, "result": result}))


def _failed(id_: int | str | None, code: int, message: str, status: int = 200) -> Reply:
    return Reply(status, json.dumps({"jsonrpc": "2.0", "id": id_, "error": {"code": code, "message": message}}))


def _json(told: ResponseModel) -> str:
    return told.model_dump_json()


# ----------------------------------------------------------------------------------------------------------------------------- tools


async def _execute(node: Node, principal: Principal, body: ExecuteBody) -> str:
    return _json(await operations.run(node, principal, body))


async def _execute_batch(node: Node, principal: Principal, body: BatchBody) -> str:
    told: list[Json] = [{} for _ in body.executions]
    async with aclosing(await node.programs.run_batch(principal, [_shot(each) for each in body.executions])) as batch:
        async for done in batch:
            asked = body.executions[done.index]
            if isinstance(done.outcome, SandlotError):
                failure = {"id": "", "status": "error", "language": asked.language, "stdout": "", "stderr": f"execution failed: {done.outcome}"}
                told[done.index] = failure | {"exit_code": -1, "execution_time_ms": 0, "memory_used_kb": 0}
            else:
                told[done.index] = translate.answer(done.outcome, translate.language(asked.language)).model_dump()
    completed = sum(1 for each in told if each["exit_code"] == 0)
    return json.dumps({"results": told, "total": len(told), "completed": completed, "failed": len(told) - completed}, ensure_ascii=False)


def _shot(body: ExecuteBody) -> OneShotParams | SandlotError:
    try:
        return translate.shot(body)
    except SandlotError as error:
        return error


async def _languages(_node: Node, _principal: Principal, _body: NothingBody) -> str:
    return _json(LanguagesAnswer(languages=[translate.language_answer(each) for each in translate.LANGUAGES]))


async def _create(node: Node, principal: Principal, body: SessionBody) -> str:
    return _json(await operations.create(node, principal, body))


async def _execute_in_session(node: Node, principal: Principal, body: SessionCodeBody) -> str:
    return _json(await operations.execute(node, principal, body.session_id, CodeBody(code=body.code, timeout=body.timeout)))


async def _install(node: Node, principal: Principal, body: SessionPackagesBody) -> str:
    return _json(await operations.install(node, principal, body.session_id, body))


async def _close(node: Node, principal: Principal, body: CloseBody) -> str:
    await operations.close(node, principal, body.session_id)
    return json.dumps({"id": body.session_id, "status": "closed"})


_SPOKEN = ", ".join(each.id for each in translate.LANGUAGES)

TOOLS: Mapping[str, Tool] = {
    "execute_code": Tool(
        f"Execute code once in a sandbox of its own, without network. Languages: {_SPOKEN}. timeout: seconds, 10 by default, 300 at most.",
        ExecuteBody,
        _execute,
    ),
    "execute_batch": Tool("Execute several programs, each as for execute_code and in a sandbox of its own.", BatchBody, _execute_batch),
    "list_languages": Tool("List all supported programming languages with their versions and examples.", NothingBody, _languages),
    "session_create": Tool(
        f"Open a session, in which variables, files and packages stay from call to call. Languages: {_SPOKEN}. "
        "idle_ttl: seconds of doing nothing after which it is closed, 600 by default.",
        SessionBody,
        _create,
    ),
    "session_execute": Tool("Execute code in a session, where everything is that the code before it left.", SessionCodeBody, _execute_in_session),
    "session_install_packages": Tool(
        "Install packages in a session, by pip, npm or apt; they can be imported at once.", SessionPackagesBody, _install
    ),
    "session_close": Tool("Close a session, and remove all that is in it.", CloseBody, _close),
}
