"""The session of a link: handshake, wake, quiesce, end, and requests with one short response."""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import termios

import pytest

from sandlot.link.client import Link
from sandlot.link.types import LinkClosed, LinkClosedReason
from sandlot.model.errors import ConflictError, ErrorCode, NotFoundError, SandboxEndedError, SandlotError, TimeoutExceededError, UnavailableError
from sandlot.model.specs import CellSpec, ProcessSpec
from sandlot.protocol import frames, handshake
from tests.unit.link.peer import ENTRY, Peer, PeerCall, Pipes, ended, linked, pipes, stat, until


async def wake(link: Link) -> str | None:
    return await link.wake(identity="sb-test", hostname="box", env={"A": "1"}, pids=100, deadline_s=9.5)


def state(link: Link) -> str:
    """Return the state as text. A property would not do, because the type checker assumes that its value is constant."""
    return "closed" if link.closed else "asleep" if link.asleep else "awake"


async def test_guest_is_woken_after_the_handshake() -> None:
    async def info(call: PeerCall) -> None:
        call.result(generation=1, identity="sb-test", uptime_s=1.5, processes=2, tasks=5, cpu_s=0.25, streams=1)

    async with linked({"guest.info": info}, asleep=True) as (link, peer):
        assert state(link) == "asleep"
        with pytest.raises(UnavailableError, match="suspended"):
            await link.info()
        assert await wake(link) == "/usr/bin/python3"
        assert state(link) == "awake"
        asked = (await peer.call("guest.wake")).args
        assert len(asked.pop("entropy")) == 64
        assert asked.pop("clock_unix_ns") > 1_700_000_000_000_000_000
        limits: dict[str, object] = {"memory_bytes": None, "processors": None, "deadline_s": 9.5, "pids": 100}
        others: dict[str, object] = {"workspace": "/workspace", "user": "user", "local_domains": []}
        assert asked == {"identity": "sb-test", "hostname": "box", "env": {"A": "1"}, **limits, **others}
        facts = await link.info()
        assert (facts.identity, facts.uptime_s, facts.processes, facts.tasks, facts.cpu_s) == ("sb-test", 1.5, 2, 5, 0.25)
        with pytest.raises(ConflictError, match="awake"):
            await wake(link)


async def test_handshake_has_a_timeout() -> None:
    host_end, guest_end = pipes()
    with pytest.raises(TimeoutExceededError, match="did not respond"):
        await Link.open(host_end, timeout_s=0.05)
    assert host_end.is_closed
    await guest_end.aclose()


async def test_hello_is_repeated_until_the_guest_responds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandlot.link.session._HELLO_INTERVAL_S", 0.01)
    host_end, guest_end = pipes()
    greet = asyncio.create_task(Link.open(host_end))
    seen = b""
    while len(seen) < 3 * frames.HOST_FRAME_MAX:
        seen += await guest_end.receive(65536)
    assert len({seen[at : at + 4096] for at in range(0, 3 * 4096, 4096)}) == 1, "the nonce stays"
    nonce = handshake.parse_hello(seen[frames.HEADER_BYTES : 4096])
    assert nonce is not None
    guest_end.try_send(b"noise from before" + handshake.welcome(nonce[0], 1, asleep=True))
    link = await greet
    assert link.asleep
    await link.aclose()
    await guest_end.aclose()


@pytest.mark.parametrize("last_words", [b"", b"\xa5", b"Traceback (most recent call last):\n"])
async def test_end_of_the_guest_during_the_handshake_is_reported(last_words: bytes) -> None:
    host_end, guest_end = pipes()
    greet = asyncio.create_task(Link.open(host_end))
    await guest_end.receive(65536)
    guest_end.try_send(last_words)
    await guest_end.aclose()
    with pytest.raises(SandboxEndedError):
        await greet
    assert host_end.is_closed


async def test_guest_of_another_generation_is_a_violation() -> None:
    host_end, guest_end = pipes()
    greet = asyncio.create_task(Link.open(host_end))
    hello = handshake.parse_hello((await guest_end.receive(65536))[frames.HEADER_BYTES :])
    assert hello is not None
    guest_end.try_send(handshake.welcome(hello[0], 99, asleep=True))
    with pytest.raises(SandboxEndedError, match="generation"):
        await greet
    await guest_end.aclose()


async def test_cancelled_handshake_leaves_nothing_open() -> None:
    host_end, guest_end = pipes()
    greet = asyncio.create_task(Link.open(host_end))
    await guest_end.receive(65536)
    greet.cancel()
    with pytest.raises(asyncio.CancelledError):
        await greet
    assert host_end.is_closed
    await guest_end.aclose()


