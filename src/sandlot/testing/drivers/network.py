"""Tests of the network card of a sandbox: captured connections, names, local traffic, and snapshots with and without open connections.

The tests need the capability ``network``. Nothing outside of the sandbox is contacted: the test itself is the host's end of all connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sandlot.link.services import GuestStream
from sandlot.model.errors import ConflictError
from sandlot.model.ports import Driver, DriverCapability, Instance
from sandlot.model.specs import User
from sandlot.protocol import schema
from sandlot.testing.drivers.cleanup import CleanupSuite
from sandlot.testing.drivers.harness import ConnectedSandbox, DriverHarness, connect_sandbox, restore_snapshot, take_snapshot

_CLIENT = """
import socket, struct, sys
PATIENCE_S = 60
def connect(host, port):
    return socket.create_connection((host, port), timeout=PATIENCE_S)
def exchange(host, port):
    with connect(host, port) as connection:
        greeting = connection.recv(100)
        connection.sendall(b"ping")
        return greeting + connection.recv(100)
def error(work):
    try:
        work()
    except OSError as raised:
        return type(raised).__name__
    return "no error"
"""
OWN_ADDRESS = """
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
    client.connect(("8.8.8.8", 443))
    print(client.getsockname()[0])
"""
"""Program that prints its own address, in the way in which Ray and Dask find it: it connects a UDP socket, and sends nothing."""


class Destinations:
    """The host's service ``connect`` for tests: every destination exists except those whose names begin with ``refused`` or ``silent``.

    A destination sends its name, and then returns all bytes.

    Attributes:
        requested: Destinations that the guest has named, in order.
    """

    def __init__(self) -> None:
        self.requested: list[tuple[str, int]] = []

    async def serve(self, stream: GuestStream, args: Mapping[str, Any]) -> None:
        """Serve one captured connection."""
        self.requested.append((args["host"], args["port"]))
        if args["host"].startswith("refused"):
            stream.reset("permission_denied", "host_not_allowed")
            return
        if args["host"].startswith("silent"):
            await asyncio.Event().wait()  # decides nothing and reads nothing, until the stream ends
        await stream.write(f"hello {args['host']}:{args['port']}, ".encode())
        async for piece in stream:
            await stream.write(piece)


class NetworkSuite(CleanupSuite):
    """Tests of the network card. Needs a fixture ``harness``."""

    async def test_connections_reach_the_host_by_name_or_address(self, harness: DriverHarness) -> None:
        destinations = [("git.example.com", 22), ("GIT.example.com", 80), ("8.8.4.4", 5432), ("10.1.2.3", 12345), ("169.254.169.254", 80)]
        host = Destinations()
        async with _booted(harness, host) as sandbox:
            out = await _python(sandbox, f"for host, port in {destinations!r}: print(exchange(host, port).decode())")

        expected = [(name.lower(), port) for name, port in destinations]
        assert out.splitlines() == [f"hello {name}:{port}, ping" for name, port in expected]
        assert host.requested == expected

    @pytest.mark.parametrize("has_service", [True, False])
    async def test_connection_that_the_host_refuses_is_reset(self, harness: DriverHarness, has_service: bool) -> None:  # noqa: FBT001 - a parameter
        async with _booted(harness, Destinations() if has_service else None) as sandbox:
            for host in ("refused.example.com", *(() if has_service else ("8.8.4.4",))):
                assert await _python(sandbox, f"print(error(lambda: connect({host!r}, 443).recv(1)))") == "ConnectionResetError"

    async def test_names_have_addresses_of_their_own_and_local_names_do_not_exist(self, harness: DriverHarness) -> None:
        code = """
def address(name):
    try:
        return {entry[4][0] for entry in socket.getaddrinfo(name, 443)}
    except socket.gaierror:
        return None
first, second = address("one.example.com"), address("two.example.com")
print(first != second, first == address("ONE.example.com"), len(first), address("metadata"), address("printer.local"))
print(socket.gethostbyaddr(min(first))[0], open("/etc/resolv.conf").read(), end="")
"""
        async with _booted(harness, None) as sandbox:
            assert (await _python(sandbox, code)).splitlines() == ["True True 1 None None", f"one.example.com nameserver {schema.NAMESERVER}"]

    async def test_local_connections_are_not_captured(self, harness: DriverHarness) -> None:
        code = f"""
for address in ("127.0.0.1", "{schema.NETWORK_ADDRESS}"):
    for port in (80, 8000):
        with socket.create_server(("0.0.0.0", port)) as server, connect(address, port) as client:
            accepted, peer = server.accept()
            accepted.sendall(b"local")
            print(client.recv(10).decode(), peer[0], error(lambda: connect(address, 8001)))
            accepted.close()
print(error(lambda: connect("127.0.0.1", {schema.CAPTURE_PORT}).recv(1)))
"""
        host = Destinations()
        async with _booted(harness, host) as sandbox:
            out = await _python(sandbox, code, user=User.ROOT)
        assert out.splitlines() == [
            *["local 127.0.0.1 ConnectionRefusedError"] * 2,
            *[f"local {schema.NETWORK_ADDRESS} ConnectionRefusedError"] * 2,
            "ConnectionResetError",
        ]
        assert host.requested == []

    async def test_udp_and_ipv6_fail_at_once(self, harness: DriverHarness) -> None:
        code = """
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
    client.settimeout(PATIENCE_S)
    client.connect(("8.8.8.8", 443))
    client.send(b"hello")
    print(error(lambda: client.recv(1)))
