"""Promise: whatever root inside says on the link, it can end its own sandbox and nothing else.

Root writes to the guest's own end of the link, ``/proc/1/fd/N``, what no guest would: the host must take none of it for true,
hold none of it for ever, and go on serving everybody else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

import pytest

from sandlot import Sandbox, SandlotError
from sandlot.model.errors import ErrorCode
from sandlot.protocol import frames, greeting, values
from sandlot.protocol.frames import GUEST_FRAME_MAX, HEADER_BYTES
from tests.support.inside import run_inside
from tests.support.localservice import LocalService
from tests.support.traces import NOTHING, settle

T = TypeVar("T")

ROOM = GUEST_FRAME_MAX - HEADER_BYTES
BULK_BYTES = 64 << 20

# The guest moves the link away from its standard descriptors, but to root inside all of them are there (proc(5)).
FIND = """
def link():
    ends = [fd for fd in os.listdir("/proc/1/fd") if os.readlink(f"/proc/1/fd/{fd}").startswith("host:") and fd != "2"] or ["3", "4"]
    return [f"/proc/1/fd/{fd}" for fd in ends]
"""


def _frame(type_: int, stream: int, payload: bytes = b"", *, more: bool = False, length: int | None = None) -> bytes:
    """A frame whatever it says: also one with a length that is not its payload's."""
    return frames.HEADER.pack(frames.SYNC, type_, int(more), 0, stream, len(payload) if length is None else length) + payload


LIES = {
    "noise": bytes(range(256)) * 64,
    "a length of 4 GiB": _frame(frames.DATA, 1, length=0xFFFFFFFF),
    "a length beyond the largest frame": _frame(frames.MESSAGE, 1, length=ROOM + 1),
    "an unknown type": _frame(200, 1),
    "a type that is the host's": _frame(frames.HELLO, 0, bytes(4000)),
    "unknown flags": frames.HEADER.pack(frames.SYNC, frames.MESSAGE, 0xFE, 0, 1, 0),
    "the end of the connection": _frame(frames.LOST, 0, b"goodbye"),
    "a rest that nobody asked for": _frame(frames.QUIESCED, 0),
    "a welcome that answers nobody": greeting.welcome(bytes(16), 1, asleep=True),
    "a stream of the host's": _frame(frames.OPEN, 4_000_000_001, values.encode({"call": "file.read"})),
    "a service call that is none": _frame(frames.OPEN, 2, values.encode([1, 2, 3])),
    "bad values": _frame(frames.OPEN, 2, b"\xc1" * 100),
    "deep values": _frame(frames.OPEN, 2, b"\x91" * 60_000 + b"\xc0"),
    "a map of 4 billion items": _frame(frames.OPEN, 2, b"\xdf\xff\xff\xff\xff"),
}


@pytest.fixture(scope="module")
def other(service: LocalService) -> Iterator[Sandbox]:
    """Somebody else's sandbox, which must notice nothing."""
    with service.create() as made:
        assert made.run_code("mine = 42").ok
        yield made


@pytest.fixture(autouse=True)
def _others_notice_nothing(service: LocalService, other: Sandbox) -> Iterator[None]:
    refs, opened = service.refs(), service.descriptors()
    yield
    assert service.is_alive()
    assert other.run_code("mine").text == "42"
    assert other.commands.run("echo alive").stdout == "alive\n"
    settle(lambda: service.traces(keep=refs), NOTHING)
    settle(service.descriptors, opened)
    assert [record for record in service.records() if record.get("level") in {"error", "critical"}] == [], "no defect was met"


@pytest.mark.parametrize("lie", LIES, ids=list(LIES))
def test_a_lie_ends_its_own_sandbox(service: LocalService, lie: str) -> None:
    with service.create() as liar:
        _say(liar, LIES[lie])
        ended = _end_of(liar)
        assert ended.fields["reason"] == "crashed"
        assert "link" in str(ended.fields["detail"])
        assert ended.hint
        info = liar.info()
        assert (info.state, info.exit_reason) == ("failed", "crashed")


@pytest.mark.parametrize(
    "told",
    [
        pytest.param(b"".join(_frame(frames.DATA, 2 * number + 1, b"x") for number in range(1000)), id="bytes"),
        pytest.param(b"".join(_frame(frames.END, number) for number in range(1, 2000)), id="ends"),
        pytest.param(b"".join(_frame(frames.CREDIT, number, b"\xff" * 4) for number in range(1, 2000)), id="credit"),
        pytest.param(
            b"".join(_frame(frames.RESET, number, values.encode({"code": "unauthenticated", "message": "x"})) for number in range(1, 2000)),
            id="resets",
        ),
        pytest.param(b"".join(_frame(frames.MESSAGE, 2 * number + 1, values.encode({"result": {}})) for number in range(1000)), id="answers"),
    ],
)
def test_words_about_unknown_streams_end_the_sandbox_or_are_ignored(service: LocalService, told: bytes) -> None:
    with service.create() as liar:
        _say(liar, told)
        outcome = _outcome(lambda: liar.commands.run("echo still here", timeout=20).stdout)
        assert outcome == "still here\n" or _reason(outcome) == "crashed"


