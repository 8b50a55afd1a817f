"""The network card of a gVisor sandbox: captured connections, names, local traffic, and checkpoints with and without open connections."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sandlot.drivers.oci.driver import OciDriver
from sandlot.drivers.oci.gvisor.runtime import Runsc
from sandlot.drivers.registry import DriverSettings
from sandlot.images.store import ImageStore, cache_from
from sandlot.link.client import Link
from sandlot.link.services import GuestStream
from sandlot.model.ids import new_node_id
from sandlot.model.ports import Driver, Instance
from sandlot.protocol import schema
from sandlot.testing.drivers.harness import SMALL_LIMITS, ConnectedSandbox, DriverHarness, take_snapshot

CLIENT = """
import socket, struct, sys
PATIENCE_S = 60
def connect(host, port):
    return socket.create_connection((host, port), timeout=PATIENCE_S)
def ask(host, port):
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


class Destinations:
    """The host's side: every destination exists but those whose name begins with ``refused``.

    Attributes:
        asked: Destinations that the guest named, in order.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    async def serve(self, stream: GuestStream, args: Mapping[str, Any]) -> None:
        self.asked.append((args["host"], args["port"]))
        if args["host"].startswith("refused"):
            stream.reset("permission_denied", "host_not_allowed")
            return
        await stream.write(f"hello {args['host']}:{args['port']}, ".encode())
        async for piece in stream:
            await stream.write(piece)


def open_driver(name: str, settings: DriverSettings) -> Driver:
    return OciDriver(name, settings, Runsc(has_card=True))


def harness_in(folder: Path) -> DriverHarness:
    root = ImageStore(cache_from(os.environ)).root("base")
    return DriverHarness("gvisor", root=root, node=new_node_id(), data_dir=folder / "state", open_driver=open_driver)


@asynccontextmanager
async def connected(instance: Instance, identity: str, host: Destinations) -> AsyncIterator[ConnectedSandbox]:
    """Connect to the guest of a sandbox, wake the guest, and destroy the sandbox at the end."""
    try:
        link = await Link.open(await instance.connect(), services={schema.CONNECT: host})
        try:
            await link.wake(identity=identity, hostname="sandbox", env={}, pids=SMALL_LIMITS.pids, deadline_s=None)
            yield ConnectedSandbox(instance, link)
        finally:
            await link.aclose()
    finally:
        await instance.destroy()


async def python(sandbox: ConnectedSandbox, code: str) -> str:
    """Run a program that must succeed; return its output without the last line break."""
    result = await sandbox.python(CLIENT + code)
    assert result.exit_code == 0, result.stderr
    return result.stdout.rstrip("\n")


@pytest.fixture(scope="module")
def host() -> Destinations:
    return Destinations()


@pytest.fixture(scope="module")
async def sandbox(host: Destinations, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ConnectedSandbox]:
    """One booted sandbox for tests that leave it as it is."""
    harness = harness_in(tmp_path_factory.mktemp("shared"))
    async with connected(await harness.boot(harness.new_driver()), "sb-one", host) as made:
        yield made


async def test_connections_reach_the_host_by_name_or_address(sandbox: ConnectedSandbox, host: Destinations) -> None:
    host.asked.clear()
    destinations = [("git.example.com", 22), ("GIT.example.com", 80), ("8.8.4.4", 5432), ("10.1.2.3", 12345), ("169.254.169.254", 80)]

    out = await python(sandbox, f"for host, port in {destinations!r}: print(ask(host, port).decode())")

    expected = [(name.lower(), port) for name, port in destinations]
    assert out.splitlines() == [f"hello {name}:{port}, ping" for name, port in expected]
    assert host.asked == expected


async def test_refused_connection_is_reset(sandbox: ConnectedSandbox) -> None:
    assert await python(sandbox, "print(error(lambda: connect('refused.example.com', 443).recv(1)))") == "ConnectionResetError"


async def test_names_have_addresses_of_their_own_and_local_names_do_not_exist(sandbox: ConnectedSandbox) -> None:
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
    assert (await python(sandbox, code)).splitlines() == ["True True 1 None None", f"one.example.com nameserver {schema.NAMESERVER}"]


async def test_local_connections_are_not_captured(sandbox: ConnectedSandbox, host: Destinations) -> None:
    host.asked.clear()
    code = f"""
