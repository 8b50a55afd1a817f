"""Tunnels to ports in sandboxes: by both clients, by ``sandlot forward``, and through kill, idle timeout, hibernation and fork of the sandbox."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress

import pytest

from sandlot import AsyncClient, AsyncSandbox, Network, Sandbox
from sandlot.cli.main import dispatch
from sandlot.model.errors import ConflictError, ErrorCode, SandlotError
from sandlot.model.specs import MIB
from sandlot.sdk import Tunnel
from tests.support.localservice import EVERY_DAY, ON_GVISOR, LocalService, local_service

LARGE = 6 * MIB
"""More than the buffers between a program inside and a client hold, so that a download is cut in the middle."""
PATIENCE_S = 150

INSIDE = f"""
import hashlib, socket, sys, threading
def line_of(connection):
    line = b""
    while not line.endswith(b"\\n"):
        line += connection.recv(1)
    return line.decode().split()
def tell(word):
    with open("/tmp/told", "a") as file:
        print(word, file=file)
def serve(connection):
    try:
        word = line_of(connection)[0]
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
        elif word == "told":
            connection.sendall(b"ready")
            tell("end" if not connection.recv(1) else "more")
    except ConnectionError:
        tell("reset")
    connection.close()
open("/tmp/told", "w").close()
listener = socket.create_server(("127.0.0.1", 7001), backlog=128)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


@pytest.fixture(scope="module", params=EVERY_DAY)
def service(request: pytest.FixtureRequest) -> Iterator[LocalService]:
    with local_service(isolation=request.param) as running:
        yield running


@pytest.fixture(scope="module")
def sandbox(service: LocalService) -> Iterator[Sandbox]:
    with listening_in(service) as made:
        yield made


def listening_in(service: LocalService) -> Sandbox:
    """Create a sandbox without network in which ``INSIDE`` listens on port 7001."""
    made = service.create(network=Network("none"))
    made.commands.run(["python3", "-c", INSIDE], background=True)
    until(lambda: any(each.port == 7001 for each in made.ports()))
    return made


def until(happened: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    for _ in range(3000):
        if happened():
            return
        time.sleep(0.02)
    raise AssertionError("it never happened")


def told(sandbox: Sandbox) -> list[str]:
    return sandbox.commands.run("cat /tmp/told").stdout.split()


def say(sandbox: Sandbox, word: str) -> Tunnel:
    tunnel = sandbox.tunnel(7001)
    tunnel.send(word.encode() + b"\n")
    return tunnel


def dial(address: str, word: str) -> socket.socket:
    host, _, port = address.partition(":")
    connection = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
    connection.sendall(word.encode() + b"\n")
    return connection


def rest(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(65536), b""))


# ---------------------------------------------------------------------------------------------------------------- one tunnel


@ON_GVISOR
def test_closing_a_tunnel_resets_the_connection_inside(sandbox: Sandbox) -> None:
    before = len(told(sandbox))
    with say(sandbox, "told") as tunnel:
        assert tunnel.receive() == b"ready"
    until(lambda: len(told(sandbox)) > before)
    assert told(sandbox)[-1] == "reset"


# ------------------------------------------------------------------------------------------------------------ forwarded ports


