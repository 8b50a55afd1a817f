"""Hostile guests: root inside can forge any byte of the link. Only this sandbox ends, and its callers get an error."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from sandlot.link.client import Link
from sandlot.link.turns import READ_BYTES, SLOW_READ_BYTES
from sandlot.link.types import LinkClosedReason
from sandlot.model.errors import SandboxEndedError
from sandlot.model.executions import Output
from sandlot.model.ids import ProcessId
from sandlot.model.specs import CellSpec, ProcessSpec
from sandlot.protocol import frames, schema, values
from sandlot.protocol.streams import COST_MIN, WINDOW_BYTES
from tests.unit.link.peer import ENTRY, PeerCall, Pipes, ended, linked, stat, until
from tests.unit.link.test_client import CASES, CELL, ENDED, PROCESS

ID = ProcessId("ab" * 16)
SPEC = ProcessSpec(("true",))
MIB = 1024 * 1024


def frame(type_: int, stream: int, payload: bytes = b"", channel: int = 0, *, more: bool = False) -> bytes:
    return frames.encode(type_, stream, payload, channel, more)


# -- bytes that are no protocol -------------------------------------------------------------------------------------------

RAW = {
    "garbage": b"GET / HTTP/1.1\r\n\r\n",
    "a huge length": bytes.fromhex("a505000100000001ffffffff"),
    "an unknown type": bytes.fromhex("a5ff000000000001") + bytes(4),
    "an unknown stream": frame(frames.DATA, 999, b"x", 1),
    "more than the credit": frame(frames.DATA, 1, b"x" * 65524, 1) * 6,
    "tiny frames beyond the credit": frame(frames.DATA, 1, b"x", 1) * (WINDOW_BYTES // COST_MIN + 1),
    "an endless message": frame(frames.MESSAGE, 1, b"x" * 65524, more=True) * 130,
    "credit that was not used": frame(frames.CREDIT, 1, b"\x7f\xff\xff\xff"),
    "a value that is none": frame(frames.MESSAGE, 1, b"\xc1"),
    "deep nesting": frame(frames.MESSAGE, 1, b"\x91" * 1000),
    "a flood of streams": b"".join(frame(frames.OPEN, 2 + 2 * n, values.encode({"service": "x", "args": {}})) for n in range(2000)),
    "rest unasked": frame(frames.QUIESCED, 0),
    "another greeting": frame(frames.WELCOME, 0, bytes(28)),
    "lost": frame(frames.LOST, 0, b"\xff" * 60000),
}


@pytest.mark.parametrize("raw", RAW.values(), ids=RAW.keys())
async def test_violation_ends_the_link_and_all_its_calls(raw: bytes) -> None:
    async def start(call: PeerCall) -> None:
        call.started()
        await call.ended.wait()

    async with linked({"process.start": start, "file.stat": ended, "file.write": ended}) as (link, peer):
        process = await link.processes.start(ProcessSpec(("cat",), stdin=True))
        aiter(process)
        calls = [
            asyncio.create_task(process.result()),
            asyncio.create_task(link.files.stat("/f")),
            asyncio.create_task(link.files.write("/f", b"x" * MIB)),
        ]
        await peer.call("file.write")
        peer.answers = False  # the peer sends no regular responses from now on
        peer.raw(raw)
        lost = await link.wait_closed()
        assert lost.reason is LinkClosedReason.VIOLATION
        assert lost.detail
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, SandboxEndedError)
            assert outcome.fields["link"] == "violation"
        with pytest.raises(SandboxEndedError):
            await link.info()


async def _collect(call: Any) -> list[Any]:  # noqa: ANN401
    return [item async for item in call]


@pytest.mark.parametrize("cut", [0, 1, 11, 12, 30])
async def test_end_of_the_guest_within_a_frame_ends_the_link(cut: int) -> None:
    async def stat(call: PeerCall) -> None:
        call.peer.answers = False
        call.peer.raw(frame(frames.MESSAGE, call.stream, values.encode({"result": ENTRY}))[:cut])
        await until(lambda: not call.peer.unsent)
        call.peer.close()

    async with linked({"file.stat": stat}) as (link, _):
        with pytest.raises(SandboxEndedError):
            await link.files.stat("/f")
        assert (await link.wait_closed()).reason is LinkClosedReason.EOF


# -- answers that are none -------------------------------------------------------------------------------------------------

WRONG: list[Any] = [None, -1, 2**63, 1e400, "x" * 70_000, b"x", ["x"] * 2000, {"x": 1}]

MAKE: dict[str, tuple[Callable[[Link], Awaitable[Any]], dict[str, Any]]] = {
    **{name: (make, answer) for name, (make, answer, _, _) in CASES.items()},
    "process.wait": (lambda link: link.processes.wait(ID), ENDED),
    "guest.info": (
        lambda link: link.info(),
        {"generation": 1, "identity": "i", "uptime_s": 1.0, "processes": 1, "tasks": 1, "cpu_s": 0.5, "streams": 1},
    ),
}


def spoiled() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each result with a field missing, with a field of every wrong type, and with an additional field."""
    for name, (_, answer) in MAKE.items():
        yield name, {**answer, "unknown": 1}
        for field, value in answer.items():
            yield name, {key: other for key, other in answer.items() if key != field}
            for wrong in WRONG:
                if wrong != value:
                    yield name, {**answer, field: wrong}
    yield from (("process.list", {"processes": [{**PROCESS, field: None}]}) for field in ("process", "argv", "running"))
    yield from (("file.list", {"entries": [{**ENTRY, field: None}], "more": False}) for field in ("name", "kind", "mode"))
    yield "file.list", {"entries": [ENTRY] * 1001, "more": False}
    yield "process.list", {"processes": [PROCESS] * 1025}