async def test_second_service_takes_over_the_guest_of_a_dead_service() -> None:
    """The first service ends during a partly written frame, a flood of output and a call."""
    to_guest, to_host = os.pipe(), os.pipe()

    async def start(call: PeerCall) -> None:
        call.started()
        await call.data(1, b"old" * 1_000_000)

    peer = Peer(Pipes(to_guest[0], to_host[1]), {"process.start": start, "file.stat": ended})
    peer.connection.asleep = False
    first = await Link.open(Pipes(os.dup(to_host[0]), os.dup(to_guest[1])))
    await first.processes.start(ProcessSpec(("yes",)))
    pending = asyncio.create_task(first.files.stat("/f"))
    await until(lambda: peer.unsent)
    await first.aclose()  # for the guest the same as a kill: no frame is sent
    with pytest.raises(UnavailableError):
        await pending
    assert os.read(to_host[0], 1000), "what nobody read lies in the pipe"

    second = await Link.open(Pipes(to_host[0], to_guest[1]))
    assert peer.connection.streams == 0

    peer.handlers["file.stat"] = stat
    assert (await second.files.stat("/f")).path == "/f"
    await second.aclose()
    await peer.aclose()


async def test_quiesce_resets_all_streams_and_only_wake_is_served() -> None:
    async def start(call: PeerCall) -> None:
        call.started()
        await call.data(1, b"x" * 1_000_000)

    async with linked({"process.start": start, "file.stat": ended}) as (link, peer):
        process = await link.processes.start(ProcessSpec(("yes",), stdin=True))
        pending = asyncio.create_task(link.files.stat("/f"))
        await peer.call("file.stat")
        await link.quiesce()
        for cut in (pending, process.result()):
            with pytest.raises(ConflictError, match="was paused") as raised:
                await cut
            assert not raised.value.retryable  # the effect of the call may last
            assert (raised.value.code, raised.value.fields["cut"]) == (ErrorCode.SANDBOX_PAUSED, True)
        assert link.asleep
        assert not link.closed
        assert peer.connection.asleep
        for call in (
            link.info(),
            link.processes.start(ProcessSpec(("true",))),
            link.files.read("/f"),
            link.files.write("/f", b""),
            link.kernels.execute(CellSpec("1")),
        ):
            with pytest.raises(UnavailableError, match="suspended"):
                await call
        await wake(link)
        await link.quiesce()
        await wake(link)


async def test_quiesce_has_a_timeout_after_which_no_calls_are_made() -> None:
    async with linked({"file.stat": ended}) as (link, peer):
        peer.quiesces = False
        pending = asyncio.create_task(link.files.stat("/f"))
        await peer.call("file.stat")
        with pytest.raises(TimeoutExceededError, match="was not quiesced"):
            await link.quiesce(timeout_s=0.05)
        with pytest.raises(UnavailableError):
            await link.info()
        with pytest.raises(UnavailableError):
            await link.quiesce()
        await link.aclose()
        with pytest.raises(UnavailableError):
            await pending


@pytest.mark.parametrize("code", ["path_not_found", "process_not_found"])
async def test_error_of_the_guest_is_raised_as_a_model_error(code: str) -> None:
    async def stat(call: PeerCall) -> None:
        call.reset(code, "There is none.", hint="Look elsewhere.", path="/f", secret=b"\0")

    async with linked({"file.stat": stat}) as (link, _):
        with pytest.raises(NotFoundError, match="There is none") as raised:
            await link.files.stat("/f")
        assert raised.value.code == code
        assert raised.value.hint == "Look elsewhere."
        assert not raised.value.fields


async def test_request_has_a_timeout() -> None:
    async with linked({"file.stat": ended}, request_timeout_s=0.05) as (link, peer):
        with pytest.raises(TimeoutExceededError, match=r"file\.stat"):
            await link.files.stat("/f")
        call = await peer.call("file.stat")
        await call.over.wait()
        assert call.reset_code == "cancelled"
        assert not link.closed


async def test_cancelled_caller_resets_its_stream() -> None:
    async with linked({"file.stat": ended}) as (link, peer):
        asking = asyncio.create_task(link.files.stat("/f"))
        call = await peer.call("file.stat")
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await call.over.wait()
        assert call.reset_code == "cancelled"
        assert peer.connection.streams == 0


async def test_number_of_calls_is_limited() -> None:
    async with linked({"file.stat": ended}) as (link, _):
        asking = [asyncio.create_task(link.files.stat("/f")) for _ in range(192)]
        await asyncio.sleep(0)
        with pytest.raises(UnavailableError, match="too many") as raised:
            await link.files.stat("/f")
        assert raised.value.retryable
        asking.pop().cancel()
        await asyncio.sleep(0.01)
        asking.append(asyncio.create_task(link.files.stat("/f")))
        await asyncio.sleep(0.01)
        assert not any(task.done() for task in asking)
        await link.aclose()
        for outcome in await asyncio.gather(*asking, return_exceptions=True):
            assert isinstance(outcome, UnavailableError)


