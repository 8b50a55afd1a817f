"""How many clients a service takes and how many at once, and what it does for each request."""

from __future__ import annotations

import asyncio
import itertools
import resource
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from sandlot.host.cpu_latency import CpuLatency
from sandlot.server.process import ACCEPTS_PER_TURN, Server, allowed_connections
from sandlot.server.settings import MAX_CONNECTIONS, Settings
from sandlot.web import listener
from tests.support.http import unix_client
from tests.support.scripted_app import serve_scripted
from tests.support.scripted_node import ScriptedNode
from tests.support.service import Bench
from tests.support.until import until

DESCRIPTORS = 1024


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("few_descriptors")
@pytest.mark.parametrize("asked,given", [(8, 8), (256, 256), (257, 256), (MAX_CONNECTIONS, 256)])
def test_half_of_the_descriptors_are_kept_for_sandboxes(asked: int, given: int) -> None:
    assert allowed_connections(Settings(max_connections=asked)) == given


@pytest.mark.usefixtures("few_descriptors")
async def test_an_operator_who_gets_fewer_connections_than_asked_for_is_told(at: Bench) -> None:
    with capture_logs() as told:
        Server(replace(at.service, settings=replace(at.service.settings, max_connections=256)))
    assert told == []
    with capture_logs() as told:
        Server(replace(at.service, settings=replace(at.service.settings, max_connections=1000)))
    assert [(each["event"], each["configured"], each["allowed"]) for each in told] == [("connections_limited", 1000, 256)]


async def test_burst_of_connections_is_accepted_in_parts(at: Bench) -> None:
    server, tcp = Server(at.service), listener.tcp_socket("127.0.0.1", 0)
    serving = asyncio.create_task(server.until_stopped([tcp], signals=False))
    await until(lambda: server.started)
    peers = [socket.create_connection(tcp.getsockname()) for _ in range(8 * ACCEPTS_PER_TURN)]  # the kernel has them all before the loop runs
    counts = [0]
    while counts[-1] < len(peers):
        await asyncio.sleep(0)
        counts.append(server.connections.count())
    assert max(after - before for before, after in itertools.pairwise(counts)) <= ACCEPTS_PER_TURN
    for peer in peers:
        peer.close()
    at.service.stop.set()
    await serving


@pytest.mark.parametrize("setting,times", [("off", 0), ("on", 2)])
async def test_processors_are_kept_awake_when_a_request_begins_and_ends(
    folder: Path, monkeypatch: pytest.MonkeyPatch, setting: str, times: int
) -> None:
    held: list[None] = []
    monkeypatch.setattr(CpuLatency, "hold", lambda _: held.append(None))
    async with (
        serve_scripted(ScriptedNode(), folder, Settings(data_dir=folder / "data", low_latency=setting)) as service,
        unix_client(service.settings.socket) as client,
    ):
        assert (await client.get("/healthz")).status_code == 200
        await until(lambda: len(held) == times)


async def test_builds_of_images_end_before_the_stop_waits_for_builds(at: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    server, tcp, seen = Server(at.service), listener.tcp_socket("127.0.0.1", 0), list[bool]()

    async def close() -> None:
        seen.append(at.service.images.stop.is_set)

    monkeypatch.setattr(server.builds, "aclose", close)
    serving = asyncio.create_task(server.until_stopped([tcp], signals=False))
    await until(lambda: server.started)
    assert not at.service.images.stop.is_set
    at.service.stop.set()
    await serving
    assert seen == [True]