@pytest.mark.parametrize(
    "piece",
    [
        pytest.param(
            _frame(frames.OPEN, 2, bytes(ROOM), more=True) + _frame(frames.MESSAGE, 2, bytes(ROOM), more=True) * 15, id="one endless message"
        ),
        pytest.param(b"".join(_frame(frames.OPEN, 2 * n, values.encode({"service": "x", "args": {}})) for n in range(1, 5000)), id="streams"),
        pytest.param(b"\0" * (1 << 20), id="zeros"),
        pytest.param(_frame(frames.WELCOME, 0, bytes(29)) * 1000, id="greetings"),
    ],
)
def test_a_flood_is_neither_kept_nor_does_it_stop_others(service: LocalService, other: Sandbox, piece: bytes) -> None:
    memory_before = _memory_bytes(service.pid)
    with service.create() as liar:
        flooding = _later(lambda: _say(liar, piece, times=max(1, BULK_BYTES // len(piece))))
        for _ in range(20):
            assert other.commands.run("echo served").stdout == "served\n"
        flooding.result(timeout=120)
        assert _end_of(liar).fields["reason"] == "crashed"
    assert _memory_bytes(service.pid) - memory_before < BULK_BYTES // 2


def test_an_answer_that_is_forged_harms_only_whoever_asked_there(service: LocalService) -> None:
    """Answers on every stream that the host may have open, with values beyond every limit."""
    results = [
        {"result": {"process": "0" * 32, "pid": -1, "reason": "exited", "exit_code": 1 << 62, "signal": None, "duration_s": float("nan")}},
        {"result": {"entries": [{"name": "../../etc/passwd"}] * 2000, "more": True}},
        {"event": "started", "pid": 1 << 62},
        {"event": "display", "data": {"text/plain": "x" * 60_000, "../../evil": b"x"}, "main": True},
        {"event": "lost", "channel": 1, "bytes": -1},
    ]
    for result in results:
        with service.create() as liar:
            waiting = _later(lambda: liar.commands.run("sleep 30", timeout=60))
            _wait_for_process(liar)
            _say(liar, b"".join(_frame(frames.MESSAGE, stream, values.encode(result)) for stream in range(1, 400, 2)))
            with pytest.raises(SandlotError) as refused:
                waiting.result(timeout=60)
            assert refused.value.code is ErrorCode.SANDBOX_ENDED


@pytest.mark.parametrize("how", ["kill -9 1", "kill -SEGV 1", "kill -ABRT 1"])
def test_a_guest_that_is_killed_takes_its_sandbox_along(service: LocalService, how: str) -> None:
    with service.create() as mortal:
        with pytest.raises(SandlotError) as refused:
            mortal.commands.run(f"{how}; sleep 30", user="root", timeout=60)
        assert refused.value.code is ErrorCode.SANDBOX_ENDED
        assert refused.value.fields["reason"] in {"exited", "crashed", "killed"}
        assert mortal.info().state in {"stopped", "failed"}
        assert _end_of(mortal).hint


def test_a_guest_whose_own_files_are_overwritten_goes_on_or_takes_its_sandbox_along(service: LocalService) -> None:
    vandal = "for file in $(find /.sandlot -type f); do echo gone >$file; done; rm -rf /.sandlot; echo still here"
    with service.create() as mortal:
        outcome = _outcome(lambda: mortal.commands.run(vandal, user="root", timeout=30).stdout)
        assert outcome == "still here\n" or _reason(outcome) in {"exited", "crashed", "killed"}


def test_a_guest_that_stops_answering_is_not_waited_for_for_ever(service: LocalService) -> None:
    """Slow: the host gives a guest 30 s beyond a command's own timeout before it stops waiting."""
    with service.create() as silent:
        with pytest.raises(SandlotError) as refused:
            silent.commands.run("kill -STOP 1; sleep 60", user="root", timeout=1)
        assert refused.value.code is ErrorCode.TIMEOUT
        assert refused.value.hint
        calls: list[Callable[[], object]] = [lambda: silent.files.stat("/workspace"), lambda: silent.run_code("1", timeout=None)]
        waiting = [_later(call) for call in calls]
        silent.kill()
        for answer in waiting:
            with pytest.raises(SandlotError) as refused:
                answer.result(timeout=60)
            assert refused.value.code is ErrorCode.SANDBOX_ENDED


def _say(liar: Sandbox, told: bytes, *, times: int = 1) -> None:
    """Write bytes to the host, as root inside, past the guest. The sandbox may end while it happens."""
    liar.files.write("/tmp/told", told, user="root")
    seen = _outcome(
        lambda: run_inside(
            liar,
            FIND
            + """
with open("/tmp/told", "rb") as file:
    data = file.read()
for path in link():
    try:
        end = os.open(path, os.O_WRONLY)
    except OSError as error:
        told.setdefault("not", []).append([path, error.errno])
        continue
    for _ in range(given["times"]):
        view = memoryview(data)
        while view:
            view = view[os.write(end, view):]
    told.setdefault("wrote", []).append(path)
""",
            user="root",
            given={"times": times},
        )
    )
    assert _reason(seen) == "crashed" or (isinstance(seen, dict) and seen["wrote"])


def _outcome(work: Callable[[], T]) -> T | SandlotError:
    """What a call gives, or the error that it raises."""
    try:
        return work()
    except SandlotError as error:
        return error


def _reason(outcome: object) -> str:
    """Why a sandbox has ended, where that is what a call says."""
    return str(outcome.fields.get("reason")) if isinstance(outcome, SandlotError) and outcome.code is ErrorCode.SANDBOX_ENDED else ""


def _end_of(liar: Sandbox) -> SandlotError:
    """Wait for the end, which comes by itself; the error that calls get afterwards."""
    settle(lambda: liar.info().state in {"stopped", "failed"}, expected=True)
    with pytest.raises(SandlotError) as refused:
        liar.commands.run("true")
    assert refused.value.code is ErrorCode.SANDBOX_ENDED
    return refused.value


def _wait_for_process(sandbox: Sandbox) -> None:
    settle(lambda: any(process.running for process in sandbox.commands.list()), expected=True)


def _memory_bytes(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(text.split("VmRSS:")[1].split()[0]) * 1024


def _later(work: Callable[[], T]) -> Future[T]:
    """Do something beside the test."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - told to whoever asks
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
