"""Promise: a real MCP client drives every tool in real sandboxes, over stdio and HTTP, in both eras of the protocol."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from mcp import Client, StdioServerParameters

from sandlot.mcp import tools
from tests.support.mcp_client import ERAS, http_client, resource, text
from tests.support.tcpservice import TcpService, tcp_service
from tests.support.until import until

TRANSPORTS = ("stdio", "http")
CLIENT_MARKS: Mapping[tuple[str, str], Sequence[pytest.MarkDecorator]] = {("http", ERAS[-1]): (), ("stdio", "legacy"): (pytest.mark.slow,)}
"""Marks of clients by transport and revision. The other two combinations run in ``scripts/soak``."""


@pytest.fixture(scope="module")
def service() -> Iterator[TcpService]:
    with tcp_service({"SANDLOT_PREVIEW_PORT": "0"}) as running:
        yield running


@pytest.fixture(scope="module")
def key(service: TcpService) -> str:
    return service.key("model")


class Watch:
    """Notices when a program has printed ``begun``."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        del progress, total
        if message == "begun":
            self.begun.set()


@asynccontextmanager
async def connected(service: TcpService, key: str, transport: str, mode: str, **options: Any) -> AsyncIterator[Client]:  # noqa: ANN401 - of the client
    if transport == "http":
        async with http_client(f"{service.url}/mcp", key, mode, **options) as client:
            yield client
        return
    env = {"SANDLOT_URL": service.url, "SANDLOT_API_KEY": key, "PATH": os.environ["PATH"]}
    server = StdioServerParameters(command=sys.executable, args=["-m", "sandlot.cli", "mcp", "--template", "code-interpreter"], env=env)
    async with Client(server, mode=mode, **options) as client:
        yield client


