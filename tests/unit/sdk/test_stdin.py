"""Standard input of commands: few requests, and no byte lost or written twice by a request that is repeated."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from typing import Any

import pytest

from sandlot.sdk import ConflictError, Sandbox, UnavailableError
from sandlot.sdk._sync import backend
from sandlot.sdk._sync.backend import INPUT_BYTES
from tests.unit.sdk.scripted import Reply, Script, problem

PROCESS = Reply(201, {"id": "0" * 32, "pid": 7})
CHUNK = bytes(range(256)) * 32
"""8 KiB."""


def feed(sandbox: Sandbox, stdin: Any) -> None:  # noqa: ANN401 - background commands take iterables as others do
    sandbox.commands.run("cat", background=True, stdin=stdin)


def written(service: Script) -> list[bytes]:
    """The bodies of the writes, in their order."""
    return [seen.body for seen in service.seen if (seen.method, seen.path.rsplit("/", 1)[1]) == ("POST", "stdin")]


def offsets(service: Script) -> list[str]:
    return [seen.query for seen in service.seen if (seen.method, seen.path.rsplit("/", 1)[1]) == ("POST", "stdin")]


def test_chunks_of_an_iterable_share_a_request(service: Script, sandbox: Sandbox) -> None:
    service.say(PROCESS, Reply(200, {"stdin_bytes": 1}))
    count = INPUT_BYTES // len(CHUNK) + 1

    feed(sandbox, iter([CHUNK] * count))

    assert written(service) == [CHUNK * (count - 1), CHUNK]
    assert offsets(service) == ["offset=0", f"offset={INPUT_BYTES}"]
    assert (service.seen[-1].method, service.seen[-1].path.rsplit("/", 1)[1]) == ("DELETE", "stdin")


def test_large_input_is_divided(service: Script, sandbox: Sandbox) -> None:
    data = CHUNK * (INPUT_BYTES // len(CHUNK)) + b"end"
    for stdin in (data, io.BytesIO(data)):
        service.seen.clear()
        service.say(PROCESS, Reply(200, {"stdin_bytes": 1}))

        feed(sandbox, stdin)

        assert written(service) == [data[:INPUT_BYTES], b"end"]


def test_failed_write_of_an_iterable_is_sent_again_with_its_offset(service: Script, sandbox: Sandbox) -> None:
    service.say(PROCESS, Reply(gone=True), Reply(200, {"stdin_bytes": 1}))

    feed(sandbox, iter([b"one", b"two"]))

    assert written(service) == [b"onetwo", b"onetwo"]
    assert offsets(service) == ["offset=0", "offset=0"]


def test_write_that_paused_for_too_long_is_sent_again(service: Script, sandbox: Sandbox) -> None:
    service.say(PROCESS, problem(408, "timeout"), Reply(200, {"stdin_bytes": 1}))

    feed(sandbox, iter([b"one", b"two"]))

    assert written(service) == [b"onetwo", b"onetwo"]


def test_write_that_fails_twice_is_an_error(service: Script, sandbox: Sandbox) -> None:
    service.say(PROCESS, Reply(gone=True))

    with pytest.raises(UnavailableError):
        feed(sandbox, iter([b"one"]))


def test_write_to_a_closed_input_is_not_repeated(service: Script, sandbox: Sandbox) -> None:
    service.say(PROCESS, problem(409, "conflict"))

    with pytest.raises(ConflictError):
        feed(sandbox, iter([b"one"]))

    assert len(written(service)) == 1


def test_error_of_the_iterable_is_raised_after_the_chunks_before_it(service: Script, sandbox: Sandbox) -> None:
    def broken() -> Iterator[bytes]:
        yield b"one"
        raise OSError("unreadable")

    service.say(PROCESS, Reply(200, {"stdin_bytes": 1}))

    with pytest.raises(OSError, match="unreadable"):
        feed(sandbox, broken())

    assert written(service) == [b"one"]


def test_pipe_is_read_as_its_bytes_arrive() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"first")
    with os.fdopen(reading, "rb") as pipe:
        chunks = backend.chunks(pipe, INPUT_BYTES)
        assert next(chunks) == b"first"
        os.close(writing)
        assert list(chunks) == []