async def test_response_is_within_all_limits_or_a_violation() -> None:
    """Some changed values are valid, such as an empty name. They must be returned unchanged."""
    violations = 0
    for name, answer in spoiled():

        async def serve(call: PeerCall, answer: dict[str, Any] = answer) -> None:
            call.result(**answer)

        async with linked({name: serve}) as (link, _):
            try:
                given = await MAKE[name][0](link)
            except SandboxEndedError:
                assert (await link.wait_closed()).reason is LinkClosedReason.VIOLATION
                violations += 1
            else:
                assert not link.closed
                assert schema.validate_fields(schema.CALLS[name]["result"], answer) == "", f"{name} took {answer}"
                assert len(repr(given)) < 5000
    assert violations > 300


BAD_ENDS: list[Any] = [
    {**ENDED, "process": "cd" * 16},
    {**ENDED, "pid": 8},
    {**ENDED, "pid": 0},
    {**ENDED, "reason": None},
    {**ENDED, "reason": "bored"},
    {**ENDED, "exit_code": 256},
    {**ENDED, "exit_code": None},
    {**ENDED, "signal": 9},
    {**ENDED, "exit_code": None, "signal": 65},
    {**ENDED, "duration_s": float("nan")},
    {**ENDED, "duration_s": -1.0},
    {**ENDED, "duration_s": float("inf")},
    {**ENDED, "more": 1},
    {},
    None,
    [],
]


@pytest.mark.parametrize("result", BAD_ENDS, ids=range(len(BAD_ENDS)))
@pytest.mark.parametrize("attach", [True, False])
async def test_impossible_result_of_a_process_is_a_violation(result: object, *, attach: bool) -> None:
    async def serve(call: PeerCall) -> None:
        call.started(9)
        call.say({"result": result})
        call.end()

    async with linked({"process.start": serve, "process.attach": serve}) as (link, _):
        with pytest.raises(SandboxEndedError):
            await (await (link.processes.attach(ID) if attach else link.processes.start(SPEC, id=ID))).result()
        assert (await link.wait_closed()).reason is LinkClosedReason.VIOLATION


Misdeed = Callable[[PeerCall], None]


def _says(*messages: object) -> Misdeed:
    def misdeed(call: PeerCall) -> None:
        for message in messages:
            if isinstance(message, tuple):
                call.put(*message)
            elif message == "end":
                call.end()
            else:
                call.say(message)

    return misdeed


STARTED = {"event": "started", "pid": 9}
RESULT = {"result": ENDED}
STAT = {"event": "stat", **ENTRY}
INPUT = {"event": "input", "received": 0, "stdin_bytes": 0}