@pytest.fixture(
    params=[
        pytest.param(f"{transport} {mode}", marks=CLIENT_MARKS.get((transport, mode), pytest.mark.soak)) for transport in TRANSPORTS for mode in ERAS
    ]
)
async def client(service: TcpService, key: str, request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    transport, mode = request.param.split()
    async with connected(service, key, transport, mode) as made:
        yield made


async def test_client_drives_every_tool(client: Client) -> None:
    used: set[str] = set()

    async def call(name: str, **arguments: Any) -> Any:  # noqa: ANN401 - a result
        used.add(name)
        result = await client.call_tool(name, arguments)
        assert not result.is_error, text(result)
        return result

    assert {each.name for each in (await client.list_tools()).tools} == tools.ALL.keys()
    first = await call("run_code", code="import numpy as np\nx = np.arange(7)\nx.sum()")
    assert first.structured_content["results"] == ["21"] or "21" in first.structured_content["results"][0]
    sandbox = first.structured_content["sandbox"]
    chart = await call("run_code", code="import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.show()", sandbox=sandbox)
    (image,) = [each for each in chart.content if each.type == "image"]
    assert base64.b64decode(image.data).startswith(b"\x89PNG")
    failed = await call("run_code", code="1 / 0", sandbox=sandbox)
    assert "ZeroDivisionError" in text(failed)
    assert (await call("run_command", command="nproc; exit 3", sandbox=sandbox)).structured_content["exit_code"] == 3
    await call("write_file", path="site/index.html", content="<p>one</p>\n", sandbox=sandbox)
    await call("edit_file", path="site/index.html", old_text="one", new_text="two", sandbox=sandbox)
    assert text(await call("list_files", path="site", sandbox=sandbox)) == "index.html  11 bytes"
    assert text(await call("read_file", path="site/index.html", sandbox=sandbox)) == "<p>two</p>"
    assert await resource(client, f"sandlot://{sandbox}/files/workspace/site/index.html") == "<p>two</p>\n"
    server = await call("run_command", command="cd site && exec python3 -m http.server 8000", background=True, sandbox=sandbox)
    assert server.structured_content["pid"]

    async def listens() -> bool:
        ports = (await call("list_ports", sandbox=sandbox)).structured_content["ports"]
        return 8000 in [each["port"] for each in ports]

    await until(listens)
    url = (await call("get_url", port=8000, sandbox=sandbox)).structured_content["url"]
    assert f"8000-{sandbox}" in url
    installed = await client.call_tool("install_packages", {"packages": ["--evil"], "sandbox": sandbox})
    used.add("install_packages")
    assert installed.is_error
    await call("run_command", command="python3 -c \"import socket; socket.create_connection(('192.0.2.1', 80), 2)\"", sandbox=sandbox)
    refusals = (await call("list_network_refusals", sandbox=sandbox)).structured_content["refusals"]
    assert [(each["host"], each["port"]) for each in refusals] == [("192.0.2.1", 80)]
    long = await call("run_code", code="print('\\n'.join(map(str, range(20000))))", sandbox=sandbox)
    (link,) = [each for each in long.content if each.type == "resource_link"]
    assert str(await resource(client, str(link.uri))).splitlines()[-1] == "19999"
    snapshot = (await call("snapshot_sandbox", sandbox=sandbox)).structured_content["snapshot"]
    (copy,) = (await call("fork_sandbox", sandbox=sandbox)).structured_content["copies"]
    assert "21" in text(await call("run_code", code="x.sum()", sandbox=copy))
    restored = (await call("create_sandbox", snapshot=snapshot)).structured_content["sandbox"]
    assert "21" in text(await call("run_code", code="x.sum()", sandbox=restored))
    listed = {each["id"] for each in (await call("list_sandboxes")).structured_content["sandboxes"]}
    assert {sandbox, copy, restored} <= listed
    for each in (copy, restored, sandbox):
        await call("kill_sandbox", sandbox=each)
    gone = await client.call_tool("run_code", {"code": "1", "sandbox": sandbox})
    assert gone.is_error
    assert "The sandbox is gone" in text(gone)
    assert used == tools.ALL.keys()


@pytest.mark.slow
async def test_image_of_two_megabytes_is_shown_or_named_by_its_file(service: TcpService, key: str) -> None:
    code = "import numpy, PIL.Image\nx = numpy.random.randint(0, 256, (800, 900, 3), dtype=numpy.uint8)\ndisplay(PIL.Image.fromarray(x))"
    async with connected(service, key, "http", "legacy") as session, connected(service, key, "http", "2026-07-28") as stateless:
        drawn = await session.call_tool("run_code", {"code": code})
        assert [each.type for each in drawn.content if each.type != "text"] == ["resource_link"]
        (file,) = drawn.structured_content["image_files"]
        assert f"image saved at {file}" in text(drawn)
        smaller = f"import PIL.Image\nPIL.Image.open({file!r}).resize((90, 80)).save('/tmp/small.png')"
        assert not (await session.call_tool("run_code", {"code": smaller})).is_error  # in the sandbox of the session
        shown = await session.call_tool("read_file", {"path": "/tmp/small.png"})
        assert [each.type for each in shown.content] == ["text", "image"]
        whole = await stateless.call_tool("read_file", {"path": file, "sandbox": drawn.structured_content["sandbox"]})
        (image,) = [each for each in whole.content if each.type == "image"]
        assert len(base64.b64decode(image.data)) > 2_000_000


async def test_cancelled_call_frees_its_sandbox_at_once(client: Client) -> None:
    sandbox = (await client.call_tool("run_code", {"code": "import time"})).structured_content["sandbox"]
    for code in ("time.sleep(1000)", "while True: pass", "import subprocess; subprocess.run(['sleep', '1000'])"):
        watch = Watch()
        arguments = {"code": f"print('begun', flush=True)\n{code}", "sandbox": sandbox, "timeout": 600}
        running = asyncio.create_task(client.call_tool("run_code", arguments, progress_callback=watch))
        await watch.begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        following = await client.call_tool("run_code", {"code": "time.monotonic() > 0", "sandbox": sandbox})
        assert following.structured_content["results"] == ["True"]  # the variables are kept
    await client.call_tool("kill_sandbox", {"sandbox": sandbox})


async def test_stdio_server_ends_the_sandbox_of_its_connection(service: TcpService, key: str) -> None:
    async with connected(service, key, "stdio", "legacy") as client:
        first = (await client.call_tool("run_code", {"code": "x = 1"})).structured_content["sandbox"]
        assert (await client.call_tool("run_code", {"code": "x"})).structured_content["sandbox"] == first
        assert service.client.sandboxes.get(first).state == "running"
    await until(lambda: service.client.sandboxes.get(first).state == "stopped")


async def test_stdio_server_without_key_says_so_to_the_model(service: TcpService) -> None:
    async with connected(service, "wrong", "stdio", "legacy") as client:
        result = await client.call_tool("run_code", {"code": "1"})
        assert result.is_error
        assert "API key" in text(result)


@pytest.fixture
def mortal() -> Iterator[TcpService]:
    """A service that the test kills."""
    with tcp_service() as running:
        yield running


async def test_sandbox_outlives_a_killed_service_and_its_sessions(mortal: TcpService) -> None:
    key = mortal.key("model")
    async with http_client(f"{mortal.url}/mcp", key, "2026-07-28") as client:
        sandbox = (await client.call_tool("run_code", {"code": "x = 7"})).structured_content["sandbox"]
        mortal.end(signal.SIGKILL)
        mortal.start()
        assert (await client.call_tool("run_code", {"code": "x", "sandbox": sandbox})).structured_content["results"] == ["7"]
        await client.call_tool("kill_sandbox", {"sandbox": sandbox})


def test_client_of_a_revision_without_key_is_told_the_scheme(service: TcpService) -> None:
    response = httpx.post(f"{service.url}/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "ping"}, trust_env=False)
    assert (response.status_code, response.headers["WWW-Authenticate"]) == (401, "Bearer")