print(error(lambda: connect("2001:db8::1", 443)))
"""
        async with _booted(harness, Destinations()) as sandbox:
            assert (await _python(sandbox, code)).splitlines() == ["ConnectionRefusedError", "OSError"]

    async def test_programs_find_the_address_of_the_card(self, harness: DriverHarness) -> None:
        async with _booted(harness, Destinations()) as sandbox:
            assert await _python(sandbox, OWN_ADDRESS) == schema.NETWORK_ADDRESS


_WAITING = (
    _CLIENT
    + """
import threading
def receive(host, ends):
    connection = connect(host, 22)
    if not host.startswith("silent"):
        connection.recv(100)
    print("open", flush=True)
    ends[host] = error(lambda: connection.recv(1))
def send(host, ends):
    connection = connect(host, 23)
    connection.send(b"x")
    print("open", flush=True)
    ends["sender"] = error(lambda: connection.sendall(bytes(1 << 26)))
ends = {}
works = [(receive, "open.example.com"), (receive, "silent.example.com"), (send, "silent.example.com")]
threads = [threading.Thread(target=work, args=(host, ends)) for work, host in works]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
import os
with open("/tmp/end", "w") as file:
    file.write(" ".join(sorted(set(ends.values()))))
os.rename("/tmp/end", "/tmp/ended")
"""
)
"""Wait on an open connection, on one about which the host decides nothing, and on one that takes no more data. Write how they end to a file."""
_START = f"""
import subprocess
child = subprocess.Popen(["python3", "-SI", "-c", {_WAITING!r}], stdout=subprocess.PIPE, start_new_session=True)
for _ in range(3):
    print(child.stdout.readline())
"""
_ENDED = "import os, time\nwhile not os.path.exists('/tmp/ended'): time.sleep(0.01)\nprint(open('/tmp/ended').read())"
_LOOK_UP = "print(socket.gethostbyname('open.example.com'))"


class NetworkSnapshotSuite(CleanupSuite):
    """Tests of snapshots of sandboxes with a network card. Needs a fixture ``harness``."""

    @pytest.mark.parametrize("has_connection", [True, False], ids=["open connection", "no connection"])
    async def test_snapshot_resets_connections_in_source_and_copy_and_both_connect_again(
        self,
        harness: DriverHarness,
        has_connection: bool,  # noqa: FBT001 - a parameter
    ) -> None:
        driver = await harness.driver_with(DriverCapability.NETWORK, DriverCapability.SNAPSHOT)
        host, image = Destinations(), harness.data_dir / "saved" / "one" / "image"
        async with _connected(await harness.boot(driver), host) as source:
            await _python(source, "print(exchange('other.example.com', 80))")
            address = await _python(source, _LOOK_UP)
            if has_connection:
                assert (await source.python(_START)).stdout.count("open") == 3
            await source.link.checkpoint(armed=True)
            await take_snapshot(source.instance, image, keep_running=True)
            await source.link.checkpoint(armed=False)

            async with _connected(await _restored(harness, driver, image), host) as copy:
                for each in (source, copy):
                    if has_connection:
                        assert await _python(each, _ENDED) == "ConnectionResetError"
                    assert await _python(each, _LOOK_UP) == address
                    assert await _python(each, "print(exchange('open.example.com', 22).decode())") == "hello open.example.com:22, ping"
                    assert await _python(each, "print(socket.gethostbyaddr(socket.gethostbyname('new.example.com'))[0])") == "new.example.com"

    async def test_source_connects_again_after_a_checkpoint_that_failed(self, harness: DriverHarness) -> None:
        driver = await harness.driver_with(DriverCapability.NETWORK, DriverCapability.SNAPSHOT)
        async with _connected(await harness.boot(driver), Destinations()) as source:
            await source.link.checkpoint(armed=True)
            with pytest.raises(ConflictError):
                await take_snapshot(source.instance, harness.data_dir, keep_running=True)
            await source.link.checkpoint(armed=False)
            assert await _python(source, "print(exchange('open.example.com', 22).decode())") == "hello open.example.com:22, ping"


@asynccontextmanager
async def _booted(harness: DriverHarness, host: Destinations | None) -> AsyncIterator[ConnectedSandbox]:
    """Boot a sandbox, connect to its guest, wake the guest, and destroy the sandbox at the end.

    Args:
        harness: Driver under test.
        host: Service of the host for captured connections; None: the host has no such service.
    """
    driver = await harness.driver_with(DriverCapability.NETWORK)
    async with _connected(await harness.boot(driver), host) as sandbox:
        yield sandbox


@asynccontextmanager
async def _connected(instance: Instance, host: Destinations | None) -> AsyncIterator[ConnectedSandbox]:
    try:
        async with connect_sandbox(instance, services={} if host is None else {schema.CONNECT: host}) as sandbox:
            yield sandbox
    finally:
        await instance.destroy()


async def _restored(harness: DriverHarness, driver: Driver, image: Path) -> Instance:
    prepared = await driver.prepare(harness.shape(), snapshot=image)
    return await restore_snapshot(driver, prepared, image, harness.spec())


async def _python(sandbox: ConnectedSandbox, code: str, user: User = User.USER) -> str:
    """Run a program that must succeed; return its output without the last line break."""
    result = await sandbox.python(_CLIENT + code, user=user)
    assert result.exit_code == 0, result.stderr
    return result.stdout.rstrip("\n")
