"""Clients that go away in the middle of a request, and clients that do not read the response.

The processes of an abandoned request end, half-written files are removed, and the service holds nothing open. A response that is not read
takes bounded memory, on every route that streams one.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sandlot import Sandbox
from tests.support.localservice import LocalService
from tests.support.traces import NOTHING, descriptors, memory_bytes, settle

DOCUMENT: dict[str, Any] = json.loads((Path(__file__).parents[2] / "docs" / "openapi.json").read_text(encoding="utf-8"))
"""Generated from the routes; tests/meta checks that it is up to date."""
MIB = 1 << 20
IN_CONTAINER = pytest.mark.parametrize("service", ["container"], indirect=True)
LARGE_BYTES = 16 * MIB
READERS = 8
GROWTH_BYTES = 48 * MIB
"""For 8 answers that nobody takes: each its windows and buffers, and the allocator's slack. Kept whole they would take 80 MiB or more."""
FLOOD = "while :; do head -c 8388608 /dev/zero; sleep 0.2; done"
"""Output of at most 40 MiB in each second, so that it does not take a whole processor."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request, and how much of it is sent.

    Args:
        line: Method and path; ``{box}`` is the sandbox's address, ``{file}`` a large file of the file store, ``{flood}`` a process.
        body: As JSON.
        length: Instead: of a body of which only ``sent`` bytes come.
        sent: The same.
        accept: Of the answer.
        read: Bytes to take of the answer before the client goes.
        wait_s: Seconds to wait before it goes.
    """

    line: str
    body: Mapping[str, object] | None = None
    length: int = 0
    sent: int = 0
    accept: str = "application/json"
    read: int = 0
    wait_s: float = 0.0

    def encoded(self, names: Mapping[str, str]) -> bytes:
        """What is sent."""
        if self.line == TERMINAL:
            return self.line.format_map(names).encode()
        content = b"x" * self.sent if self.body is None else json.dumps(self.body).encode()
        kind = "application/octet-stream" if self.body is None else "application/json"
        head = f"{self.line.format_map(names)} HTTP/1.1\r\nhost: x\r\naccept: {self.accept}\r\ncontent-type: {kind}\r\n"
        return f"{head}content-length: {self.length or len(content)}\r\n\r\n".encode() + content


EVENTS = "text/event-stream"
TERMINAL = (
    "GET {box}/processes/{screen}/terminal HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    "sec-websocket-version: 13\r\nsec-websocket-key: c2FuZGxvdC1zYW5kbG90IQ==\r\n\r\n"
)
"""A whole request: nothing is added to it."""
STREAMED: Mapping[str, Request] = {
    "POST /v1/sandboxes/{sandbox}/processes": Request("POST {box}/processes", {"argv": ["cat", "/dev/zero"]}, accept=EVENTS, read=100_000),
    "GET /v1/sandboxes/{sandbox}/processes/{process}/output": Request("GET {box}/processes/{flood}/output", accept=EVENTS, read=100_000),
    "POST /v1/sandboxes/{sandbox}/code": Request("POST {box}/code", {"code": "while True: print('x' * 1000)"}, accept=EVENTS, read=100_000),
    "GET /v1/sandboxes/{sandbox}/code/{execution}": Request("GET {box}/code/{cell}", accept=EVENTS, read=100_000),
    "POST /v1/sandboxes/{sandbox}/packages": Request("POST {box}/packages", {"packages": ["sandlot-no-such-package"]}, accept=EVENTS, read=1),
    "GET /v1/sandboxes/{sandbox}/files/content": Request("GET {box}/files/content?path=/workspace/large", read=100_000),
    "GET /v1/sandboxes/{sandbox}/files/archive": Request("GET {box}/files/archive?path=/workspace", read=100_000),
    "GET /v1/sandboxes/{sandbox}/files/watch": Request("GET {box}/files/watch?path=/workspace", accept=EVENTS, read=1),
    "GET /v1/sandboxes/{sandbox}/logs": Request("GET {box}/logs", accept=EVENTS, read=1),
    "GET /v1/signed/files/content": Request("GET {signed}", read=100_000),
    "GET /v1/files/{file}/content": Request("GET /v1/files/{file}/content", read=100_000),
    "GET /v1/events": Request("GET /v1/events?after=0", accept=EVENTS, read=1),
}
"""Every operation whose answer comes piece by piece."""
ELSEWHERE = {"POST /v1/programs/batch", "GET /v1/agent-sessions/{session}/events", "GET /v1/template-builds/{build}/log"}
"""Operations that make sandboxes, or need a model or a build.

They are in tests/service/test_programs.py and in tests/unit/server/v1/test_agents.py and test_template_builds.py.
"""

