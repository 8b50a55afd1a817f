"""A call from one end to the other: both clients against a service that misbehaves in every way that a real one might."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from sandlot.model.errors import ErrorCode, InternalError, NotFoundError, SandboxEndedError, SandlotError, UnavailableError
from sandlot.sdk import AsyncSandbox, Client, Sandbox, VersionInfo, local_service, retries
from sandlot.sdk._async.backend import INPUT_BYTES
from sandlot.sdk.http import ConnectionLostError
from tests.support.archives import archive, entry
from tests.unit.sdk.scripted import SANDBOX, Reply, Script, Seen, events, problem

FILE_ENTRY = {
    "name": "x",
    "path": "/x",
    "kind": "file",
    "size_bytes": 1,
    "mode": 0o644,
    "uid": 1000,
    "gid": 1000,
    "modified_at": "2026-01-01T00:00:00Z",
    "target": None,
}
DONE = {"id": "p1", "exit_code": 0, "reason": "exited", "signal": None, "duration_s": 0.1}


def test_the_key_and_the_name_of_the_client_are_sent(service: Script) -> None:
    service.say(Reply(200, {"version": "1"}))
    with Client(url=service.url, api_key="secret") as client:
        client.service.version()
    headers = service.seen[0].headers
    assert headers["authorization"] == "Bearer secret"
    assert headers["user-agent"].startswith("sandlot-python/")


def test_an_error_is_rebuilt_from_its_code(service: Script, client: Client) -> None:
    service.say(problem(404, "sandbox_not_found", fields={"sandbox": "x"}, request_id="r1"))
    with pytest.raises(NotFoundError) as caught:
        client.sandboxes.kill("sb/../x?y")
    assert caught.value.code is ErrorCode.SANDBOX_NOT_FOUND
    assert caught.value.hint == "do this"
    assert dict(caught.value.fields) == {"sandbox": "x", "request_id": "r1"}
    assert service.seen[0].path == "/v1/sandboxes/sb%2F..%2Fx%3Fy"


def test_refused_request_is_repeated_after_the_requested_time(service: Script, client: Client) -> None:
    busy = problem(503, "busy", retryable=True, retry_after=0)
    service.say(busy, busy, Reply(201, SANDBOX))
    assert Sandbox.create("base", client=client).id == SANDBOX["id"]
    assert [seen.json() for seen in service.seen] == [{"template": "base"}] * 3


def test_request_is_not_repeated_without_a_reason(service: Script, client: Client, subtests: pytest.Subtests) -> None:
    for reply in (
        problem(503, "host_not_ready", retryable=False, retry_after=0),
        problem(500, "internal", retry_after=0),
        problem(503, "busy", retryable=True, retry_after=86400),
        Reply(502, b"<html>bad gateway</html>"),
    ):
        with subtests.test(reply=reply):
            service.seen.clear()
            service.say(reply)
            with pytest.raises(SandlotError):
                client.service.version()
            assert len(service.seen) == 1


def test_an_upload_that_cannot_be_sent_twice_is_not(service: Script, sandbox: Sandbox) -> None:
    service.say(problem(503, "busy", retryable=True, retry_after=0))
    with pytest.raises(UnavailableError):
        sandbox.files.write("/x", iter([b"a", b"b"]))
    assert [seen.body for seen in service.seen] == [b"ab"]


def test_options_of_a_write_are_query_parameters(service: Script, sandbox: Sandbox) -> None:
    service.say(Reply(200, FILE_ENTRY))
    sandbox.files.write("/x", "y")
    sandbox.files.write("/x", "y", in_place=True)
    sandbox.files.write("/x", "y", append=True, mode=0o600)
    assert [parse_qs(seen.query) for seen in service.seen] == [
        {"path": ["/x"]},
        {"path": ["/x"], "in_place": ["true"]},
        {"path": ["/x"], "append": ["true"], "mode": ["384"]},
    ]


async def test_async_upload_of_pieces_is_not_sent_again(service: Script, async_sandbox: AsyncSandbox) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"a"
        yield b"b"

    service.say(problem(503, "busy", retryable=True, retry_after=0))
    with pytest.raises(UnavailableError):
        await async_sandbox.files.write("/x", pieces())
    assert [seen.body for seen in service.seen] == [b"ab"]


def test_cut_response_is_unavailable_and_the_next_request_works(service: Script, client: Client) -> None:
    service.say(Reply(200, b'{"version"', cut=True), Reply(200, {"version": "1"}))
    with pytest.raises(ConnectionLostError):
        client.service.version()
    assert client.service.version() == VersionInfo("1")


def test_an_answer_that_is_no_json_is_refused(service: Script, client: Client) -> None:
    service.say(Reply(200, b"<html>hello</html>"))
    with pytest.raises(InternalError, match="SANDLOT_URL"):
        client.service.version()


def test_nobody_there_is_said_with_the_address(tmp_path: Path) -> None:
    with Client(url=f"unix://{tmp_path}/none") as client, pytest.raises(UnavailableError, match="none"):
        client.service.version()


def test_client_waits_for_a_service_that_restarts(service: Script, client: Client) -> None:
    service.say(Reply(200, {"version": "1"}))
    client.service.version()
    path = service.socket.rename(service.socket.with_suffix(".gone"))
    client.close()
    back = threading.Timer(0.3, path.rename, [service.socket])
    back.start()
    assert client.service.version() == VersionInfo("1")
    back.join()
    assert len(service.seen) == 2


def test_first_call_waits_for_the_next_service_if_the_socket_disappears(service: Script, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    service.say(Reply(200, {"version": "1"}))
    gone = service.socket.with_suffix(".gone")
    is_listening = local_service.is_listening

    def listens_and_disappears(path: Path) -> bool:
        found = is_listening(path)
        if back.ident is None:
            path.rename(gone)
            back.start()
        return found

    back = threading.Timer(0.3, gone.rename, [service.socket])
    monkeypatch.setattr(local_service, "is_listening", listens_and_disappears)
    assert client.service.version() == VersionInfo("1")
    back.join()


def test_cut_create_is_repeated_with_the_same_key(service: Script, client: Client) -> None:
    service.say(Reply(gone=True), Reply(201, b'{"id"', cut=True), Reply(201, SANDBOX))
    assert Sandbox.create(client=client).id == SANDBOX["id"]
    keys = [seen.headers["idempotency-key"] for seen in service.seen]
    assert len(keys) == 3
    assert len(set(keys)) == 1
    service.say(Reply(201, SANDBOX))
    Sandbox.create(client=client)
    assert service.seen[-1].headers["idempotency-key"] != keys[0]
    Sandbox.create(client=client, idempotency_key="mine")
    assert service.seen[-1].headers["idempotency-key"] == "mine"


def test_interrupted_call_other_than_a_create_is_not_repeated(service: Script, sandbox: Sandbox, subtests: pytest.Subtests) -> None:
    calls: tuple[Callable[[Sandbox], object], ...] = (
        lambda box: box.commands.run("x"),
        lambda box: box.files.write("/x", "y"),
        lambda box: box.set_timeout(5),
    )
    for call in calls:
        for reply in (Reply(gone=True), Reply(200, b"{", cut=True)):
            with subtests.test(call=call, reply=reply):
                service.seen.clear()
                service.say(reply)
                with pytest.raises(ConnectionLostError):
                    call(sandbox)
                assert len(service.seen) == 1


async def test_async_command_is_not_sent_again_after_a_cut(service: Script, async_sandbox: AsyncSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "_FIRST_S", 0.001)
    for reply in (Reply(gone=True), Reply(200, b"{", cut=True)):
        service.seen.clear()
        service.say(reply)
        with pytest.raises(ConnectionLostError):
            await async_sandbox.commands.run("x")
        assert len(service.seen) == 1


def test_next_page_is_requested_when_the_page_is_used_up(service: Script, client: Client) -> None:
    service.say(Reply(200, {"sandboxes": [SANDBOX] * 2, "next_cursor": "c"}), Reply(200, {"sandboxes": [SANDBOX], "next_cursor": None}))
    found = client.sandboxes.iter()
    next(found)
    next(found)
    assert len(service.seen) == 1
    assert len(list(found)) == 1
    assert len(service.seen) == 2


def test_repeated_page_cursor_is_an_error(service: Script, client: Client) -> None:
    service.say(Reply(200, {"sandboxes": [SANDBOX], "next_cursor": "c"}))
    with pytest.raises(InternalError):
        client.sandboxes.list()
    assert len(service.seen) == 2


def test_sandboxes_are_listed_by_name_and_processes_restarted(service: Script, sandbox: Sandbox) -> None:
    service.say(Reply(201, SANDBOX), Reply(200, {"sandboxes": [SANDBOX], "next_cursor": None}), Reply(201, {"id": "new", "pid": 7}))
    Sandbox.create(name="n", url=service.url).close()
    assert service.seen[-1].json() == {"name": "n"}
    assert [each.id for each in Sandbox.list(name="n", url=service.url)] == [SANDBOX["id"]]
    assert service.seen[-1].query == "name=n"
    assert sandbox.commands.restart("old") == "new"
    assert service.seen[-1].path.endswith("/processes/old/restart")


def test_connecting_to_an_ended_sandbox_says_why(service: Script, client: Client) -> None:
    service.say(Reply(200, {**SANDBOX, "state": "failed", "exit": {"reason": "oom", "detail": "it used all of its memory"}}))
    with pytest.raises(SandboxEndedError, match="all of its memory"):
        Sandbox.connect("x", client=client)


def test_a_stream_without_its_end_is_not_a_result(service: Script, sandbox: Sandbox, subtests: pytest.Subtests) -> None:
    for cut in (True, False):
        with subtests.test(cut=cut):
            service.say(events(("started", {"id": "p1"}), cut=cut))
            with pytest.raises(UnavailableError):
                sandbox.commands.run("x", on_stdout=lambda _: None)


def test_an_exception_of_a_callback_comes_out_as_it_is(service: Script, sandbox: Sandbox) -> None:
    service.say(events(("output", {"stream": "stdout", "offset": 0, "data": "x"}), ("exit", DONE)))

    def fail(_: str) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        sandbox.commands.run("x", on_stdout=fail)


def feeding(service: Script, fed: list[bytes], *, refused: Reply | None = None) -> None:
    """Let the service take standard input, or refuse each piece of it; the process ends once its input has."""

    def answer(seen: Seen) -> Reply:
        if seen.path.endswith("/stdin"):
            fed.append(seen.body if seen.method == "POST" else b"<end>")
            return refused if refused is not None and seen.method == "POST" else Reply(204)
        return Reply(headers={"Content-Type": "text/event-stream"}, pieces=_until_fed(fed))

    service.say(answer)


def _until_fed(fed: list[bytes]) -> Any:  # noqa: ANN401 - an iterable in place of a list
    yield b'event: started\ndata: {"id": "p1"}\n\n'
    while b"<end>" not in fed:
        time.sleep(0.01)
    yield b'event: exit\ndata: {"id": "p1", "exit_code": 0}\n\n'


def test_a_piece_of_standard_input_that_is_sent_again_says_where_it_belongs(service: Script, sandbox: Sandbox) -> None:
    service.say(Reply(200, {"id": "p1", "pid": 1}), Reply(200, {"stdin_bytes": 1}), problem(503, "busy", retryable=True), Reply(200), Reply(204))
    sandbox.commands.run("cat", stdin=b"\xff" * (INPUT_BYTES + 1), background=True)
    sent = [(seen.query, len(seen.body)) for seen in service.seen if seen.method == "POST" and seen.path.endswith("/stdin")]
    assert sent == [("offset=0", INPUT_BYTES), (f"offset={INPUT_BYTES}", 1), (f"offset={INPUT_BYTES}", 1)]


def test_what_fails_in_the_callers_data_is_raised_there_and_standard_input_ends(service: Script, sandbox: Sandbox) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"a"
        raise ZeroDivisionError

    fed: list[bytes] = []
    feeding(service, fed)
    with pytest.raises(ZeroDivisionError):
        sandbox.commands.run("cat", stdin=pieces())
    assert fed == [b"a", b"<end>"]


def test_standard_input_that_the_service_refuses_is_an_error_and_ends(service: Script, sandbox: Sandbox) -> None:
    fed: list[bytes] = []
    feeding(service, fed, refused=problem(413, "too_large"))
    with pytest.raises(SandlotError) as caught:
        sandbox.commands.run("cat", stdin=iter([b"a", b"b"]))
    assert caught.value.code is ErrorCode.TOO_LARGE
    assert fed == [b"ab", b"<end>"]


def test_a_command_that_takes_no_more_input_is_no_error(service: Script, sandbox: Sandbox) -> None:
    fed: list[bytes] = []
    feeding(service, fed, refused=problem(409, "conflict"))
    assert sandbox.commands.run("true", stdin=iter([b"a", b"b"])).exit_code == 0
    assert fed == [b"ab", b"<end>"]


async def test_async_chunks_of_standard_input_are_sent_with_their_offset(service: Script, async_sandbox: AsyncSandbox) -> None:
    large = b"a" * INPUT_BYTES

    async def chunks() -> AsyncIterator[bytes]:
        yield large
        yield b"b"
        yield b"c"

    fed: list[bytes] = []
    feeding(service, fed)
    assert (await async_sandbox.commands.run("cat", stdin=chunks())).exit_code == 0
    assert fed == [large, b"bc", b"<end>"]
    assert [seen.query for seen in service.seen if seen.path.endswith("/stdin")] == ["offset=0", f"offset={INPUT_BYTES}", ""]


def test_a_background_command_is_read_from_where_its_handle_stands(service: Script, sandbox: Sandbox) -> None:
    service.say(Reply(201, {"id": "p1", "pid": 9}))
    handle = sandbox.commands.run("x", background=True)
    assert service.seen[-1].json()["timeout"] is None
    service.say(events(("output", {"stream": "stdout", "offset": 0, "data": "ab"}), cut=True))
    with pytest.raises(UnavailableError):
        handle.wait()
    assert handle.stdout == "ab"
    service.say(events(("output", {"stream": "stdout", "offset": 2, "data": "c"}), ("exit", DONE)))
    result = handle.wait()
    assert service.seen[-1].query == "stdout_from=2&stderr_from=0&follow=true"
    assert result.stdout == "abc"
    assert handle.result == result
    assert handle.wait() == result


def test_a_signal_to_a_process_that_is_gone_is_false(service: Script, sandbox: Sandbox) -> None:
    service.say(Reply(200, {"running": True}))
    assert sandbox.commands.kill("p1")
    service.say(Reply(200, {"running": False}))
    assert not sandbox.commands.kill("p1", "SIGTERM")
    service.say(problem(404, "process_not_found"))
    assert not sandbox.commands.kill("p1")
    service.say(problem(404, "sandbox_not_found"))
    with pytest.raises(NotFoundError):
        sandbox.commands.kill("p1")


def test_what_cannot_be_sent_is_refused_before_anything_is(service: Script, sandbox: Sandbox) -> None:
    for call in (
        lambda: sandbox.run_code("\udcff"),
        lambda: sandbox.commands.run(["x", "\udcff"]),
        lambda: sandbox.commands.run("x", timeout=float("nan")),
        lambda: sandbox.commands.run("x", stdin="\udcff"),
        lambda: sandbox.files.read("/\udcff"),
        lambda: sandbox.files.write("/x", "\udcff"),
        lambda: sandbox.files.stat("/" + "x" * 100_000),
    ):
        with pytest.raises(SandlotError) as caught:
            call()
        assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert service.seen == []


def test_text_that_is_none_is_refused_with_the_way_out(service: Script, sandbox: Sandbox) -> None:
    service.say(Reply(200, b"\xff\xfe"))
    with pytest.raises(SandlotError, match='format="bytes"'):
        sandbox.files.read("/x")
    assert sandbox.files.read("/x", "bytes") == b"\xff\xfe"


def test_download_from_a_hostile_sandbox_stays_in_its_target(service: Script, sandbox: Sandbox, tmp_path: Path) -> None:
    folder = {"name": "d", "path": "/d", "kind": "directory"}
    service.say(Reply(200, folder), Reply(200, archive(entry("../../evil", content=b"evil"))))
    with pytest.raises(SandlotError, match="outside"):
        sandbox.files.download("/d", tmp_path / "a" / "b")
    assert not list(tmp_path.rglob("*evil*"))


def test_a_signed_url_over_a_socket_is_as_the_service_gave_it(service: Script, sandbox: Sandbox) -> None:
    service.say(Reply(200, {"url": "/v1/signed/files/content?a=b", "method": "GET", "expires_at": "2026-01-01T00:00:00Z"}))
    assert sandbox.files.sign_url("/workspace/a") == "/v1/signed/files/content?a=b"
    assert service.seen[0].json() == {"path": "/workspace/a", "method": "GET", "expires_in": 3600.0}
