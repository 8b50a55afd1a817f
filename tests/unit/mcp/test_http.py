"""The endpoint ``/mcp`` of a service in memory, with the SDK's client in both eras."""

from __future__ import annotations

import asyncio
import base64
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from mcp import MCPError

from sandlot.mcp import http_sessions, tools
from sandlot.mcp.calls import ENVELOPE_BYTES, MAX_EVENT_BYTES
from sandlot.mcp.server import COPIES
from sandlot.model.access import OPERATOR
from sandlot.testing.memory.kernels import Cell
from tests.support.cases import cases
from tests.support.mcp_client import ERAS, http_client, resource, text
from tests.support.until import until
from tests.unit.mcp.conftest import Endpoint
from tests.unit.toolset.test_images import png

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
ACCEPT = {"Accept": "application/json, text/event-stream"}

pytestmark = pytest.mark.anyio


@pytest.fixture(params=ERAS)
def era(request: pytest.FixtureRequest) -> str:
    mode: str = request.param
    return mode


def authorized(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}", **ACCEPT}


def test_service_imports_the_sdk_of_mcp_only_for_its_first_client() -> None:
    program = "import sys, sandlot.server.app; sys.exit('mcp' in sys.modules or 'mcp_types' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


async def test_client_lists_all_tools_with_schemas(endpoint: Endpoint, era: str) -> None:
    async with http_client(endpoint.url, endpoint.key, era) as client:
        found = {each.name: each for each in (await client.list_tools()).tools}
        assert found.keys() == tools.ALL.keys()
        for name, tool in found.items():
            assert tool.input_schema == tools.ALL[name].input_schema
            assert tool.output_schema is not None
            assert tool.annotations is not None
            assert tool.annotations.read_only_hint is tools.ALL[name].read_only
        if era == "legacy":  # the client of the newer revision has not asked for the description of the server
            assert "sandbox" in (client.instructions or "")


async def test_code_runs_in_the_named_sandbox(endpoint: Endpoint, era: str) -> None:
    async with http_client(endpoint.url, endpoint.key, era) as client:
        first = await client.call_tool("run_code", {"code": "x = 6"})
        sandbox = first.structured_content["sandbox"]
        assert sandbox in text(first)
        second = await client.call_tool("run_code", {"code": "x * 7", "sandbox": sandbox})
        assert (second.is_error, second.structured_content["results"], second.structured_content["sandbox"]) == (False, ["42"], sandbox)


async def test_session_keeps_its_sandbox_and_ends_it(endpoint: Endpoint) -> None:
    async with http_client(endpoint.url, endpoint.key, "legacy") as client:
        first, second = await asyncio.gather(*(client.call_tool("run_code", {"code": f"x{n} = {n}"}) for n in range(2)))
        assert first.structured_content["sandbox"] == second.structured_content["sandbox"]
        assert (await client.call_tool("run_code", {"code": "x0 + x1"})).structured_content["results"] == ["1"]
        assert endpoint.at.sandboxes.count == 1
    await until(lambda: endpoint.at.sandboxes.count == 0)


async def test_call_without_session_and_sandbox_gets_a_new_sandbox(endpoint: Endpoint) -> None:
    async with http_client(endpoint.url, endpoint.key, "2026-07-28") as client:
        ids = [(await client.call_tool("run_code", {"code": "1"})).structured_content["sandbox"] for _ in range(2)]
    assert len(set(ids)) == 2


async def test_ended_sandbox_of_a_session_is_reported_and_replaced(endpoint: Endpoint) -> None:
    async with http_client(endpoint.url, endpoint.key, "legacy") as client:
        sandbox = (await client.call_tool("run_code", {"code": "x = 1"})).structured_content["sandbox"]
        await endpoint.at.node.sandboxes.kill(OPERATOR, sandbox)
        gone = await client.call_tool("run_code", {"code": "x"})
        assert gone.is_error
        assert "The next call without `sandbox` starts a new sandbox" in text(gone)
        assert (await client.call_tool("run_code", {"code": "2"})).structured_content["sandbox"] != sandbox


