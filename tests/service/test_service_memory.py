"""What the service's own memory does under hostile clients and hostile guests: it stays within bounds, and comes back.

Its resident set is measured before, during and after each flood. The bounds are absolute and generous: without what holds them,
each of these floods takes gigabytes, or grows with every round.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import httpx
import pytest

from sandlot import Sandbox
from sandlot.model.specs import MIB
from tests.support.localservice import LocalService, local_service

pytestmark = pytest.mark.slow

BUFFER_BYTES = 64 * MIB
CONNECTIONS = 300
GROWTH_BYTES = 200 * MIB
"""While it lasts: the buffers, once more while an answer is encoded, what 300 connections take, and the allocator's slack."""
KEPT_BYTES = 120 * MIB
"""When it is over: what the allocator does not give back at once."""


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    # What the allocator keeps of one flood (at most KEPT_BYTES) hides little of the next: without a bound, each takes gigabytes.
    with local_service({"SANDLOT_BUFFER_BYTES": str(BUFFER_BYTES), "SANDLOT_MAX_CONNECTIONS": str(CONNECTIONS)}, isolation="container") as running:
        yield running


class Watch:
    """The resident set of a process, sampled for as long as the context is open.

    Args:
        service: Whose.
    """

    def __init__(self, service: LocalService) -> None:
        self._service = service
        self._over = threading.Event()
        self._sampler = threading.Thread(target=self._sample)
        self.before_bytes = self.now()
        self.most_bytes = self.before_bytes

    def now(self) -> int:
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self._service.pid}/status").read_text())
        assert found is not None, self._service.log()
        return int(found[1]) * 1024

    def __enter__(self) -> Self:
        self._sampler.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._over.set()
        self._sampler.join()
        if failure[0] is None:
            assert self.most_bytes - self.before_bytes < GROWTH_BYTES, self._grown()
            ends = time.monotonic() + 30
            while self.now() - self.before_bytes >= KEPT_BYTES and time.monotonic() < ends:
                time.sleep(0.2)
            assert self.now() - self.before_bytes < KEPT_BYTES, self._grown()
            print(self._grown())
            assert self._service.client.service.version().version

    def _sample(self) -> None:
        while not self._over.wait(0.02):
            self.most_bytes = max(self.most_bytes, self.now())

    def _grown(self) -> str:
        return f"{self.before_bytes / MIB:.0f} MiB before, {self.most_bytes / MIB:.0f} at the most, {self.now() / MIB:.0f} afterwards"


@contextlib.contextmanager
def connections(service: LocalService, count: int) -> Iterator[list[socket.socket]]:
    """Clients that never read."""
    made: list[socket.socket] = []
    try:
        for _ in range(count):
            link = socket.socket(socket.AF_UNIX)
            made.append(link)
            link.settimeout(60)
            link.connect(str(service.data_dir / "sandlot.sock"))
        yield made
    finally:
        for link in made:
            link.close()


def request(path: str, body: dict[str, Any], accept: str = "application/json") -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\naccept: {accept}\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    return head.encode() + content


def send(link: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):  # refused, and closed
        link.sendall(data)


def test_unfinished_bodies_take_bounded_memory(service: LocalService) -> None:
    """50 of 290 clients send 7 of 8 MiB each, 350 MiB together, and then nothing."""
    head = f"POST /v1/sandboxes HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {8 * MIB}\r\n\r\n".encode()
    with Watch(service), connections(service, CONNECTIONS - 10) as links, ThreadPoolExecutor(16) as pool:
        for link in links:
            link.settimeout(3)
        list(pool.map(lambda link: send(link, head + b" " * (7 * MIB)), links[:50]))
        assert service.client.service.version().version


def test_long_heads_and_pipelined_requests_take_bounded_memory(service: LocalService) -> None:
    """A field of four bytes costs fifty times as many, a request of forty a hundred times."""
    fields = b"GET /healthz HTTP/1.1\r\n" + b"a:\r\n" * 15_000
    ahead = b"GET /v1/version HTTP/1.1\r\nhost: x\r\n\r\n" * 10_000
    with Watch(service):
        for flood in (fields, ahead):
            with connections(service, 250) as links, ThreadPoolExecutor(8) as pool:
                for link in links:
                    link.settimeout(0.5)
                list(pool.map(lambda link, flood=flood: send(link, flood), links))


def test_unread_responses_take_bounded_memory(service: LocalService) -> None:
    """100 commands write 6 MiB each, of which 4 are kept: 400 MiB of output in answers that wait for ever, if they may."""
    noisy = {"argv": ["sh", "-c", "head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2"]}
    with service.create(memory=1024 * MIB, pids=512) as box, Watch(service), connections(service, 100) as links:
        path = f"/v1/sandboxes/{box.id}/processes"
        for link in links:
            send(link, request(path, noisy))
        served(service, box)


def test_unread_streams_take_bounded_memory(service: LocalService) -> None:
    """100 endless floods of output, followed by clients that read nothing."""
    with service.create(memory=1024 * MIB, pids=512) as box, Watch(service), connections(service, 100) as links:
        path = f"/v1/sandboxes/{box.id}/processes"
        for link in links:
            send(link, request(path, {"argv": ["cat", "/dev/zero"], "timeout": 60}, "text/event-stream"))
        served(service, box)


def test_unread_input_takes_bounded_memory(service: LocalService) -> None:
    """Processes in the background that never read the 4 MiB that each is given: the requests are over, the input is not."""
    with service.create(memory=512 * MIB, pids=256) as box, Watch(service):
        path = f"http://sandlot/v1/sandboxes/{box.id}/processes"
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(service.data_dir / "sandlot.sock")), timeout=60) as http:
            body = {"argv": ["sleep", "60"], "background": True, "stdin": "x" * (4 * MIB)}
            statuses = [http.post(path, json=body).status_code for _ in range(20)]
        assert statuses[0] == 201
        assert statuses[-1] == 503
        served(service, box)


def test_endless_results_take_bounded_memory(service: LocalService) -> None:
    """A cell shows 230 results of 1 MiB; its answer has 32 MiB at the most, and the sandbox's part of the budget."""
    code = "from sys import displayhook as show\nfor i in range(230): show('%03d' % i + 'x' * (1 << 20))"
    with service.create(memory=1024 * MIB) as box, Watch(service):
        assert box.run_code(code, timeout=60).error is None


def test_memory_does_not_grow_with_every_sandbox(service: LocalService) -> None:
    """Round after round of everything that is remembered: processes, outputs, metadata, sandboxes."""
    with Watch(service) as watch:
        after: list[int] = []
        for _ in range(3):
            with service.create(memory=256 * MIB, metadata={"m": "x" * 10_000}) as box:
                for _ in range(20):
                    box.commands.run(["head", "-c", "1000000", "/dev/zero"])
            after.append(watch.now())
        assert after[-1] - after[0] < 40 * MIB, after


def served(service: LocalService, box: Sandbox) -> None:
    """While the flood lasts, the service answers others, and this sandbox's own owner; some time passes meanwhile."""
    for _ in range(5):
        time.sleep(0.3)
        assert service.client.service.version().version
    assert box.id in {each.id for each in service.client.sandboxes.list()}
