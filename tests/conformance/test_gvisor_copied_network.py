"""The network of gVisor sandboxes that runsc copies from a namespace of the host, as seen from the host."""

# ruff: noqa: ASYNC240, ASYNC110
from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandlot.drivers.registry import DriverSettings
from sandlot.host.stage.syscalls import CLONE_NEWNET, setns
from sandlot.images.store import ImageStore
from sandlot.model.ids import new_node_id
from sandlot.model.ports import DriverCapability
from sandlot.testing.drivers.harness import DriverHarness
from tests.support.cache import CACHE_DIR
from tests.support.command_line import open_without_control
from tests.support.onhost import group, members_of, network_namespaces, processes

NOWHERE = "192.0.2.1"
"""TEST-NET-1, RFC 5737: an address that nobody has."""
FAILING = """#!/bin/sh
case "$*" in
*--version*) ;;
*--network=sandbox*) echo "no network namespace today" >&2; exit 3 ;;
esac
exec {runsc} "$@"
"""
"""A release of runsc that accepts the flags of the copied network, but cannot start a sandbox with them."""


@pytest.fixture
def harness(tmp_path: Path) -> DriverHarness:
    root = ImageStore(CACHE_DIR).root("base")
    return DriverHarness("gvisor", root=root, node=new_node_id(), data_dir=tmp_path / "state", open_driver=open_without_control)


async def test_namespace_has_no_way_out_and_ends_with_killed_processes(harness: DriverHarness) -> None:
    cards, host = socket.if_nameindex(), Path("/proc/self/ns/net").readlink()
    prepared = await harness.new_driver().prepare(harness.shape())
    ((stage, of_stage),) = members_of(harness.data_dir).items()
    async with harness.sandbox() as sandbox:
        started = processes(harness, sandbox.instance)
        own = Path(f"/proc/{started.sandbox.pid}/ns/net").readlink()
        assert own == Path(f"/proc/{started.keeper.pid}/ns/net").readlink()
        assert len({own, of_stage, host}) == 3
        assert all(Path(f"/proc/{pid}/ns/net").readlink() != host for pid in group(harness, sandbox.instance).pids())
        with socket.create_server(("0.0.0.0", 0)) as server:  # noqa: S104 - every address of the host would reach the server
            addresses = ("127.0.0.1", socket.gethostbyname(socket.gethostname()), NOWHERE)
            found = await asyncio.to_thread(look_around, started.sandbox.pid, [(address, server.getsockname()[1]) for address in addresses])
            server.setblocking(False)
            with pytest.raises(BlockingIOError):
                server.accept()
        assert found[:2] == ("lo", "")
        assert set(found[2]) <= {errno.ECONNREFUSED, errno.ENETUNREACH}
        assert found[2][-1] == errno.ENETUNREACH
        for pid in (stage, started.keeper.pid, started.sandbox.pid):
            os.kill(pid, signal.SIGKILL)
        await sandbox.instance.wait()
    await prepared.destroy()

    while network_namespaces() & {own, of_stage}:
        await asyncio.sleep(0.01)
    assert socket.if_nameindex() == cards


def look_around(pid: int, servers: Sequence[tuple[str, int]]) -> tuple[str, str, list[int]]:
    """Return the devices and routes of a process's network namespace, and the error number of a connection to each server."""

    def connect(server: tuple[str, int]) -> int:
        with socket.socket() as client:
            client.settimeout(60)
            return client.connect_ex(server)

    def work() -> tuple[str, str, list[int]]:
        namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        setns(namespace, CLONE_NEWNET)
        os.close(namespace)
        routes = "".join(Path("/proc/thread-self/net/route").read_text().splitlines()[1:])
        return " ".join(name for _, name in socket.if_nameindex()), routes, [connect(server) for server in servers]

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def test_release_that_cannot_copy_a_network_runs_sandboxes_without_a_card(harness: DriverHarness, tmp_path: Path) -> None:
    failing = tmp_path / "bin" / "runsc"
    failing.parent.mkdir()
    failing.write_text(FAILING.format(runsc=shutil.which("runsc")))
    failing.chmod(0o755)

    can = open_without_control("gvisor", DriverSettings(harness.node, harness.data_dir), str(failing.parent)).probe()
    assert [ability for ability in DriverCapability if not can.can(ability)] == [DriverCapability.CONFIGURE_DISK, DriverCapability.NETWORK]
    assert "no network namespace today" in can.why_not(DriverCapability.NETWORK)


def test_probe_reports_that_the_network_is_copied(harness: DriverHarness) -> None:
    can = harness.new_driver().probe()
    assert [ability for ability in DriverCapability if not can.can(ability)] == [DriverCapability.CONFIGURE_DISK]
    assert "copies the network" in can.why_not(DriverCapability.NETWORK)