def test_forwarded_bytes_pass_whole_until_the_forward_is_closed(sandbox: Sandbox) -> None:
    failures: list[SandlotError] = []
    with sandbox.forward(7001) as forward, sandbox.forward(7777, on_error=failures.append) as nothing:
        body = os.urandom(LARGE)
        with closing(dial(forward.address, "hash")) as connection:
            connection.sendall(body)
            connection.shutdown(socket.SHUT_WR)
            assert rest(connection).decode() == hashlib.sha256(body).hexdigest()
        with closing(dial(forward.address, "send")) as connection:
            assert hashlib.sha256(rest(connection)).digest() == hashlib.sha256(bytes(range(256)) * (LARGE // 256)).digest()
        with suppress(ConnectionError), closing(dial(nothing.address, "echo")) as connection:
            assert rest(connection) == b""
        until(lambda: [each.code for each in failures] == [ErrorCode.PORT_NOT_FOUND])
        left = dial(forward.address, "told")
        assert left.recv(5) == b"ready"
        before = len(told(sandbox))
    with closing(left), suppress(ConnectionResetError):
        assert rest(left) == b""
    until(lambda: len(told(sandbox)) > before)


async def test_killing_a_sandbox_resets_its_tunnels_and_forwarded_connections(service: LocalService) -> None:
    box = await asyncio.to_thread(listening_in, service)
    async with (
        AsyncClient(data_dir=service.data_dir, autostart=False) as client,
        await (await AsyncSandbox.connect(box.id, client=client)).forward(7001) as forward,
    ):
        reader, writer = await asyncio.open_connection(forward.local_host, forward.local_port)
        with closing(writer):
            writer.write(b"send\n")
            assert await reader.readexactly(1) == b"\0"
            await asyncio.to_thread(_cut_with_its_sandbox, box)
            with pytest.raises(ConnectionResetError):
                await reader.read()


def _cut_with_its_sandbox(box: Sandbox) -> None:
    """Kill a sandbox under a tunnel and a download of the synchronous client; neither of them looks finished."""
    with box.forward(7001) as forward, closing(dial(forward.address, "send")) as connection, say(box, "told") as tunnel:
        assert connection.recv(1) == b"\0"
        assert tunnel.receive() == b"ready"
        box.kill()
        with pytest.raises(ConnectionResetError):
            rest(connection)
        with pytest.raises(SandlotError) as ended:
            tunnel.receive()
        assert ended.value.code is ErrorCode.SANDBOX_ENDED


@pytest.mark.slow
@ON_GVISOR
def test_forward_command_listens_until_it_is_interrupted(
    service: LocalService, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SANDLOT_DATA_DIR", str(service.data_dir))
    env = {**os.environ, "SANDLOT_DATA_DIR": str(service.data_dir)}
    env.pop("SANDLOT_URL", None)
    command = [sys.executable, "-P", "-m", "sandlot.cli", "forward", sandbox.id]
    running = subprocess.Popen([*command, "0:7001", "0:7777"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, text=True)
    assert running.stdout is not None
    addresses = [running.stdout.readline().strip() for _ in range(2)]
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+", each) for each in addresses)
    with closing(dial(addresses[0], "echo")) as connection:
        connection.sendall(b"by hand")
        assert connection.recv(7) == b"by hand"
    with suppress(ConnectionError), closing(dial(addresses[1], "echo")) as connection:
        assert rest(connection) == b""
    assert dispatch(["forward", sandbox.id, f"{addresses[0].partition(':')[2]}:7001"]) == 1
    assert "Cannot listen on port" in capsys.readouterr().err
    assert dispatch(["forward", sandbox.id, "7001:x"]) == 2
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=PATIENCE_S)
    assert (running.returncode, out) == (0, "")
    assert "Nothing listens on port 7777" in err


# ------------------------------------------------------------------------------------------------------ what becomes of tunnels


@pytest.mark.slow
@ON_GVISOR
def test_traffic_keeps_a_sandbox_alive_and_an_open_tunnel_does_not(service: LocalService) -> None:
    with listening_in(service) as box:
        assert [each.running for each in box.commands.list()] == [True], "it listens in the background and does nothing"
        box.update(idle_timeout=5)
        with say(box, "echo") as tunnel:
            for _ in range(16):
                tunnel.send(b"x")
                assert tunnel.receive() == b"x"
                time.sleep(0.4)  # longer than the idle timeout in all
            assert box.info().state == "running"
            with pytest.raises(SandlotError):  # its sandbox is ended under it
                tunnel.receive()


@pytest.mark.slow
@ON_GVISOR
def test_fork_has_none_of_the_tunnels_of_its_parent(service: LocalService) -> None:
    with listening_in(service) as box, say(box, "told") as tunnel, say(box, "echo") as other:
        assert tunnel.receive() == b"ready"
        [copy] = box.fork(1)
        with copy:
            until(lambda: told(copy) == ["reset", "reset"])
            with say(copy, "echo") as inner:
                inner.send(b"copy")
                assert inner.receive() == b"copy"
        other.send(b"parent")
        assert other.receive() == b"parent"
        assert told(box) == []
        tunnel.end()
        until(lambda: told(box) == ["end"])


@pytest.mark.slow
@ON_GVISOR
def test_hibernation_ends_tunnels_and_a_new_tunnel_wakes_the_sandbox(service: LocalService) -> None:
    with listening_in(service) as box:
        tunnel = say(box, "told")
        assert tunnel.receive() == b"ready"
        box.hibernate()
        with pytest.raises(ConflictError) as cut:
            tunnel.receive()
        assert cut.value.code is ErrorCode.SANDBOX_PAUSED
        tunnel.close()
        for rest_ in (None, box.pause):
            if rest_ is not None:
                rest_()
            with say(box, "echo") as again:
                again.send(b"awake")
                assert again.receive() == b"awake"
        assert told(box)[0] == "reset"


def of_the_guest(sandbox: Sandbox) -> str:
    return sandbox.commands.run("ls /proc/1/fd | wc -l", user="root").stdout.strip()


@pytest.mark.slow
def test_a_hundred_tunnels_leave_no_descriptor(service: LocalService, sandbox: Sandbox) -> None:
    sandbox.tunnel(7001).close()
    before, inside = service.descriptors(), of_the_guest(sandbox)
    with sandbox.forward(7001) as forward:
        for number in range(100):
            with closing(dial(forward.address, "echo")) as connection:
                connection.sendall(b"x")
                assert connection.recv(1) == b"x"
                if number % 3 == 0:
                    connection.shutdown(socket.SHUT_WR)
                    assert rest(connection) == b""
    until(lambda: not service.descriptors() - before and of_the_guest(sandbox) == inside)
