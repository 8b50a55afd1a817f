"""Messages of JSON-RPC that no client of a model sends, and what the SDK's transport answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx

from tests.support.cases import cases
from tests.support.service import Bench
from tests.support.until import until

URL = "/sandboxapi/mcp"


async def post(http: httpx.AsyncClient, content: bytes, **headers: str) -> tuple[int, Any]:
    response = await http.post(URL, content=content, headers={"Content-Type": "application/json", **headers})
    return response.status_code, response.json() if response.content else None


@cases(
    "content, status, code",
    [
        (b"", 400, -32700),
        (b"{", 400, -32700),
        (b"\xff", 400, -32700),
        (b"[" * 5000, 400, -32700),
        (b"[]", 400, -32602),
        (b'[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]', 400, -32602),
        (b'"x"', 400, -32602),
        (b'{"jsonrpc": "1.0", "id": 1, "method": "ping"}', 400, -32602),
        (b'{"jsonrpc": "2.0", "id": 1, "method": 7}', 400, -32602),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": []}', 400, -32602),
        (b'{"jsonrpc": "2.0", "id": "\\ud800", "method": "\\ud800"}', 400, -32700),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "resources/list"}', 200, -32601),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call"}', 200, -32602),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": ["x"]}}', 200, -32602),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "\\ud800"}}', 400, -32700),
    ],
)
async def test_malformed_messages_get_json_rpc_errors(http: httpx.AsyncClient, content: bytes, status: int, code: int) -> None:
    answered, told = await post(http, content)
    assert (answered, told["jsonrpc"], told["error"]["code"]) == (status, "2.0", code)
    assert told["error"]["message"]


@cases("content", [b'{"jsonrpc": "2.0", "method": "notifications/cancelled"}', b'{"jsonrpc": "2.0", "id": 1, "result": {}}'])
async def test_notifications_and_responses_are_accepted(http: httpx.AsyncClient, content: bytes) -> None:
    assert await post(http, content) == (202, None)


async def test_protocol_revision_is_negotiated(http: httpx.AsyncClient) -> None:
    for asked, agreed in (("2025-11-25", "2025-11-25"), ("2024-11-05", "2024-11-05"), ("1999-01-01", "2025-11-25")):
        params = {"protocolVersion": asked, "capabilities": {}, "clientInfo": {"name": "model", "version": "1"}}
        _, told = await post(http, json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).encode())
        assert told["result"]["protocolVersion"] == agreed
    ping = b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}'
    assert (await post(http, ping, **{"MCP-Protocol-Version": "2025-03-26"}))[0] == 200
    status, told = await post(http, ping, **{"MCP-Protocol-Version": "1999-01-01"})
    assert (status, "error" in told) == (400, True)


@cases(
    "name, arguments, word",
    [
        ("execute_code", {"language": "bash"}, "code"),
        ("execute_code", {"language": "bash", "code": "", "surplus": 1}, "surplus"),
        ("execute_code", {"language": "cobol", "code": ""}, "python3"),
        ("execute_code", {"language": "go", "code": ""}, "cannot run programs in Go"),
        ("session_create", {"language": "go"}, "Sessions do not run Go"),
        ("list_languages", {"x": 1}, "x"),
        ("session_create", {"language": "bash", "idle_ttl": 1}, "idle_ttl"),
        ("session_execute", {"session_id": "none", "code": "1"}, "no session"),
        ("session_install_packages", {"session_id": "none", "manager": "conda", "packages": ["a"]}, "no session"),
        ("session_close", {"session_id": "none"}, "no session"),
    ],
)
async def test_failed_tool_call_explains_the_error_to_the_model(http: httpx.AsyncClient, name: str, arguments: Any, word: str) -> None:  # noqa: ANN401 - JSON
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
    status, told = await post(http, json.dumps(message).encode())
    assert (status, told["result"]["isError"]) == (200, True)
    assert word in told["result"]["content"][0]["text"]


RUN = {"language": "bash", "code": "sleep 1000", "timeout": 300}


@cases("name, arguments", [("execute_code", RUN), ("execute_batch", {"executions": [RUN]})])
async def test_disconnect_cancels_the_tool_call(http: httpx.AsyncClient, at: Bench, name: str, arguments: dict[str, Any]) -> None:
    params = {"name": name, "arguments": arguments}
    asking = asyncio.create_task(http.post(URL, json={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}))
    await until(lambda: at.sandboxes.held == 1)
    asking.cancel()
    await until(lambda: at.sandboxes.held == 0)