CUT: Mapping[str, Request] = {
    **STREAMED,
    "an upload": Request("PUT {box}/files/content?path=/workspace/half", length=10 * MIB, sent=MIB, wait_s=0.1),
    "an upload into the file store": Request("POST /v1/files?filename=half", length=10 * MIB, sent=MIB, wait_s=0.1),
    "a tar": Request("POST {box}/files/archive?path=/workspace/half", length=10 * MIB, sent=1000, wait_s=0.2),
    "a create": Request("POST /v1/sandboxes", {"template": "base", "timeout": 30}),
    "a create that is nearly done": Request("POST /v1/sandboxes", {"template": "base", "timeout": 30}, wait_s=0.3),
    "a terminal": Request(TERMINAL, read=100, wait_s=0.1),
    "a command": Request("POST {box}/processes", {"command": "sleep 600 | sleep 600"}, wait_s=0.2),
    "a cell": Request("POST {box}/code", {"code": "import time; time.sleep(600)"}, wait_s=0.2),
    "a body of JSON": Request("POST {box}/code", length=MIB, sent=1000),
}


@pytest.fixture(scope="module")
def names(service: LocalService) -> Iterator[Mapping[str, str]]:
    """What requests are about."""
    with service.create(timeout=1800, memory=512 * MIB, disk=512 * MIB) as box:
        box.files.write("/workspace/large", (b"x" * MIB for _ in range(LARGE_BYTES // MIB)))
        flood = box.commands.run(["sh", "-c", FLOOD], background=True)
        content = b"y" * LARGE_BYTES
        kept = service.client.transport.request("POST", "/v1/files", params={"filename": "large"}, content=content)
        url = f"/v1/sandboxes/{box.id}"
        signed = service.client.transport.request("POST", f"{url}/files/signed-urls", body={"path": "/workspace/large"})["url"]
        context = service.client.transport.request("POST", f"{url}/contexts", body={"language": "python"})["id"]
        code = "import time\nwhile True:\n    print('x' * 100_000)\n    time.sleep(0.05)"
        cell = service.client.transport.request("POST", f"{url}/code", body={"code": code, "context": context, "background": True, "timeout": 1700})
        typed = {"command": FLOOD, "pty": {}, "background": True}
        screen = service.client.transport.request("POST", f"{url}/processes", body=typed)["id"]
        yield {"box": url, "id": box.id, "flood": flood.id, "file": kept["id"], "signed": signed, "screen": screen, "cell": cell["id"]}
        service.client.transport.request("DELETE", f"/v1/files/{kept['id']}")


def test_table_has_every_operation_that_streams_its_response() -> None:
    streams = {
        f"{method.upper()} {path}"
        for path, methods in DOCUMENT["paths"].items()
        for method, operation in methods.items()
        for status, answer in operation["responses"].items()
        if status.startswith("2") and set(answer.get("content", ())) - {"application/json", "text/plain"}
    }
    assert streams - set(STREAMED) == ELSEWHERE


@pytest.mark.slow
@IN_CONTAINER
def test_clients_that_go_away_leave_nothing(service: LocalService, names: Mapping[str, str]) -> None:
    sandbox = Sandbox.connect(names["id"], client=service.client)
    sandboxes, running = service.refs(), processes(sandbox)
    opened = service.descriptors()
    for request in CUT.values():
        with connection(service) as link:
            link.sendall(request.encoded(names))
            taken = 0
            while taken < request.read:
                taken += len(link.recv(request.read - taken)) or pytest.fail(f"{request.line}: it ended")
            time.sleep(request.wait_s)
        settle(lambda: processes(sandbox), running)
        assert sandbox.run_code("6 * 7").text == "42", request.line
    settle(lambda: [each.id for each in service.client.sandboxes.list()], [names["id"]])
    settle(lambda: service.traces(keep=sandboxes), NOTHING)
    assert sandbox.commands.run("find /workspace -mindepth 1 -type f").stdout == "/workspace/large\n"
    assert [each["filename"] for each in service.client.transport.request("GET", "/v1/files")["files"]] == ["large"]
    service.client.close()
    settle(lambda: descriptors(service.pid) - opened, type(opened)())  # no more than before


@pytest.mark.slow
@IN_CONTAINER
def test_responses_that_are_not_read_take_bounded_memory(service: LocalService, names: Mapping[str, str]) -> None:
    sandbox = Sandbox.connect(names["id"], client=service.client)
    offenders = []
    for what in (*STREAMED, "a terminal"):
        running, before_bytes, most_bytes = processes(sandbox), memory_bytes(service.pid), 0
        with contextlib.ExitStack() as stack:
            for _ in range(READERS):
                stack.enter_context(connection(service)).sendall(CUT[what].encoded(names))
            for _ in range(10):
                time.sleep(0.05)  # the responses fill their buffers meanwhile
                most_bytes = max(most_bytes, memory_bytes(service.pid))
            assert sandbox.commands.run("echo alive").stdout == "alive\n"
        if most_bytes - before_bytes >= GROWTH_BYTES:
            offenders.append(f"{what}: {(most_bytes - before_bytes) / MIB:.0f} MiB")
        settle(lambda: processes(sandbox), running)
    assert offenders == []


def processes(sandbox: Sandbox) -> list[tuple[str, ...]]:
    """What runs in it."""
    return sorted(each.argv for each in sandbox.commands.list() if each.running)


@contextlib.contextmanager
def connection(service: LocalService) -> Iterator[socket.socket]:
    """A client."""
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(60)
        link.connect(str(service.data_dir / "sandlot.sock"))
        yield link
