"""Promise: a tunnel leads to what listens in its own sandbox, and to nothing else; and whoever holds one end cannot make the service grow."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import closing, suppress

import pytest

from sandlot import Network, Sandbox
from sandlot.model.errors import ErrorCode, NotFoundError, SandlotError
from sandlot.model.specs import MIB
from sandlot.protocol.schema import GUEST_PORTS
from sandlot.sdk import Tunnel
from tests.support.inside import IN_CONTAINERS
from tests.support.localservice import LocalService
from tests.support.traces import memory_bytes

FLAT_BYTES = 24 * MIB
PUSHED = bytes(32 * MIB)
EVERY = "0.0.0.0"  # noqa: S104 - for an accept that must not come

SENDER = """
import socket, threading
listener = socket.create_server(("127.0.0.1", 7001), backlog=64)
def push(connection):
    try:
        while True:
            connection.sendall(bytes(1 << 20))
    except OSError:
        pass
while True:
    threading.Thread(target=push, args=(listener.accept()[0],), daemon=True).start()
"""


def test_tunnel_reaches_neither_the_host_nor_another_sandbox_nor_the_service_port(service: LocalService, sandbox: Sandbox) -> None:
    with service.create(network=Network("none")) as other:
        for address in ("127.0.0.1", "::1", EVERY, "::"):
            with socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET) as on_the_host:
                on_the_host.setblocking(False)
                for each in (sandbox, other):
                    with pytest.raises(NotFoundError) as refused:
                        each.tunnel(on_the_host.getsockname()[1])
                    assert refused.value.code is ErrorCode.PORT_NOT_FOUND
                with pytest.raises(BlockingIOError):
                    on_the_host.accept()
        for address in ("127.0.0.1", EVERY):
            port = _listening(other, address)
            other.tunnel(port).close()
            with pytest.raises(NotFoundError):
                sandbox.tunnel(port)
    for port in GUEST_PORTS:
        with pytest.raises(NotFoundError):
            sandbox.tunnel(port)


@IN_CONTAINERS
def test_tunnels_without_readers_take_bounded_memory(service: LocalService) -> None:
    with service.create() as box:
        box.commands.run(["python3", "-c", SENDER], background=True)
        port = _listening(box, "127.0.0.1")
        _wait_for(box, 7001)
        box.tunnel(7001).close()
        before, inside = memory_bytes(service.pid), _of_the_guest(box)
        floods = [box.tunnel(7001) for _ in range(20)]
        deaf = [box.tunnel(port) for _ in range(10)]
        pushing = [threading.Thread(target=_push, args=(each,), daemon=True) for each in deaf]
        for thread in pushing:
            thread.start()
        assert box.commands.run("echo here").stdout == "here\n"
        assert box.commands.run(["sleep", "1"]).exit_code == 0
        assert memory_bytes(service.pid) - before < FLAT_BYTES
        assert _of_the_guest(box) - inside < FLAT_BYTES
        assert all(thread.is_alive() for thread in pushing)
        for each in (*floods, *deaf):
            each._socket.socket.close()  # noqa: SLF001 - as one that was killed


def _push(tunnel: Tunnel) -> None:
    with suppress(SandlotError, OSError):
        tunnel.send(PUSHED)


def _of_the_guest(box: Sandbox) -> int:
    return int(box.commands.run("grep VmRSS /proc/1/status", user="root").stdout.split()[1]) * 1024


def _listening(box: Sandbox, address: str) -> int:
    """A port on which something listens that never accepts."""
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port: int = free.getsockname()[1]
    code = f"import socket, time; made = socket.create_server(({address!r}, {port}), backlog=64); time.sleep(600)"
    box.commands.run(["python3", "-c", code], background=True)
    _wait_for(box, port)
    return port


def _wait_for(box: Sandbox, port: int) -> None:
    for _ in range(1200):
        if any(each.port == port for each in box.ports()):
            return
        time.sleep(0.05)
    raise AssertionError("it does not listen")