MISDEEDS: dict[str, tuple[str, Misdeed]] = {
    "no map": ("process", _says(STARTED, [])),
    "an unknown event": ("process", _says(STARTED, {"event": "display", "data": {}, "main": True})),
    "an event without a name": ("process", _says(STARTED, {"pid": 9})),
    "an event whose name is bytes": ("process", _says(STARTED, {"event": b"started", "pid": 9})),
    "an event whose name cannot be looked up": ("process", _says(STARTED, {"event": [], "pid": 9})),
    "started twice": ("process", _says(STARTED, STARTED)),
    "started as nobody": ("process", _says({"event": "started", "pid": 0})),
    "started as everybody": ("process", _says({"event": "started", "pid": -1})),
    "ended without a start": ("process", _says(RESULT)),
    "ended without a result": ("process", _says(STARTED, "end")),
    "two results": ("process", _says(STARTED, RESULT, RESULT)),
    "a result with more": ("process", _says(STARTED, {**RESULT, "more": 1})),
    "bytes after the result": ("process", _says(STARTED, RESULT, (1, b"x"))),
    "an event after the result": ("process", _says(STARTED, RESULT, {"event": "lost", "channel": 1, "bytes": 1})),
    "output on channel 0": ("process", _says(STARTED, (0, b"x"))),
    "output on channel 3": ("process", _says(STARTED, (3, b"x"))),
    "a loss of nothing": ("process", _says(STARTED, {"event": "lost", "channel": 1, "bytes": 0})),
    "a loss that is negative": ("process", _says(STARTED, {"event": "lost", "channel": 1, "bytes": -5})),
    "a loss on channel 7": ("process", _says(STARTED, {"event": "lost", "channel": 7, "bytes": 5})),
    "an offset beyond all offsets": ("process", _says(STARTED, *[{"event": "lost", "channel": 1, "bytes": 2**62}] * 3)),
    "an input of more than was sent": ("input", _says({"event": "input", "received": 5, "stdin_bytes": 5})),
    "an input that shrinks": ("input", _says({**INPUT, "stdin_bytes": 2}, {**INPUT, "stdin_bytes": 1})),
    "an input beyond all offsets": ("input", _says({**INPUT, "stdin_bytes": 2**63 - 1, "received": -1})),
    "an input after the last": ("input", _says({"result": {"received": 0, "stdin_bytes": 0}}, INPUT)),
    "output of an input": ("input", _says(INPUT, (1, b"x"))),
    "a display of numbers": ("cell", _says({"event": "display", "data": {"text/plain": 1}, "main": True})),
    "a display of no MIME type": ("cell", _says({"event": "display", "data": {"<script>": "x"}, "main": True})),
    "a display of too much": ("cell", _says({"event": "display", "data": {f"text/x{n}": "x" for n in range(65)}, "main": True})),
    "a display without a main": ("cell", _says({"event": "display", "data": {}})),
    "a traceback without end": ("cell", _says({"event": "error", "name": "E", "value": "", "traceback": ["x"] * 1001})),
    "a line without end": ("cell", _says({"event": "error", "name": "E", "value": "", "traceback": ["x" * 65537]})),
    "an error of bytes": ("cell", _says({"event": "error", "name": b"E", "value": "", "traceback": []})),
    "a status of its own": ("cell", _says({"result": {**CELL, "status": "great"}})),
    "a body before the file": ("read", _says((0, b"x"))),
    "a file twice": ("read", _says(STAT, STAT)),
    "more bytes than were asked for": ("read", _says(STAT, (0, b"x" * 11))),
    "bytes on channel 1": ("read", _says(STAT, (1, b"x"))),
    "a wrong count": ("read", _says(STAT, (0, b"xyz"), {"result": {"bytes": 4}}, "end")),
    "a count without a file": ("read", _says({"result": {"bytes": 0}}, "end")),
    "a file that cannot be": ("read", _says({**STAT, "mode": 0o170644})),
    "bytes for a question": ("stat", _says((0, b"x"))),
    "an event for a question": ("stat", _says({"event": "stat", **ENTRY})),
    "written before it was sent": ("write", _says({"result": ENTRY}, "end")),
}


@pytest.mark.parametrize("kind, misdeed", MISDEEDS.values(), ids=MISDEEDS.keys())
async def test_invalid_stream_is_a_violation(kind: str, misdeed: Misdeed) -> None:
    async def serve(call: PeerCall) -> None:
        misdeed(call)

    names = ["process.start", "process.input", "kernel.execute", "file.read", "file.stat", "file.write"]
    async with linked(dict.fromkeys(names, serve)) as (link, _):
        with pytest.raises(SandboxEndedError):
            await _ask(link, kind)
        assert (await link.wait_closed()).reason is LinkClosedReason.VIOLATION


async def _ask(link: Link, kind: str) -> None:
    async def never() -> Any:  # noqa: ANN401
        yield b"x"
        await link.wait_closed()

    if kind == "process":
        await (await link.processes.start(SPEC, id=ID)).result()
    elif kind == "input":
        await (await link.processes.open_input(ID)).wait()
    elif kind == "cell":
        await (await link.kernels.execute(CellSpec("1"))).result()
    elif kind == "read":
        await _collect(await link.files.read("/f", length=10))
    elif kind == "stat":
        await link.files.stat("/f")
    else:
        await link.files.write("/f", never())
    await link.wait_closed()  # the call may have ended well before the misdeed
    raise SandboxEndedError("after the call")


# -- floods -----------------------------------------------------------------------------------------------------------------


async def test_flood_of_ignored_frames_takes_no_memory_and_does_not_block_others() -> None:
    past = (frame(frames.RESET, 1, b"") + frame(frames.CREDIT, 1, b"") + frame(frames.DATA, 1, b"x", 1)) * 500
    async with linked({"file.stat": stat}) as (hostile, flooder), linked({"file.stat": stat}) as (honest, _):
        await hostile.files.stat("/f")

        async def flood() -> None:
            while True:
                if len(flooder.unsent) < len(past):
                    flooder.raw(past)
                await asyncio.sleep(0)

        flooding = asyncio.create_task(flood())
        await asyncio.sleep(0.01)
        tracemalloc.start()
        try:
            for _ in range(100):
                assert (await honest.files.stat("/f")).path == "/f"
            assert (await hostile.files.stat("/f")).path == "/f", "a flood is no violation, and its own calls go on as well"
            assert tracemalloc.get_traced_memory()[0] < 2 * MIB
        finally:
            tracemalloc.stop()
            flooding.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await flooding
        assert not hostile.closed


