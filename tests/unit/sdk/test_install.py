"""Installs of both clients: requests, streamed output and results."""

from __future__ import annotations

import base64
from typing import Any

import anyio
import httpx
import pytest

from sandlot.model.errors import UnavailableError
from sandlot.sdk import AsyncSandbox, Client, Output, Sandbox, retries
from tests.unit.sdk.scripted import SANDBOX, Reply, Script, events

BASE = f"/v1/sandboxes/{SANDBOX['id']}"
ENDED = {"id": "p1", "exit_code": 1, "reason": "exited", "signal": None, "duration_s": 0.1}
FINISHED = {**ENDED, "stdout": "read\n", "stderr": "no such package\n", "files": None, "files_more": False}
FINISHED |= {"stdout_omitted_bytes": 0, "stderr_omitted_bytes": 0}
TOLD = events(
    ("started", {"id": "p1", "pid": 7}),
    ("output", {"stream": "stdout", "offset": 0, "encoding": "utf-8", "data": "read\n"}),
    ("output", {"stream": "stderr", "offset": 0, "encoding": "base64", "data": base64.b64encode(b"no such package\n").decode()}),
    ("exit", ENDED),
)
CUT = Reply(200, headers={"Content-Type": "text/event-stream"}, pieces=list(TOLD.pieces or [])[:2])


def test_one_package_is_text_or_a_list(service: Script, subtests: pytest.Subtests) -> None:
    for words in ("six", ["six"], ("six",)):
        with subtests.test(words=words):
            service.say(Reply(201, SANDBOX), Reply(200, FINISHED))
            with Client(url=service.url) as client:
                done = Sandbox.create(client=client).install(words)
            assert (done.exit_code, done.stdout, done.stderr, done.ok) == (1, "read\n", "no such package\n", False)
            asked = service.seen[-1]
            assert (asked.method, asked.path) == ("POST", f"/v1/sandboxes/{SANDBOX['id']}/packages")
            assert asked.json() == {"manager": "pip", "packages": ["six"], "timeout": 300.0}


def test_output_of_an_install_is_streamed(service: Script) -> None:
    service.say(Reply(201, SANDBOX), TOLD)
    said: list[str] = []
    pieces: list[Output] = []
    with Client(url=service.url) as client:
        sandbox = Sandbox.create(client=client)
        done = sandbox.install(
            manager="apt", packages=["tree"], user="root", timeout=None, on_stdout=said.append, on_stderr=said.append, on_output=pieces.append
        )
    assert said == ["read\n", "no such package\n"]
    assert [(piece.stream, piece.data) for piece in pieces] == [("stdout", b"read\n"), ("stderr", b"no such package\n")]
    assert (done.exit_code, done.stdout, done.stderr) == (1, "read\n", "no such package\n")
    assert service.seen[-1].json() == {"manager": "apt", "packages": ["tree"], "timeout": None, "user": "root"}
    assert service.seen[-1].headers["accept"] == "text/event-stream"


def test_install_stream_without_an_end_is_an_error(service: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "_FIRST_S", 0.001)
    service.say(Reply(201, SANDBOX), *[CUT] * retries.MAX_TRIES)
    with Client(url=service.url) as client, pytest.raises(UnavailableError):
        Sandbox.create(client=client).install("six", on_stdout=lambda _: None)


@pytest.mark.parametrize("first", [Reply(gone=True), CUT], ids=["before", "within"])
def test_cut_install_is_joined_without_repeated_output(service: Script, first: Reply) -> None:
    said: list[str] = []
    service.say(Reply(201, SANDBOX), first, TOLD, Reply(gone=True), Reply(200, FINISHED))
    with Client(url=service.url) as client:
        sandbox = Sandbox.create(client=client)
        done = sandbox.install("six", on_stdout=said.append, on_stderr=said.append)
        assert (done.exit_code, done.stdout, said) == (1, "read\n", ["read\n", "no such package\n"])
        assert sandbox.install("six").exit_code == 1
    keys = [seen.headers["idempotency-key"] for seen in service.seen[1:]]
    assert (keys[0], keys[2]) == (keys[1], keys[3])
    assert keys[0] != keys[2]


async def test_cancelled_install_is_ended_at_once(service: Script, async_sandbox: AsyncSandbox) -> None:
    """Without the signal, the service would wait some seconds for the client to come back."""
    service.say(CUT, Reply(200, {"running": True}))
    with anyio.CancelScope() as scope:

        async def heard(_: str) -> None:
            scope.cancel()
            await anyio.sleep_forever()

        await async_sandbox.install("six", on_stdout=heard)
    assert scope.cancelled_caught
    assert (service.seen[-1].path, service.seen[-1].json()) == (f"{BASE}/processes/p1/signal", {"signal": "SIGTERM"})


def test_interrupt_before_the_first_event_ends_the_install(service: Script, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    send = httpx.Client.send

    def interrupted(*args: Any, **options: Any) -> httpx.Response:  # noqa: ANN401 - those of httpx
        monkeypatch.undo()
        send(*args, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(httpx.Client, "send", interrupted)
    service.say(Reply(200, FINISHED), CUT, Reply(200, {"running": True}))
    with pytest.raises(KeyboardInterrupt):
        sandbox.install("six")
    install, again, ended = service.seen
    assert install.headers["idempotency-key"] == again.headers["idempotency-key"]
    assert ended.path == f"{BASE}/processes/p1/signal"