for address in ("127.0.0.1", "{schema.NETWORK_ADDRESS}"):
    with socket.create_server(("0.0.0.0", 8000)) as server, connect(address, 8000) as client:
        accepted, peer = server.accept()
        accepted.sendall(b"local")
        print(client.recv(10).decode(), peer[0], error(lambda: connect(address, 8001)))
        accepted.close()
print(error(lambda: connect("127.0.0.1", {schema.CAPTURE_PORT}).recv(1)))
"""
    assert (await python(sandbox, code)).splitlines() == [
        "local 127.0.0.1 ConnectionRefusedError",
        f"local {schema.NETWORK_ADDRESS} ConnectionRefusedError",
        "ConnectionResetError",
    ]
    assert host.asked == []


async def test_udp_and_ipv6_fail_at_once(sandbox: ConnectedSandbox) -> None:
    code = """
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
    client.settimeout(PATIENCE_S)
    client.connect(("8.8.8.8", 443))
    client.send(b"hello")
    print(client.getsockname()[0], error(lambda: client.recv(1)))
print(error(lambda: connect("2001:db8::1", 443)))
"""
    assert (await python(sandbox, code)).splitlines() == [f"{schema.NETWORK_ADDRESS} ConnectionRefusedError", "OSError"]


WAITING = (
    CLIENT
    + """
connection = connect("open.example.com", 22)
connection.recv(100)
print("open", flush=True)
with open("/tmp/end", "w") as file:
    file.write(error(lambda: connection.recv(1)))
import os
os.rename("/tmp/end", "/tmp/ended")
"""
)
"""Wait on an open connection, and write how it ends to a file."""
START = f"""
import subprocess
child = subprocess.Popen(["python3", "-SI", "-c", {WAITING!r}], stdout=subprocess.PIPE, start_new_session=True)
print(child.stdout.readline())
"""
ENDED = "import os, time\nwhile not os.path.exists('/tmp/ended'): time.sleep(0.01)\nprint(open('/tmp/ended').read())"
LOOK_UP = "print(socket.gethostbyname('open.example.com'))"


@pytest.mark.parametrize("has_connection", [True, False], ids=["open connection", "no connection"])
async def test_snapshot_resets_connections_in_source_and_copy_and_both_connect_again(
    tmp_path: Path,
    has_connection: bool,  # noqa: FBT001 - a parameter
) -> None:
    harness, host = harness_in(tmp_path), Destinations()
    driver, image = harness.new_driver(), tmp_path / "state" / "saved" / "one" / "image"
    async with connected(await harness.boot(driver), "sb-one", host) as source:
        await python(source, "print(ask('other.example.com', 80))")
        address = await python(source, LOOK_UP)
        if has_connection:
            started = await source.python(START)
            assert "open" in started.stdout
        await source.link.checkpoint(armed=True)
        await take_snapshot(source.instance, image, keep_running=True)
        await source.link.checkpoint(armed=False)

        prepared = await driver.prepare(harness.shape(), snapshot=image)
        headroom = await driver.restore_headroom(image, SMALL_LIMITS)
        restored = await prepared.restore(image, harness.spec(), headroom_bytes=headroom.most_bytes)
        async with connected(restored, "sb-two", host) as copy:
            for each in (source, copy):
                if has_connection:
                    assert await python(each, ENDED) == "ConnectionResetError"
                assert await python(each, LOOK_UP) == address
                assert await python(each, "print(ask('open.example.com', 22).decode())") == "hello open.example.com:22, ping"
                assert await python(each, "print(socket.gethostbyaddr(socket.gethostbyname('new.example.com'))[0])") == "new.example.com"
