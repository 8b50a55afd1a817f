"""Promise: the package index is all that a sandbox reaches, whatever it asks of it; and whoever floods it harms nobody else.

A listener stands on the host's loopback and counts who comes: no way of asking may make the service call there, or read a file of the host.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from sandlot import Sandbox
from sandlot.protocol.schema import PACKAGES_PORT
from tests.support.inside import IN_CONTAINERS, run_inside
from tests.support.localservice import LocalService

ASK = f"""
def ask(raw):
    with socket.create_connection(("127.0.0.1", {PACKAGES_PORT}), timeout=60) as client:
        got = b""
        try:
            client.sendall(raw)
            client.shutdown(socket.SHUT_WR)
            while piece := client.recv(65536):
                got += piece
        except OSError as error:
            got += b"<" + (errno.errorcode.get(error.errno, "timeout").encode()) + b">"
    return got.decode("latin-1")
"""


@pytest.fixture
def listener() -> Iterator[int]:
    """A port of the host's loopback to which nobody may come."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.fixture
def secret(service: LocalService) -> Iterator[str]:
    """What a file of the host holds that no answer may hold."""
    path = service.data_dir / "secret-of-the-host"
    path.write_text(service.secret)
    yield str(path)
    path.unlink()


def test_index_gives_access_to_packages_only(service: LocalService, sandbox: Sandbox, listener: int, secret: str) -> None:
    away = f"127.0.0.1:{listener}"
    up = "/".join([".."] * 12)
    targets = [
        f"http://{away}/",
        f"http://{away}/pypi/simple/six/",
        f"//{away}/",
        f"/pypi/simple/http://{away}/",
        f"/pypi/simple/http%3A%2F%2F{away}%2F/",
        f"/pypi/simple/@{away}/",
        f"/pypi/simple/six/@{away}/",
        f"/pypi/files/http://{away}/six.whl",
        f"/pypi/files/http/{away}/six.whl",
        f"/pypi/files/{away}/six.whl",
        f"/npm/http%3A%2F%2F{away}%2Fx",
        f"/npm/@{away}%2Fx",
        f"/npm/x/-/http://{away}/x.tgz",
        f"/debian/http://{away}/",
        f"/debian/@{away}/dists/bookworm/InRelease",
        f"/debian-security@{away}/x",
        *(
            f"/{root}/{way}{secret}"
            for root in ("", "pypi/simple", "pypi/files", "npm", "debian", "debian-security")
            for way in (up, up.replace("/", "%2f"))
        ),
        *(f"/{root}/{secret.lstrip('/')}" for root in ("pypi/files", "debian", "npm")),
        f"file://{secret}",
        "/metrics",
        "/healthz",
        "/v1/sandboxes",
    ]
    requests = [
        *(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{PACKAGES_PORT}\r\nConnection: close\r\n\r\n" for target in targets),
        f"CONNECT {away} HTTP/1.1\r\nHost: {away}\r\n\r\n",
        f"GET /nothing-there HTTP/1.1\r\nHost: {away}\r\nX-Forwarded-Host: {away}\r\nForwarded: host={away}\r\nConnection: close\r\n\r\n",
        f"GET /nothing-there HTTP/1.1\r\nHost: x\r\nHost: {away}\r\nConnection: close\r\n\r\n",
        f"GET / HTTP/1.1\r\nHost: x\r\nX: y\n\nGET http://{away}/ HTTP/1.1\r\nHost: {away}\r\n\r\n",
        "PUT /pypi/simple/six/ HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx",
        "DELETE /npm/left-pad HTTP/1.1\r\nHost: x\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        "GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
        "",
    ]
    for request, got in zip(requests, _asked(sandbox, *requests), strict=True):
        assert service.secret not in got, request
        assert not got.startswith("HTTP/1.1 2"), (request, got[:300])
        assert got == "" or got.startswith("<") or got.split(" ", 2)[1][0] in "45", (request, got[:300])
    assert (Path(secret)).read_text() == service.secret


@IN_CONTAINERS
def test_responses_do_not_name_the_host_index_or_credentials(sandbox: Sandbox) -> None:
    configured = [os.environ.get("PIP_INDEX_URL", ""), _said("pip", "config", "get", "global.index-url"), _said("npm", "config", "get", "registry")]
    urls = [urlsplit(url) for url in configured if url]
    names = {part for url in urls for part in (url.hostname, url.username, url.password) if part} - {"127.0.0.1", "localhost"}
    public = {f"{name}.org" for name in ("pypi", "files.pythonhosted", "registry.npmjs")}  # packages name these themselves
    found = (
        _get("/pypi/simple/six/"),
        _get("/pypi/simple/six/", "application/json"),
        _get("/npm/left-pad"),
        _get("/debian/dists/bookworm/InRelease"),
    )
    responses = _asked(sandbox, *found, _get("/pypi/simple/sandlot-no-such-package/"))
    assert [response.split(" ", 2)[1] for response in responses[: len(found)]] == ["200"] * len(found)
    for response in responses:
        assert [name for name in names - public if name in response] == []


def test_connection_flood_affects_its_own_sandbox_only(service: LocalService, sandbox: Sandbox) -> None:
    flood = f"""
import socket, time
held = []
for number in range(1000):
    client = socket.socket()
    client.setblocking(False)
    client.connect_ex(("127.0.0.1", {PACKAGES_PORT}))
    held.append(client)
print("flooding", flush=True)
while True:
    for client in held[::7]:
        try:
            client.send(b"GET /pypi/simple/six/ HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
        except OSError:
            pass
    time.sleep(0.1)
"""
    index = _get("/pypi/simple/six/")
    with service.create() as hostile:
        flooding = hostile.commands.run(["python3", "-c", flood], background=True)
        assert next(iter(flooding)).data == b"flooding\n"
        assert sandbox.commands.run("echo here").stdout == "here\n"
        assert " 200 " in _asked(sandbox, index)[0][:20]
        assert hostile.commands.run("echo here").stdout == "here\n"
        assert flooding.poll() is None
        flooding.kill()
        assert " 200 " in _asked(hostile, index)[0][:20]


def _get(path: str, accept: str = "*/*") -> str:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\nConnection: close\r\n\r\n"


def _asked(sandbox: Sandbox, *requests: str) -> list[str]:
    """The response to each request; an error's name in angle brackets where the connection was broken off."""
    program = ASK + "told['got'] = [ask(raw.encode('latin-1')) for raw in given['requests']]\n"
    responses: list[str] = run_inside(sandbox, program, given={"requests": requests})["got"]
    return responses


def _said(*argv: str) -> str:
    try:
        return subprocess.run(argv, capture_output=True, check=False, text=True, timeout=30).stdout.strip()
    except FileNotFoundError:
        return ""