async def test_tools_about_sandboxes(endpoint: Endpoint, era: str) -> None:
    async with http_client(endpoint.url, endpoint.key, era) as client:
        created = await client.call_tool("create_sandbox", {"name": "mine", "template": "base", "network": "none", "timeout": 100})
        sandbox = created.structured_content["sandbox"]
        (listed,) = (await client.call_tool("list_sandboxes")).structured_content["sandboxes"]
        assert (listed["id"], listed["name"], listed["template"], listed["state"]) == (sandbox, "mine", "base", "running")
        assert (await client.call_tool("list_ports", {"sandbox": "mine"})).structured_content["ports"] == []
        refusals = (await client.call_tool("list_network_refusals", {"sandbox": "mine"})).structured_content
        assert (refusals["mode"], refusals["refusals"]) == ("none", [])
        assert (await client.call_tool("run_command", {"command": "echo hi", "sandbox": "mine"})).structured_content["stdout"] == "hi\n"
        for tool in ("snapshot_sandbox", "fork_sandbox"):
            refused = await client.call_tool(tool, {"sandbox": "mine"})
            assert refused.is_error  # the driver in memory of this test has no snapshots
            assert refused.structured_content["error"]["code"] == "unsupported"
        assert not (await client.call_tool("kill_sandbox", {"sandbox": "mine"})).is_error
        assert (await client.call_tool("list_sandboxes")).structured_content["sandboxes"] == []


@cases(
    "name, arguments, word",
    [
        ("nonsense", {}, "no tool 'nonsense'"),
        ("run_code", {}, "`code` is missing"),
        ("run_code", {"code": 7}, "must be a text"),
        ("run_code", {"code": "1", "sandbox": "sb-none"}, "no sandbox"),
        ("kill_sandbox", {}, "`sandbox` is missing"),
        ("create_sandbox", {"template": "nowhere"}, "nowhere"),
        ("create_sandbox", {"network": "everything"}, "none, packages, internet"),
        ("fork_sandbox", {"sandbox": "x", "count": 1000}, "at most 10"),
    ],
)
async def test_wrong_call_is_a_result_that_a_model_can_read(endpoint: Endpoint, name: str, arguments: dict[str, Any], word: str) -> None:
    for era in ERAS:
        async with http_client(endpoint.url, endpoint.key, era) as client:
            result = await client.call_tool(name, arguments)
            assert result.is_error
            assert word in text(result)


async def test_image_is_returned_and_file_is_a_resource(endpoint: Endpoint, era: str) -> None:
    async with http_client(endpoint.url, endpoint.key, era) as client:
        sandbox = (await client.call_tool("write_file", {"path": "/workspace/ä b.txt", "content": "text"})).structured_content["sandbox"]
        backend = endpoint.at.node.files
        content = png(2, 2)

        async def one() -> Any:  # noqa: ANN401 - an iterator
            yield content

        await backend.write(OPERATOR, sandbox, "/workspace/a.png", one())
        shown = await client.call_tool("read_file", {"path": "a.png", "sandbox": sandbox})
        (image,) = [each for each in shown.content if each.type == "image"]
        assert (image.mime_type, base64.b64decode(image.data)) == ("image/png", content)
        (template,) = (await client.list_resource_templates()).resource_templates
        assert template.uri_template == "sandlot://{sandbox}/files/{+path}"
        assert await resource(client, f"sandlot://{sandbox}/files/workspace/%C3%A4%20b.txt") == "text"
        assert await resource(client, f"sandlot://{sandbox}/files/workspace/a.png") == content
        for uri in (f"sandlot://{sandbox}/files/workspace/none", f"sandlot://{sandbox}/other", "file:///etc/passwd"):
            with pytest.raises(MCPError):
                await client.read_resource(uri)


LARGE = png(8, 8) + bytes(2_000_000)
"""An image whose message is larger than a server-sent event may be."""


async def ignore(progress: float, total: float | None, message: str | None) -> None:
    del progress, total, message