async def test_end_of_the_link_is_reported_once_to_every_caller() -> None:
    async with linked({"file.stat": ended}) as (link, peer):
        waiting = [asyncio.create_task(link.wait_closed()) for _ in range(3)]
        asking = asyncio.create_task(link.files.stat("/f"))
        await peer.call("file.stat")
        assert state(link) == "awake"
        peer.close()
        assert await asyncio.gather(*waiting) == [LinkClosed(LinkClosedReason.EOF)] * 3
        with pytest.raises(SandboxEndedError) as raised:
            await asking
        assert raised.value.fields["link"] == "eof"
        assert state(link) == "closed"
        with pytest.raises(SandboxEndedError):
            await link.info()
        await link.aclose()
        assert (await link.wait_closed()).reason is LinkClosedReason.EOF, "the first reason stays"


async def checkpoint(call: PeerCall) -> None:
    call.result()


def unread(peer: Peer) -> int:
    """Return the number of bytes in the pipe to the guest."""
    return int(struct.unpack("i", fcntl.ioctl(peer.stream.read_fd, termios.FIONREAD, b"\0" * 4))[0])


async def test_nothing_is_sent_while_a_checkpoint_is_taken() -> None:
    async with linked({"guest.checkpoint": checkpoint, "file.stat": stat, "process.start": ended}) as (link, peer):
        starting = asyncio.create_task(link.processes.start(ProcessSpec(argv=("cat",), stdin=True)))
        (await peer.call("process.start")).started()
        reading = await starting
        asking = []
        for is_armed_already in (False, True):  # a pause arms the guest, and a snapshot arms it again
            await link.checkpoint(armed=True)
            assert unread(peer) == 0
            before = peer.stream.reads
            asking.append(asyncio.create_task(link.files.stat("/f")))
            await reading.write(b"typed")
            (await peer.call("process.start")).put(1, b"said")
            await asyncio.sleep(0.05)
            assert (peer.stream.reads, unread(peer)) == (before, 0), is_armed_already
            assert not asking[-1].done()
        await link.checkpoint(armed=False)
        assert [entry.path for entry in await asyncio.gather(*asking)] == ["/f"] * 2
        await until(lambda: peer.calls[0].input == b"typedtyped")
        reading.abandon()


async def test_earlier_bytes_have_arrived_when_the_guest_is_armed() -> None:
    async with linked({"guest.checkpoint": checkpoint, "file.stat": stat}) as (link, peer):
        fcntl.fcntl(peer.stream.read_fd, fcntl.F_SETPIPE_SZ, 4096)
        peer.reads.clear()
        asking = [asyncio.create_task(link.files.stat("/" + "x" * 3000)) for _ in range(10)]
        await until(link._session.transport._is_full.is_set)  # noqa: SLF001 - nobody is told
        announcing = asyncio.create_task(link.checkpoint(armed=True))
        await asyncio.sleep(0)
        asking += [asyncio.create_task(link.files.stat("/" + "y" * 3000)) for _ in range(10)]
        await asyncio.sleep(0)
        peer.reads.set()
        await announcing
        assert unread(peer) == 0
        before = peer.stream.reads
        await asyncio.sleep(0.05)
        assert (peer.stream.reads, peer.calls[-1].name) == (before, "guest.checkpoint")
        await link.checkpoint(armed=False)
        assert len(await asyncio.gather(*asking)) == 20


async def test_refused_checkpoint_does_not_stop_sending() -> None:
    async def refuse(call: PeerCall) -> None:
        call.reset("conflict", "not now")

    async with linked({"guest.checkpoint": refuse, "file.stat": stat}) as (link, _):
        with pytest.raises(ConflictError):
            await link.checkpoint(armed=True)
        assert (await link.files.stat("/f")).path == "/f"


async def test_guest_that_closes_its_input_is_lost_after_its_last_output() -> None:
    async def stat(call: PeerCall) -> None:
        nothing = os.open("/dev/null", os.O_RDONLY)
        os.dup2(nothing, call.peer.stream.read_fd)
        os.close(nothing)
        call.result(**ENTRY)

    async with linked({"file.stat": stat}) as (link, _):
        assert (await link.files.stat("/f")).path == "/f"
        with pytest.raises(SandboxEndedError):
            await link.files.stat("/f")
        assert (await link.wait_closed()).reason is LinkClosedReason.BROKEN


async def test_close_is_idempotent_and_ends_calls_with_an_error() -> None:
    async with linked({"file.stat": ended}) as (link, peer):
        asking = asyncio.create_task(link.files.stat("/f"))
        await peer.call("file.stat")
        await link.aclose()
        await link.aclose()
        with pytest.raises(UnavailableError) as raised:
            await asking
        assert raised.value.retryable
        assert (await link.wait_closed()).reason is LinkClosedReason.CLOSED
        with pytest.raises(SandlotError):
            await link.info()
