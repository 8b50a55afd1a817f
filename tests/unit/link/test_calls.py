"""Calls about processes and cells: output by offset, input, results, and slow consumers."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest

from sandlot.link.kernels import CellCall
from sandlot.link.processes import ProcessCall
from sandlot.link.stream_end import LARGE_UNREAD_BYTES
from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError, LimitError, SandboxEndedError, SandlotError, UnavailableError
from sandlot.model.executions import CellError, CellStarted, Cleared, Display, Output, OutputGap
from sandlot.model.ids import ProcessId
from sandlot.model.specs import CellSpec, ProcessSpec
from sandlot.protocol.streams import WINDOW_BYTES
from tests.unit.link.peer import PeerCall, ended, linked, until

SPEC = ProcessSpec(("a", "b"), env={"X": "1"}, cwd="/tmp", timeout_s=5)
ID = ProcessId("0123456789abcdef" * 2)
MIB = 1024 * 1024


async def collect(call: ProcessCall | CellCall) -> list[object]:
    return [item async for item in call]


async def test_process_reports_its_pid_output_and_result() -> None:
    async def start(call: PeerCall) -> None:
        call.started(42)
        call.put(1, b"out")
        call.put(2, b"err")
        call.put(1, b"put")
        call.exited(3, pid=42)

    async with linked({"process.start": start}) as (link, peer):
        process = await link.processes.start(SPEC, id=ID)
        assert (process.id, process.pid) == (ID, 42)
        assert await collect(process) == [Output(1, 0, b"out"), Output(2, 0, b"err"), Output(1, 3, b"put")]
        result = await process.result()
        assert (result.process, result.pid, result.reason, result.exit_code, result.signal) == (ID, 42, "exited", 3, None)
        call = peer.calls[-1]
        assert call.id.hex() == ID
        assert call.args == {
            "argv": ["a", "b"],
            "env": {"X": "1"},
            "cwd": "/tmp",
            "user": "user",
            "stdin": False,
            "timeout_s": 5,
            "attach": True,
            "rows": None,
            "cols": None,
            "hidden": False,
            "measured": False,
        }
        await call.ended.wait()
        assert peer.connection.streams == 0


@pytest.mark.parametrize("code", ["unauthenticated", "sandbox_not_found", "host_not_ready", "sandbox_ended", "service_unavailable", "no such code"])
async def test_code_that_a_guest_may_not_send_becomes_internal(code: str) -> None:
    async def start(call: PeerCall) -> None:
        call.reset(code, "Because.")

    async with linked({"process.start": start}) as (link, _):
        with pytest.raises(SandlotError) as raised:
            await link.processes.start(SPEC)
        assert raised.value.code == "internal"


async def test_attached_reader_gets_the_rest_and_gaps() -> None:
    async def attach(call: PeerCall) -> None:
        call.started()
        call.event("lost", channel=1, bytes=50)
        call.put(1, b"abc")
        call.put(2, b"de")
        call.exited()

    async with linked({"process.attach": attach}) as (link, peer):
        process = await link.processes.attach(ID, stdout_from=1000, stderr_from=None)
        assert await collect(process) == [OutputGap(1, 50, 1000), Output(1, 1050, b"abc"), Output(2, 0, b"de")]
        assert (await process.result()).process == ID
        await peer.calls[-1].ended.wait()
        assert peer.connection.streams == 0, "a process that ended takes no more input, also where nobody closed it"
        assert peer.calls[-1].args == {"process": ID, "stdout_from": 1000, "stderr_from": None}
        assert peer.calls[-1].id.hex() != ID, "attaching is a call of its own"


async def test_process_that_does_not_read_stops_only_its_writer() -> None:
    async def start(call: PeerCall) -> None:
        call.consumes = False
        call.started()
        await call.over.wait()

    async with linked({"process.start": start, "process.signal": _running}) as (link, peer):
        process = await link.processes.start(ProcessSpec(("sleep",), stdin=True))
        writing = asyncio.create_task(process.write(b"x" * 4 * MIB))
        assert await link.processes.signal(ID, 15)
        call = await peer.call("process.start")
        await until(lambda: len(call.input) >= WINDOW_BYTES)
        for _ in range(100):
            assert await link.processes.signal(ID, 15)
        assert len(call.input) < WINDOW_BYTES + 4096
        assert not writing.done()
        await process.aclose()
        with pytest.raises(SandlotError):
            await writing


async def test_large_results_that_nobody_reads_are_limited_for_each_link() -> None:
    large = 7 * MIB

    async def execute(call: PeerCall) -> None:
        call.event("display", data={"text/plain": "x" * large}, main=False)
        await call.over.wait()

    async with linked({"kernel.execute": execute}) as (link, _):
        unread = []
        for _ in range(LARGE_UNREAD_BYTES // large):
            unread.append(await link.kernels.execute(CellSpec("x")))
            await until(lambda: unread[-1]._stream.unread_bytes > large)  # noqa: SLF001 - what is kept is the promise
        refused = await link.kernels.execute(CellSpec("x"))
        with pytest.raises(UnavailableError) as busy:
            await refused.wait()
        assert busy.value.code is ErrorCode.BUSY
        assert isinstance(await anext(aiter(unread[0])), Display)
        accepted = await link.kernels.execute(CellSpec("x"))
        assert isinstance(await anext(aiter(accepted)), Display)
        for call in (*unread, accepted):
            await call.aclose()


async def _running(call: PeerCall) -> None:
    call.result(running=True)


async def test_write_after_the_end_of_the_process_fails() -> None:
    async def start(call: PeerCall) -> None:
        call.consumes = False
        call.started()
        await until(lambda: len(call.input) >= WINDOW_BYTES)
        call.exited()

    async with linked({"process.start": start}) as (link, _):
        process = await link.processes.start(ProcessSpec(("head",), stdin=True))
        with pytest.raises(ConflictError, match="has ended"):
            await process.write(b"x" * 4 * MIB)
        assert (await process.result()).exit_code == 0


async def test_input_has_arrived_when_the_guest_reports_it() -> None:
    async def take(call: PeerCall) -> None:
        call.event("input", received=0, stdin_bytes=10)
        await until(lambda: len(call.input) == 6)
        call.event("input", received=4, stdin_bytes=14)

    async with linked({"process.input": take}) as (link, peer):
        async with await link.processes.open_input(ID) as stdin:
            assert (stdin.is_open, stdin.stdin_bytes) == (True, 10)
            await stdin.write(b"sixsix")
            arriving = asyncio.create_task(stdin.arrived())
            await until(lambda: stdin.arrived_bytes == 4)
            assert not arriving.done()
            peer.calls[0].event("input", received=6, stdin_bytes=16)
            assert await arriving
            assert stdin.stdin_bytes == 16
        await peer.calls[0].over.wait()
        assert peer.calls[0].reset_code == "cancelled"


async def test_input_that_is_closed_first_has_not_arrived() -> None:
    async def take(call: PeerCall) -> None:
        call.event("input", received=0, stdin_bytes=0)
        await until(lambda: call.input)
        call.result(received=2, stdin_bytes=2)

    async with linked({"process.input": take}) as (link, _):
        stdin = await link.processes.open_input(ID)
        await stdin.write(b"abc")
        assert not await stdin.arrived()
        assert not stdin.is_open
        with pytest.raises(ConflictError):
            await stdin.write(b"d")


async def test_memory_is_limited_with_a_slow_consumer() -> None:
    total = 6 * MIB
    block = bytes(range(256)) * 256

    async def start(call: PeerCall) -> None:
        call.started()
        for _ in range(total // len(block)):
            await call.data(1, block)
        call.exited()

    async with linked({"process.start": start}) as (link, _):
        process = await link.processes.start(SPEC)
        tracemalloc.start()
        try:
            at = 0
            async for item in process:
                assert isinstance(item, Output)
                assert item.offset == at
                assert item.data[:1] == block[at % 256 : at % 256 + 1]
                at += len(item.data)
                if at % 7 == 0:
                    await asyncio.sleep(0)
            # Both ends are in this process: a window at one end, a queue at the other, and the frames in the pipe.
            assert tracemalloc.get_traced_memory()[1] < 4 * WINDOW_BYTES + MIB
        finally:
            tracemalloc.stop()
        assert at == total
        assert (await process.result()).exit_code == 0


async def test_closing_a_call_resets_its_stream() -> None:
    async def start(call: PeerCall) -> None:
        call.started()
        await call.data(1, b"x" * 4 * MIB)

    async with linked({"process.start": start}) as (link, peer):
        async with await link.processes.start(SPEC) as process:
            async for _ in process:
                break
        call = peer.calls[0]
        await call.over.wait()
        assert call.reset_code == "cancelled"
        assert await collect(process) == []
        with pytest.raises(ConflictError):
            await process.result()
        await process.aclose()
        assert peer.connection.streams == 0
        assert not link.closed


async def test_cancelled_wait_for_a_result_does_not_end_the_call() -> None:
    async def start(call: PeerCall) -> None:
        call.started()
        await call.ended.wait()
        call.exited()

    async with linked({"process.start": start}) as (link, _):
        process = await link.processes.start(ProcessSpec(("cat",), stdin=True))
        impatient, patient = asyncio.create_task(process.result()), asyncio.create_task(process.result())
        await asyncio.sleep(0)
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        process.close_stdin()
        assert (await patient).exit_code == 0


async def test_wait_has_no_timeout_and_can_be_cancelled() -> None:
    async with linked({"process.wait": ended}, request_timeout_s=0.01) as (link, peer):
        waiting = asyncio.create_task(link.processes.wait(ID))
        call = await peer.call("process.wait")
        await asyncio.sleep(0.1)
        assert not waiting.done(), "no patience is lost with it"
        waiting.cancel()
        await call.over.wait()
        assert call.reset_code == "cancelled"


async def test_output_before_the_end_of_the_sandbox_is_delivered() -> None:
    async def start(call: PeerCall) -> None:
        call.started()
        call.put(1, b"last words")
        await call.peer.call("process.list")
        call.peer.close()

    async with linked({"process.start": start, "process.list": ended}) as (link, _):
        process = await link.processes.start(SPEC)
        listing = asyncio.create_task(link.processes.list())
        await link.wait_closed()
        stream = aiter(process)
        assert await anext(stream) == Output(1, 0, b"last words")
        with pytest.raises(SandboxEndedError):
            await anext(stream)
        with pytest.raises(SandboxEndedError):
            await process.result()
        with pytest.raises(SandboxEndedError):
            await listing


async def test_cell_reports_its_events_in_order() -> None:
    async def execute(call: PeerCall) -> None:
        call.event("started", count=3)
        call.put(1, b"hello\n")
        call.event("display", data={"text/plain": "<fig>", "image/png": b"\x89PNG" * 300_000}, main=False)
        call.event("lost", channel=2, bytes=9)
        call.put(2, b"warn")
        call.event("clear", wait=True)
        call.event("display", data={"text/plain": "2"}, main=False, metadata={"a": 1}, display_id="d", update=True)
        call.event("error", name="ValueError", value="no", traceback=["a", "b"])
        call.result(status="error", execution_count=3, duration_s=0.25)

    async with linked({"kernel.execute": execute}) as (link, peer):
        cell = await link.kernels.execute(
            CellSpec("1/0", "python", {"A": "b"}, 1.5, "ctx-0123456789abcdef"), id=ID, silent=True, store_history=False, stop_on_error=True
        )
        assert await collect(cell) == [
            CellStarted(3),
            Output(1, 0, b"hello\n"),
            Display({"text/plain": "<fig>", "image/png": b"\x89PNG" * 300_000}, main=False),
            OutputGap(2, 9, 0),
            Output(2, 9, b"warn"),
            Cleared(wait=True),
            Display({"text/plain": "2"}, main=False, metadata={"a": 1}, display_id="d", update=True),
            CellError("ValueError", "no", ("a", "b")),
        ]
        result = await cell.result()
        assert (result.status, result.execution_count, result.duration_s) == ("error", 3, 0.25)
        call = peer.calls[-1]
        assert (call.id.hex(), cell.id) == (ID, ID)
        assert call.args == {
            "kernel": "ctx-0123456789abcdef",
            "language": "python",
            "code": "1/0",
            "env": {"A": "b"},
            "timeout_s": 1.5,
            "silent": True,
            "store_history": False,
            "stop_on_error": True,
        }


async def test_request_that_cannot_be_encoded_is_refused_and_the_link_continues() -> None:
    async with linked({"process.signal": _running}) as (link, peer):
        with pytest.raises(LimitError, match="too large"):
            await link.kernels.create("default", "python", env={"A": "x" * (9 * MIB)})
        with pytest.raises(InvalidRequestError, match="cannot be sent"):
            await link.processes.signal(ID, 2**70)
        assert await link.processes.signal(ID, 2)
        assert len(peer.calls) == 1