@cases("mode, watch, shown", [(ERAS[0], None, []), (ERAS[1], None, [LARGE]), (ERAS[1], ignore, [])])
async def test_large_image_is_shown_unless_the_response_is_a_stream_of_events(endpoint: Endpoint, mode: str, watch: Any, shown: list[bytes]) -> None:  # noqa: ANN401
    async def plot(cell: Cell) -> None:
        cell.display({"image/png": LARGE})

    async with http_client(endpoint.url, endpoint.key, mode) as client:
        sandbox = (await client.call_tool("run_code", {"code": "1"})).structured_content["sandbox"]
        endpoint.at.driver.booted[-1].guest.kernels.scripts = {"plot()": plot}
        await endpoint.at.node.files.write(OPERATOR, sandbox, "/tmp/large.png", chunks(LARGE))
        await endpoint.at.node.files.write(OPERATOR, sandbox, "/tmp/small.png", chunks(png(2, 2)))
        for name, arguments in (("read_file", {"path": "/tmp/large.png"}), ("run_code", {"code": "plot()"})):
            result = await client.call_tool(name, {**arguments, "sandbox": sandbox}, progress_callback=watch)
            assert [base64.b64decode(each.data) for each in result.content if each.type == "image"] == shown
            files = result.structured_content.get("image_files", [])
            links = [str(each.uri) for each in result.content if each.type == "resource_link"]
            assert links == [f"sandlot://{sandbox}/files{file}" for file in files]
            if not shown:
                (file,) = files
                assert f"image saved at {file}" in text(result)
                stored = await endpoint.at.node.files.read(OPERATOR, sandbox, file)
                assert b"".join([chunk async for chunk in stored]) == LARGE
        small = await client.call_tool("read_file", {"path": "/tmp/small.png", "sandbox": sandbox}, progress_callback=watch)
        assert [each.type for each in small.content] == ["text", "image"]  # the session goes on


