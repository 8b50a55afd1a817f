"""Ports inside a sandbox, reached by Tensorlake's own tunnels: an ordinary client speaks to the local end, a program inside answers."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
import websocket
from tensorlake.sandbox import Sandbox, TcpTunnel
from tensorlake.sandbox.exceptions import SandboxError
from tensorlake.sandbox.tunnel import AsyncTcpTunnel

from tests.compat.tensorlake.asking import MIB, until_so
from tests.compat.tensorlake.test_tensorlake import relayed
from tests.support.tcpservice import TcpService

LARGE = 20 * MIB
MORE_THAN_BUFFERS = 64 * MIB
"""More than all buffers between the program and its client can hold. Linux lets a socket have up to 36 MiB (tcp_rmem and tcp_wmem of large hosts)."""

INSIDE = f"""
import hashlib, select, socket, threading
def line_of(connection):
    line = b""
    while not line.endswith(b"\\n"):
        line += connection.recv(1)
    return line.decode().split()
def serve(connection):
    word, *name = line_of(connection)
    try:
        if word == "echo":
            while piece := connection.recv(65536):
                connection.sendall(piece)
        elif word == "hash":
            digest = hashlib.sha256()
            while piece := connection.recv(65536):
                digest.update(piece)
            connection.sendall(digest.hexdigest().encode())
        elif word == "send":
            connection.sendall(bytes(range(256)) * {LARGE // 256})
        elif word == "press":
            left = memoryview(bytes(range(256)) * {MORE_THAN_BUFFERS // 256})
            connection.setblocking(False)
            while left:
                if select.select([], [connection], [], 1)[1]:
                    left = left[connection.send(left):]
                else:
                    print("full", flush=True)
        elif word == "told":
            connection.sendall(b"ready")
            print(*name, "end" if not connection.recv(1) else "more", flush=True)
    except ConnectionResetError:
        print(*name, "reset", flush=True)
    connection.close()
listener = socket.create_server(("127.0.0.1", 7001), backlog=128)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


@pytest.fixture(scope="module", autouse=True)
def listening(box: Sandbox) -> Iterator[None]:
    """What listens inside: a web server on 8000, and a program of our own on 7001."""
    box.write_file("/workspace/site/index.html", b"from the inside")
    served = box.start_process("python3", ["-m", "http.server", "8000", "--directory", "/workspace/site"])
    program = box.start_process("python3", ["-c", INSIDE], name="tunnelled")
    until_so(lambda: _listens(box))
    yield
    for each in (served, program):
        box.kill_process(each.pid)


def _listens(box: Sandbox) -> bool:
    told = box.run("cat", ["/proc/net/tcp"]).stdout
    return all(f":{port:04X} 00000000:0000 0A" in told for port in (8000, 7001))  # 0A: a socket that is only bound is listed in gVisor, too


@pytest.fixture
def tunnel(box: Sandbox) -> Iterator[TcpTunnel]:
    with box.create_tunnel(7001, local_port=0) as made:
        yield made


def dial(tunnel: TcpTunnel, word: str, receive_buffer_bytes: int | None = None) -> socket.socket:
    connection = socket.socket()
    if receive_buffer_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    connection.settimeout(60)
    connection.connect((tunnel.local_host, tunnel.local_port))
    connection.sendall(word.encode() + b"\n")
    return connection


def rest(connection: socket.socket) -> bytes:
    pieces = []
    while piece := connection.recv(65536):
        pieces.append(piece)
    return b"".join(pieces)


def test_http_client_reaches_a_web_server_inside(box: Sandbox) -> None:
    with box.create_tunnel(8000, local_port=0) as tunnel:
        assert tunnel.remote_port == 8000
        for _ in range(3):
            with urllib.request.urlopen(f"http://{tunnel.local_host}:{tunnel.local_port}/", timeout=30) as answer:
                assert answer.read() == b"from the inside"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://{tunnel.local_host}:{tunnel.local_port}/nothing", timeout=30)


def test_large_transfers_and_half_closes_pass_both_ways(tunnel: TcpTunnel) -> None:
    body = os.urandom(LARGE)
    with closing(dial(tunnel, "hash")) as connection:
        connection.sendall(body)
        connection.shutdown(socket.SHUT_WR)
        assert rest(connection).decode() == hashlib.sha256(body).hexdigest()
    with closing(dial(tunnel, "send")) as connection:
        assert hashlib.sha256(rest(connection)).digest() == hashlib.sha256(bytes(range(256)) * (LARGE // 256)).digest()


def test_early_half_close_still_receives_everything(box: Sandbox, tunnel: TcpTunnel) -> None:
    seen = len(box.get_stdout("tunnelled").lines)
    with closing(dial(tunnel, "press", receive_buffer_bytes=65536)) as connection:
        until_so(lambda: "full" in box.get_stdout("tunnelled").lines[seen:])
        connection.shutdown(socket.SHUT_WR)
        assert hashlib.sha256(rest(connection)).digest() == hashlib.sha256(bytes(range(256)) * (MORE_THAN_BUFFERS // 256)).digest()


def test_many_concurrent_requests(tunnel: TcpTunnel) -> None:
    connections = [dial(tunnel, "echo") for _ in range(40)]
    for number, connection in enumerate(connections):
        connection.sendall(b"%03d" % number)
    for number, connection in enumerate(connections):
        assert connection.recv(3) == b"%03d" % number
    for connection in connections:
        connection.close()


def test_program_sees_a_client_disconnect(box: Sandbox, tunnel: TcpTunnel, key: str) -> None:
    with closing(dial(tunnel, "told closed")) as connection:
        assert connection.recv(5) == b"ready"
    until_so(lambda: "closed end" in box.get_stdout("tunnelled").lines)
    address = f"{box.info().sandbox_url}/api/v1/tunnels/tcp?port=7001".replace("http", "ws", 1)
    cut = websocket.create_connection(address, header=[f"Authorization: Bearer {key}"])
    cut.send_binary(b"told cut\n")
    assert cut.recv() == b"ready"
    cut.shutdown()  # without a Close, as a client that was killed
    until_so(lambda: "cut reset" in box.get_stdout("tunnelled").lines)


def test_closing_a_tunnel_closes_its_connections(box: Sandbox) -> None:
    tunnel = box.create_tunnel(7001, local_port=0)
    with closing(dial(tunnel, "told left")) as connection:
        assert connection.recv(5) == b"ready"
        tunnel.close()
        until_so(lambda: any(line.startswith("left ") for line in box.get_stdout("tunnelled").lines))
    assert tunnel.closed


def test_connection_to_a_closed_port_fails(box: Sandbox) -> None:
    with box.create_tunnel(7777, local_port=0) as tunnel, suppress(ConnectionError), closing(dial(tunnel, "echo")) as connection:
        assert rest(connection) == b""
    with pytest.raises(SandboxError):
        box.create_tunnel(0)


def test_async_client_has_tunnels(service: TcpService, key: str, box: Sandbox) -> None:
    async def echoed() -> bytes:
        headers = {"Authorization": f"Bearer {key}", "X-Tensorlake-Sandbox-Id": box.sandbox_id}
        async with await AsyncTcpTunnel.listen(base_url=service.url, ws_headers=headers, remote_port=7001, local_port=0) as made:
            reader, writer = await asyncio.open_connection(made.local_host, made.local_port)
            writer.write(b"echo\nasync")
            heard = await reader.readexactly(5)
            writer.close()
            await writer.wait_closed()
            return heard

    assert asyncio.run(echoed()) == b"async"


def test_tunnel_address_is_reported(box: Sandbox, key: str, service: TcpService) -> None:
    """By hand: the port, the sandbox in the path or in the header, whose it is, and what is no byte of a tunnel."""
    there = f"{box.info().sandbox_url}/api/v1/tunnels/tcp".replace("http", "ws", 1)
    root = f"ws://127.0.0.1:{service.port}/api/v1/tunnels/tcp"
    mine = [f"Authorization: Bearer {key}"]
    ways: list[tuple[str, list[str], str | None]] = [
        (there, [], None),
        (root, [f"X-Tensorlake-Sandbox-Id: {box.sandbox_id}"], None),
        (root, [], f"{box.sandbox_id}.local"),
        (root, [], f"{box.sandbox_id}.local:{service.port}"),
    ]
    for address, headers, host in ways:
        with closing(websocket.create_connection(f"{address}?port=7001", header=[*mine, *headers], host=host, timeout=60)) as opened:
            opened.send_binary(b"echo\nhere")
            assert opened.recv() == b"here"
            opened.send("text")
            opcode, data = opened.recv_data()
            assert (opcode, int.from_bytes(data[:2], "big")) == (websocket.ABNF.OPCODE_CLOSE, 1008)
    theirs = [f"Authorization: Bearer {service.key('another')}"]
    refusals: list[tuple[str, list[str], int]] = [
        (f"{there}?port=7777", mine, 404),
        (there, mine, 400),
        (f"{there}?port=0", mine, 400),
        (f"{there}?port=x", mine, 400),
        (f"{there}?port=7001&host=10.0.0.1", mine, 400),
        (f"{there}?port=7001", theirs, 404),
        (f"{there}?port=7001", [], 401),
        (f"{root}?port=7001", mine, 400),
    ]
    for address, headers, status in refusals:
        with pytest.raises(websocket.WebSocketBadStatusException) as refused:
            websocket.create_connection(address, header=headers)
        assert refused.value.status_code == status, address
        assert json.loads(refused.value.resp_body or b"")["error"]


ELSEWHERE = """
import socket, sys, time
from tensorlake.sandbox import Sandbox
box = Sandbox.create(cpus=1.0, memory_mb=512, timeout_secs=120)
try:
    box.write_file("/workspace/x.txt", b"far away")
    box.start_process("python3", ["-m", "http.server", "8000"], working_dir="/workspace")
    while ":1F40 00000000:0000 0A" not in box.run("cat", ["/proc/net/tcp"]).stdout:
        time.sleep(0.05)
    with box.create_tunnel(8000, local_port=0) as tunnel:
        connection = socket.create_connection((tunnel.local_host, tunnel.local_port), timeout=60)
        connection.sendall(b"GET /x.txt HTTP/1.0\\r\\n\\r\\n")
        print(b"far away" in b"".join(iter(lambda: connection.recv(65536), b"")))
finally:
    box.terminate()
"""


def test_tunnels_work_from_another_host(service: TcpService, tmp_path: Path) -> None:
    with relayed(service.port, "127.0.0.3") as port:
        url = f"http://127.0.0.3:{port}/tensorlake"
        env = {
            "TENSORLAKE_API_URL": url,
            "TENSORLAKE_SANDBOX_API_URL": url,
            "TENSORLAKE_API_KEY": service.key("far"),
            "PYTHONWARNINGS": "ignore",
        }
        done = subprocess.run([sys.executable, "-c", ELSEWHERE], env={**os.environ, **env}, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