async def test_pipe_that_is_never_empty_does_not_block_the_loop() -> None:
    """A separate process sends the flood, so that there is always more to read."""
    past = (frame(frames.RESET, 1, b"") + frame(frames.CREDIT, 1, b"")) * 1000
    async with linked({"file.stat": stat}) as (hostile, flooder), linked({"file.stat": stat}) as (honest, _):
        await hostile.files.stat("/f")
        # Open the pipe again, so that the flooder may block and the peer not: O_NONBLOCK belongs to the open file (open(2)).
        pipe = os.open(f"/proc/self/fd/{flooder.stream.write_fd}", os.O_WRONLY)
        program = f"import os\npast = bytes.fromhex({past.hex()!r})\nwhile True: os.write(1, past); os.write(2, b'.')"
        flood = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=pipe, stderr=asyncio.subprocess.PIPE)
        os.close(pipe)
        assert flood.stderr is not None
        stream = hostile._session.transport._stream  # noqa: SLF001 - the test's own end of the pipe
        assert isinstance(stream, Pipes)
        try:
            await flood.stderr.readexactly(20)
            before = stream.reads
            for _ in range(50):
                assert (await honest.files.stat("/f")).path == "/f"
            assert stream.reads - before < 50 * READ_BYTES // SLOW_READ_BYTES, "the flood took more time than the calls"
            assert not hostile.closed
        finally:
            flood.kill()
            await flood.communicate()


async def test_memory_of_unread_small_frames_is_limited() -> None:
    streams = 2

    async def start(call: PeerCall) -> None:
        call.started()
        for number in range(WINDOW_BYTES // COST_MIN - 1):
            call.peer.connection.send_bytes(call.stream, 1 + number % 2, b"x")
        call.peer.flush()

    async with linked({"process.start": start}) as (link, peer):
        tracemalloc.start()
        try:
            processes = [await link.processes.start(SPEC) for _ in range(streams)]
            for _ in range(50):
                await asyncio.sleep(0)
            await until(lambda: not peer.unsent)
            host = [item for item in tracemalloc.take_snapshot().statistics("filename") if "/link/" in item.traceback[0].filename]
            assert sum(item.size for item in host) < streams * 2 * WINDOW_BYTES
        finally:
            tracemalloc.stop()
        first = aiter(processes[0])
        assert [await anext(first) for _ in range(2)] == [Output(1, 0, b"x"), Output(2, 0, b"x")]


async def test_guest_that_never_reads_blocks_only_its_own_callers() -> None:
    async with linked({}) as (deaf, peer), linked({"file.stat": stat}) as (honest, _):
        peer.reads.clear()
        asking = [asyncio.create_task(deaf.kernels.execute(CellSpec("#" * MIB))) for _ in range(10)]
        writing = asyncio.create_task(deaf.files.write("/f", b"x" * 10 * MIB))
        for _ in range(20):
            assert (await honest.files.stat("/f")).path == "/f"
        assert not writing.done()
        await deaf.aclose()
        cells = await asyncio.gather(*asking)
        for outcome in await asyncio.gather(writing, *(cell.result() for cell in cells), return_exceptions=True):
            assert isinstance(outcome, Exception)


@pytest.mark.parametrize("at", range(0, 200, 13))
async def test_changed_byte_neither_hangs_a_call_nor_raises_another_error(at: int) -> None:
    """One byte of valid traffic is changed. The call ends with a result, with a model error, or with the link."""
    for change in (0x00, 0xFF, 0xA5):

        async def serve(call: PeerCall, change: int = change) -> None:
            raw = bytearray(
                frame(frames.MESSAGE, call.stream, values.encode(STARTED))
                + frame(frames.DATA, call.stream, b"out", 1)
                + frame(frames.MESSAGE, call.stream, values.encode({"result": {**ENDED, "process": call.id.hex()}}))
                + frame(frames.END, call.stream)
            )
            raw[at % len(raw)] = change
            call.peer.raw(bytes(raw))
            await asyncio.sleep(0.01)
            call.peer.close()

        async with linked({"process.start": serve}) as (link, _):
            try:
                process = await link.processes.start(SPEC)
                await _collect(process)
                result = await process.result()
            except SandboxEndedError:
                await link.wait_closed()
            else:
                assert result.reason in schema.PROCESS_REASONS