async def test_image_of_a_session_fills_an_event_that_the_client_takes(endpoint: Endpoint) -> None:
    async with http_client(endpoint.url, endpoint.key, "legacy") as client:
        sandbox = (await client.call_tool("run_code", {"code": "1"})).structured_content["sandbox"]
        content = png(8, 8)
        content += bytes((MAX_EVENT_BYTES - 2 * ENVELOPE_BYTES) * 3 // 4 - len(content))
        await endpoint.at.node.files.write(OPERATOR, sandbox, "/tmp/large.png", chunks(content))
        result = await client.call_tool("read_file", {"path": "/tmp/large.png", "sandbox": sandbox})
        assert [each.type for each in result.content] == ["text", "image"]


async def test_long_output_links_the_resource_that_has_all_of_it(endpoint: Endpoint, era: str) -> None:
    async with http_client(endpoint.url, endpoint.key, era) as client:
        result = await client.call_tool("run_code", {"code": "print('x' * 50000)"})
        (link,) = [each for each in result.content if each.type == "resource_link"]
        assert await resource(client, str(link.uri)) == "x" * 50000


async def test_progress_has_the_last_line_of_output(endpoint: Endpoint, era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandlot.mcp.server.PROGRESS_S", 0.02)
    seen: list[str] = []
    done = asyncio.Event()

    async def watch(progress: float, total: float | None, message: str | None) -> None:
        del progress, total
        seen.append(message or "")
        if message == "working":
            done.set()

    async with http_client(endpoint.url, endpoint.key, era) as client:
        sandbox = (await client.call_tool("create_sandbox", {"template": "base"})).structured_content["sandbox"]
        command = {"command": "echo begun; echo working; sleep 1000", "sandbox": sandbox}
        running = asyncio.create_task(client.call_tool("run_command", command, progress_callback=watch))
        await done.wait()
        assert seen[0].startswith("running for")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_cancelled_call_stops_its_program_and_frees_the_sandbox(endpoint: Endpoint, era: str) -> None:
    async with http_client(endpoint.url, endpoint.key, era) as client:
        sandbox = (await client.call_tool("run_code", {"code": "import time"})).structured_content["sandbox"]
        code = {"code": "print('begun')\ntime.sleep(1000)", "sandbox": sandbox}
        running = asyncio.create_task(client.call_tool("run_code", code))

        async def is_busy() -> bool:
            return (await endpoint.at.node.contexts.get(OPERATOR, sandbox, "default")).state == "busy"

        await until(is_busy)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await client.call_tool("run_code", {"code": "'free'", "sandbox": sandbox})).structured_content["results"] == ["'free'"]


async def test_request_without_key_is_refused_with_the_scheme(endpoint: Endpoint) -> None:
    async with httpx.AsyncClient(trust_env=False) as http:
        for headers in (ACCEPT, {**ACCEPT, "Authorization": "Bearer wrong"}):
            response = await http.post(endpoint.url, json=INITIALIZE, headers=headers)
            assert (response.status_code, response.headers["WWW-Authenticate"]) == (401, "Bearer")


async def test_session_of_another_key_does_not_exist(endpoint: Endpoint) -> None:
    other = await endpoint.new_key()
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        opened = await http.post(endpoint.url, json=INITIALIZE, headers=authorized(endpoint.key))
        session = {"Mcp-Session-Id": opened.headers["Mcp-Session-Id"]}
        ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
        assert (await http.post(endpoint.url, json=ping, headers=authorized(endpoint.key) | session)).status_code == 200
        for method in ("POST", "GET", "DELETE"):
            refused = await http.request(method, endpoint.url, json=ping, headers=authorized(other) | session)
            assert refused.status_code == 404
        assert (await http.post(endpoint.url, json=ping, headers=authorized(endpoint.key) | session)).status_code == 200


async def test_sandbox_of_another_key_does_not_exist(endpoint: Endpoint, era: str) -> None:
    async with http_client(endpoint.url, endpoint.key, era) as client:
        sandbox = (await client.call_tool("run_code", {"code": "1"})).structured_content["sandbox"]
        async with http_client(endpoint.url, await endpoint.new_key(), era) as other:
            for name, arguments in (
                ("run_code", {"code": "1"}),
                ("read_file", {"path": "/etc/passwd"}),
                ("kill_sandbox", {}),
                ("list_ports", {}),
                ("snapshot_sandbox", {}),
                ("fork_sandbox", {}),
                ("list_network_refusals", {}),
            ):
                result = await other.call_tool(name, {**arguments, "sandbox": sandbox})
                assert (result.is_error, result.structured_content["error"]["code"]) == (True, "sandbox_not_found"), name
            assert (await other.call_tool("list_sandboxes")).structured_content["sandboxes"] == []
            with pytest.raises(MCPError):
                await other.read_resource(f"sandlot://{sandbox}/files/etc/passwd")


@cases(
    "headers, status",
    [
        ({}, 200),
        ({"Host": "localhost:9"}, 200),
        ({"Host": "Sandbox.test"}, 200),
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1.evil.example"}, 421),
        ({"Host": "sandbox.test.evil.example"}, 421),
        ({"Host": "localhost:9", "Origin": "http://localhost:9"}, 200),
        ({"Host": "localhost:9", "Origin": "http://localhost:10"}, 403),
        ({"Origin": "https://sandbox.test"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
async def test_requests_of_strange_pages_are_refused(endpoint: Endpoint, headers: dict[str, str], status: int) -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        response = await http.post(endpoint.url, json=INITIALIZE, headers=authorized(endpoint.key) | headers)
    assert response.status_code == status


async def test_key_has_a_share_of_the_sessions(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_sessions, "MAX_SESSIONS_PER_OWNER", 2)
    other = await endpoint.new_key()
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        statuses = [(await http.post(endpoint.url, json=INITIALIZE, headers=authorized(endpoint.key))).status_code for _ in range(3)]
        assert statuses == [200, 200, 503]
        assert (await http.post(endpoint.url, json=INITIALIZE, headers=authorized(other))).status_code == 200


async def test_huge_body_is_refused(endpoint: Endpoint) -> None:
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "run_code", "arguments": {"code": "x" * 5_000_000}}}
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        assert (await http.post(endpoint.url, json=call, headers=authorized(endpoint.key))).status_code == 413
    async with http_client(endpoint.url, endpoint.key, "2026-07-28") as client:
        result = await client.call_tool("run_code", {"code": "x" * 2_097_152})
        assert result.is_error
        assert "at most 1,048,576" in text(result)


async def test_results_take_memory_of_the_key_until_they_are_sent(endpoint: Endpoint, era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = await endpoint.at.service.api_keys.list()
    budget = endpoint.at.node.buffers.of(keys[0].id)
    async with http_client(endpoint.url, endpoint.key, era) as client:
        sandbox = (await client.call_tool("create_sandbox", {"template": "base"})).structured_content["sandbox"]
        call = {"code": "print('x' * 20000)", "sandbox": sandbox}
        assert not (await client.call_tool("run_code", call)).is_error
        await until(lambda: budget.taken_bytes == 0)
        with monkeypatch.context() as patched:
            patched.setattr("sandlot.mcp.server.COPIES", 1_000_000)
            refused = await client.call_tool("run_code", call)
        assert (refused.is_error, refused.structured_content["error"]["code"]) == (True, "busy")
        await until(lambda: budget.taken_bytes == 0)
        assert not (await client.call_tool("run_code", call)).is_error


@asynccontextmanager
async def relay(address: str, flow: asyncio.Event) -> AsyncIterator[str]:
    """Relay connections to an address. Responses are read only while ``flow`` is set, through buffers of a few KiB."""
    host, _, port = address.removeprefix("http://").partition(":")

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event | None = None) -> None:
        try:
            while gate is None or await gate.wait():
                if not (data := await reader.read(4096)):
                    break
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner = socket.socket()
        inner.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        inner.setblocking(False)
        await asyncio.get_running_loop().sock_connect(inner, (host, int(port)))
        from_server, to_server = await asyncio.open_connection(sock=inner, limit=4096)
        async with asyncio.TaskGroup() as group:
            group.create_task(pump(reader, to_server))
            group.create_task(pump(from_server, writer, flow))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_slow_reader_holds_the_memory_of_its_key_only_and_gets_its_result(endpoint: Endpoint) -> None:
    era = ERAS[-1]  # in the other one, such an image is not shown
    keys = await endpoint.at.service.api_keys.list()
    budget, flow, call = endpoint.at.node.buffers.of(keys[0].id), asyncio.Event(), {"path": "/tmp/large.png"}
    flow.set()
    async with relay(endpoint.base, flow) as slow, http_client(f"{slow}/mcp", endpoint.key, era) as reader:
        sandbox = (await reader.call_tool("create_sandbox", {"template": "base"})).structured_content["sandbox"]
        await endpoint.at.node.files.write(OPERATOR, sandbox, call["path"], chunks(png(8, 8) + bytes(3_000_000)))
        await until(lambda: budget.taken_bytes == 0)
        flow.clear()
        reading = asyncio.create_task(reader.call_tool("read_file", {**call, "sandbox": sandbox}))
        await until(lambda: budget.taken_bytes > 0)
        async with http_client(endpoint.url, await endpoint.new_key(), era) as other:
            for _ in range(3):
                assert not (await other.call_tool("list_sandboxes")).is_error
        assert not reading.done()
        assert 0 < budget.taken_bytes < (COPIES + 2) * 4_000_100  # with the response that waits to be sent
        flow.set()
        (image,) = [each for each in (await reading).content if each.type == "image"]
        assert len(image.data) > 4_000_000
        await until(lambda: budget.taken_bytes == 0)


async def chunks(content: bytes) -> AsyncIterator[bytes]:
    yield content


async def test_revoked_key_ends_its_running_call(endpoint: Endpoint, era: str) -> None:
    record, key = await endpoint.at.service.api_keys.create("revoked")
    async with http_client(endpoint.url, endpoint.key, era) as mine:
        async with http_client(endpoint.url, key, era) as client:
            sandbox = (await client.call_tool("create_sandbox", {"template": "base"})).structured_content["sandbox"]
            running = asyncio.create_task(client.call_tool("run_command", {"command": "sleep 1000", "sandbox": sandbox}))

            async def runs() -> bool:
                return any(each.running for each in await endpoint.at.node.processes.list(OPERATOR, sandbox))

            await until(runs)
            await endpoint.at.service.api_keys.revoke(record.id)

            async def ended() -> bool:
                return not any(each.running for each in await endpoint.at.node.processes.list(OPERATOR, sandbox))

            await until(ended)
            running.cancel()
            with pytest.raises((asyncio.CancelledError, MCPError)):
                await running
        assert (await mine.call_tool("list_sandboxes")).structured_content["sandboxes"] == []
