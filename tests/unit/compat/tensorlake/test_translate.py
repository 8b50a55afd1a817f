"""Translation between the Tensorlake API and the node."""

from __future__ import annotations

import pytest

from sandlot.compat.tensorlake import translate
from sandlot.compat.tensorlake.control.schemas import CreateSandboxRequest
from sandlot.compat.tensorlake.runtime import translate as inner
from sandlot.compat.tensorlake.runtime.lines import MAX_LINE_BYTES, LineBuffer
from sandlot.compat.tensorlake.runtime.schemas import StartProcessRequest
from sandlot.model.buffer_budget import BufferBudget
from sandlot.model.errors import InvalidRequestError
from sandlot.model.executions import Output, OutputGap, ProcessOutcome
from sandlot.model.ids import ProcessId
from sandlot.model.specs import SnapshotKind, User
from sandlot.model.states import State
from tests.support.cases import cases


def test_every_state_is_translated() -> None:
    assert set(translate.STATUSES) == set(State)


def test_snapshot_holds_memory_by_default() -> None:
    kinds = [SnapshotKind.MEMORY, SnapshotKind.MEMORY, SnapshotKind.FILES]
    assert [translate.snapshot_kind(word) for word in (None, "memory", "filesystem")] == kinds


@cases("given, seconds", [(None, 300.0), (0, None), (77, 77.0)])
def test_zero_means_no_timeout(given: int | None, seconds: float | None) -> None:
    assert translate.create_params(CreateSandboxRequest(timeout_secs=given)).timeout_s == seconds


@cases(
    "asked, user",
    [
        (None, User.USER),
        ("user", User.USER),
        ("1000:1000", User.USER),
        ("root", User.ROOT),
        ({"uid": 0}, User.ROOT),
        ({"uid": 1000, "gid": 1000}, User.USER),
        ({"name": "root", "uid": None}, User.ROOT),
        ("nobody", User("nobody")),
        ("0:5", User("0:5")),
        ({"uid": 5}, User("5")),
        ({"name": "www-data", "gid": 5}, User("www-data:5")),
    ],
)
def test_users_are_names_or_ids(asked: str | dict[str, str | int | None] | None, user: User) -> None:
    assert translate.user(asked) == user


@cases("asked", ["", "a b", "a:b:c", {}, {"name": "root", "uid": 0}, {"gid": 0}, {"name": "root", "x": "y"}])
def test_values_that_are_no_user_are_refused(asked: str | dict[str, str | int | None]) -> None:
    with pytest.raises(InvalidRequestError):
        translate.user(asked)


@cases("word, pid", [("7", 7), ("0", 0), ("kitty", None), ("7a", None), ("-7", None), ("9" * 50, 1 << 31), ("", None)])
def test_process_selector_is_a_pid_or_a_name(word: str, pid: int | None) -> None:
    assert inner.parse_pid(word) == pid


@cases(
    "reason, signal, told",
    [
        ("exited", None, {"exit_code": 137, "reason": "exited"}),
        ("signalled", 15, {"signal": 15, "reason": "signaled", "oom_killed": False}),
        ("timeout", 9, {"signal": 9, "reason": "timed_out", "oom_killed": False}),
        ("timeout", None, {"signal": 9, "reason": "timed_out", "oom_killed": False}),
        ("oom", 9, {"signal": 9, "reason": "oom_killed", "oom_killed": True}),
    ],
)
def test_process_outcome_is_translated(reason: str, signal: int | None, told: dict[str, object]) -> None:
    assert inner.ended(ProcessOutcome(ProcessId("0" * 32), 137, signal, reason, 1.0)) == told


@cases("name", ["", "5", "a/b"])
def test_invalid_process_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError):
        inner.start_spec(StartProcessRequest(command="true", name=name))


def test_terminal_messages_are_translated() -> None:
    assert inner.parse_size(b"\x01\x00\x64\x00\x1e") == (30, 100)
    assert inner.exit_message(-1) == b"\x03\xff\xff\xff\xff"
    with pytest.raises(InvalidRequestError):
        inner.parse_size(b"\x01\x00")


def test_lines_are_joined_and_their_memory_is_released() -> None:
    buffers = BufferBudget(4 * MAX_LINE_BYTES)
    lines = LineBuffer(buffers)
    assert lines.add(Output(1, 0, b"a\nb")) == [(1, "a")]
    assert lines.add(Output(2, 0, b"err")) == []
    assert buffers.taken_bytes == 4
    assert lines.add(Output(1, 3, b"c\xff\r\n\nd")) == [(1, "bc\ufffd\r"), (1, "")]
    assert lines.add(OutputGap(2, 7, 3)) == [(2, "err"), (2, "[7 bytes are no longer kept]")]
    assert lines.end() == [(1, "d")]
    assert lines.end() == []
    assert buffers.taken_bytes == 0
    lines.add(Output(1, 0, b"x"))
    lines.close()
    assert buffers.taken_bytes == 0


def test_endless_line_is_split_between_two_characters() -> None:
    for most in (3 * MAX_LINE_BYTES, 100_000):
        lines = LineBuffer(BufferBudget(most))
        raw, size = "☕".encode() * 4_000_000, 64_000
        told = [line for at in range(0, len(raw), size) for line in lines.add(Output(1, at, raw[at : at + size]))]
        assert told
        assert all("\ufffd" not in text for _, text in told)
        assert sum(len(text) for _, text in [*told, *lines.end()]) == 4_000_000


def test_endless_line_is_split() -> None:
    for most in (4 * MAX_LINE_BYTES, 100_000):
        buffers = BufferBudget(most)
        lines = LineBuffer(buffers)
        piece = b"x" * 64_000
        told = [line for _ in range(300) for line in lines.add(Output(1, 0, piece))]
        assert sum(len(text) for _, text in [*told, *lines.end()]) == 300 * len(piece)
        assert max(len(text) for _, text in told) <= MAX_LINE_BYTES + len(piece)
        assert buffers.taken_bytes == 0
