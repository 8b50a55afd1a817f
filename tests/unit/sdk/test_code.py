"""Code through both clients, against a service that breaks off at every point."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import parse_qs

import anyio
import httpx
import pytest

from sandlot.model.errors import ErrorCode, NotFoundError, SandboxEndedError
from sandlot.sdk import (
    AsyncSandbox,
    Context,
    Result,
    Sandbox,
    retries,
)
from tests.unit.sdk.scripted import SANDBOX, Reply, Script, Seen, events, problem

BASE = f"/v1/sandboxes/{SANDBOX['id']}"
ACCEPTED = ("accepted", {"id": "e1"})
STARTED = ("started", {"id": "e1", "execution_count": 3})
DONE: dict[str, Any] = {"id": "e1", "status": "ok", "execution_count": 3, "duration_s": 0.1}
CONTEXT = {"id": "ctx-0123456789abcdef", "language": "python", "cwd": "/workspace", "state": "idle", "execution_count": 2, "pid": 17}


def out(text: str, offset: int, stream: str = "stdout") -> tuple[str, dict[str, Any]]:
    return "output", {"stream": stream, "offset": offset, "encoding": "utf-8", "data": text}


def shown(text: str, **more: Any) -> tuple[str, dict[str, Any]]:  # noqa: ANN401 - JSON
    return "display", {"data": {"text/plain": text}, "main": False, **more}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "_FIRST_S", 0.001)


def asked(seen: Seen) -> dict[str, str]:
    return {name: value for name, (value,) in parse_qs(seen.query).items()}


def test_cut_response_is_requested_again_with_the_same_key(service: Script, sandbox: Sandbox, subtests: pytest.Subtests) -> None:
    for reply in (Reply(gone=True), Reply(200, b"{", cut=True)):
        with subtests.test(reply=reply):
            service.seen.clear()
            service.say(reply, Reply(200, {**DONE, "stdout": "a"}))
            assert sandbox.run_code("x").stdout == "a"
            keys = [seen.headers["idempotency-key"] for seen in service.seen]
            assert len(keys) == 2
            assert len(set(keys)) == 1
            sandbox.run_code("x")
            assert service.seen[-1].headers["idempotency-key"] != keys[0]


def test_broken_run_stream_is_continued(service: Script, sandbox: Sandbox) -> None:
    service.say(
        events(ACCEPTED, STARTED, out("ab", 0), shown("1"), cut=True),
        Reply(gone=True),
        events(ACCEPTED, out("b", 1), out("cd", 2), out("oops", 0, "stderr"), shown("2", main=True), cut=True),
        events(ACCEPTED, ("exit", DONE)),
    )
    told: list[str] = []
    results: list[Result] = []
    done = sandbox.run_code("x", on_stdout=told.append, on_result=results.append)
    assert (done.stdout, done.stderr, done.text, done.id, done.execution_count) == ("abcd", "oops", "2", "e1", 3)
    assert (told, [each.text for each in results]) == (["ab", "cd"], ["1", "2"])
    assert [(seen.method, seen.path) for seen in service.seen] == [("POST", f"{BASE}/code"), *[("GET", f"{BASE}/code/e1")] * 3]
    assert [asked(seen) for seen in service.seen[1:]] == [
        {"events_from": "2", "stdout_from": "2", "stderr_from": "0"},
        {"events_from": "2", "stdout_from": "2", "stderr_from": "0"},
        {"events_from": "3", "stdout_from": "4", "stderr_from": "4"},
    ]


def test_run_waits_for_the_next_service(service: Script, sandbox: Sandbox) -> None:
    stopping = ("failure", {"status": 503, "code": "service_stopping", "detail": "it stops", "hint": "", "fields": {}})
    service.say(events(ACCEPTED, STARTED, stopping), problem(503, "busy", retryable=True, retry_after=0), events(ACCEPTED, ("exit", DONE)))
    assert sandbox.run_code("x", on_stdout=print).ok
    assert [seen.method for seen in service.seen] == ["POST", "GET", "GET"]


def test_errors_other_than_cuts_are_raised(service: Script, sandbox: Sandbox) -> None:
    ended = ("failure", {"status": 410, "code": "sandbox_ended", "detail": "it ended", "hint": "", "fields": {"reason": "killed"}})
    service.say(events(ACCEPTED, STARTED, ended))
    with pytest.raises(SandboxEndedError):
        sandbox.run_code("x", on_stdout=print)
    service.say(events(ACCEPTED, cut=True), problem(404, "execution_not_found"))
    with pytest.raises(NotFoundError) as caught:
        sandbox.run_code("x", on_stdout=print)
    assert caught.value.code is ErrorCode.EXECUTION_NOT_FOUND


async def test_run_in_a_cancelled_anyio_scope_interrupts_its_code(service: Script, async_sandbox: AsyncSandbox) -> None:
    """Such a scope cancels every further wait of the task, other than a cancelled asyncio task."""
    service.say(events(ACCEPTED, STARTED, out("a", 0), cut=True), Reply(200, {"running": True}))
    with anyio.CancelScope() as scope:

        async def heard(_: str) -> None:
            scope.cancel()
            await anyio.sleep_forever()

        await async_sandbox.run_code("x", on_stdout=heard)
    assert scope.cancelled_caught
    assert service.seen[-1].path == f"{BASE}/code/e1/interrupt"


def test_interrupt_before_the_first_event_interrupts_the_code(service: Script, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    send = httpx.Client.send

    def interrupted(*args: Any, **options: Any) -> httpx.Response:  # noqa: ANN401 - those of httpx
        monkeypatch.undo()
        send(*args, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(httpx.Client, "send", interrupted)
    service.say(events(ACCEPTED, STARTED), events(ACCEPTED, STARTED), Reply(200, {"running": True}))
    with pytest.raises(KeyboardInterrupt):
        sandbox.run_code("x", on_stdout=print)
    run, again, interrupt = service.seen
    assert run.headers["idempotency-key"] == again.headers["idempotency-key"]
    assert interrupt.path == f"{BASE}/code/e1/interrupt"


async def test_asynchronous_callbacks_are_awaited_in_order(service: Script, async_sandbox: AsyncSandbox) -> None:
    told: list[object] = []

    async def heard(piece: object) -> None:
        await asyncio.sleep(0)
        told.append(piece)

    failed = {"name": "KeyError", "value": "'x'", "traceback": []}
    service.say(events(ACCEPTED, STARTED, out("a", 0), out("b", 0, "stderr"), shown("1"), ("error", failed), ("exit", {**DONE, "status": "error"})))
    done = await async_sandbox.run_code("x", on_stdout=heard, on_stderr=heard, on_result=heard, on_error=heard)
    assert told == ["a", "b", *done.results, done.error]


def test_background_run_is_awaited_polled_and_interrupted(service: Script, sandbox: Sandbox) -> None:
    service.say(Reply(202, {"id": "e1", "context": "default"}))
    handle = sandbox.run_code("x", background=True)
    assert service.seen[-1].json()["background"] is True
    assert (handle.id, handle.result) == ("e1", None)
    service.say(Reply(200, {**DONE, "status": "running", "stdout": "a", "done": False}))
    assert handle.poll() is None
    assert (handle.state().status, handle.state().stdout) == ("running", "a")
    service.say(events(ACCEPTED, STARTED, out("a", 0), cut=True), events(ACCEPTED, out("b", 1), shown("1", main=True), ("exit", DONE)))
    told: list[str] = []
    assert handle.wait(on_stdout=told.append).stdout == "ab"
    assert (told, handle.stdout, handle.stderr, [each.text for each in handle.results]) == (["a", "b"], "ab", "", ["1"])
    assert handle.result == handle.wait() == handle.poll()
    assert list(handle) == []
    service.say(Reply(200, {**DONE, "stdout": "ab"}))
    other = sandbox.connect_code("e1")
    assert other.poll() == other.result
    assert other.result is not None
    assert other.result.stdout == "ab"
    service.say(Reply(200, {"running": False}))
    assert not handle.interrupt()


def test_cut_create_of_a_context_is_repeated_with_the_same_key(service: Script, sandbox: Sandbox) -> None:
    made = {"id": "ctx-0123456789abcdef", "language": "python", "cwd": "/workspace", "state": "starting", "execution_count": 0, "pid": 5}
    service.say(Reply(gone=True), Reply(201, made))
    assert sandbox.contexts.create().id == made["id"]
    first, again = service.seen[-2:]
    assert first.path == again.path == f"/v1/sandboxes/{sandbox.id}/contexts"
    assert first.headers["idempotency-key"] == again.headers["idempotency-key"]


def test_contexts_are_created_listed_and_addressed_by_object_or_id(service: Script, sandbox: Sandbox) -> None:
    service.say(Reply(201, CONTEXT))
    made = sandbox.contexts.create("python", cwd="/tmp", envs={"A": "b"})
    assert made == Context("ctx-0123456789abcdef", "python", "/workspace", "idle", 2, 17)
    assert service.seen[-1].json() == {"language": "python", "cwd": "/tmp", "env": {"A": "b"}}
    assert sandbox.create_code_context("/tmp") == made
    assert service.seen[-1].json() == {"language": "python", "cwd": "/tmp"}
    service.say(Reply(200, {"contexts": [CONTEXT, {"id": "bash", "language": "bash", "new": 1}]}))
    assert [each.id for each in sandbox.contexts.list()] == [made.id, "bash"]
    service.say(Reply(200, CONTEXT))
    assert sandbox.contexts.get(made) == sandbox.contexts.get(made.id) == made
    service.say(Reply(204))
    sandbox.contexts.delete(made)
    sandbox.contexts.restart("a/b")
    sandbox.contexts.restart()
    service.say(Reply(200, {"running": True}))
    assert sandbox.contexts.interrupt(made)
    assert [(seen.method, seen.path.removeprefix(f"{BASE}/contexts")) for seen in service.seen][-6:] == [
        ("GET", f"/{made.id}"),
        ("GET", f"/{made.id}"),
        ("DELETE", f"/{made.id}"),
        ("POST", "/a%2Fb/restart"),
        ("POST", "/default/restart"),
        ("POST", f"/{made.id}/interrupt"),
    ]
