"""The transport: writes of whole frames, full pipes, and the reason of the end."""

from __future__ import annotations

import fcntl
import logging

import pytest

from sandlot.link.transport import FrameTransport
from sandlot.link.turns import LinkTurns
from sandlot.link.types import LinkClosed, LinkClosedReason
from sandlot.model.errors import SandboxEndedError, SandlotError, UnavailableError
from sandlot.protocol import events, frames
from tests.unit.link.peer import ENTRY, PeerCall, linked, pipes, stat

F_SETPIPE_SZ = 1031  # fcntl(2); not every build of Python has fcntl.F_SETPIPE_SZ
PAGE = 4096


async def test_every_write_has_whole_frames_of_at_most_4096_bytes() -> None:
    async def write(call: PeerCall) -> None:
        await call.ended.wait()
        call.result(**ENTRY)

    async with linked({"file.write": write}) as (link, peer):
        stream = link._session.transport._stream  # noqa: SLF001 - the test's own end of the pipe
        fcntl.fcntl(stream.write_fd, F_SETPIPE_SZ, PAGE)  # type: ignore[attr-defined]
        await link.files.write("/f", b"x" * 1_000_000)
        assert len(peer.calls[-1].input) == 1_000_000
        sizes = stream.frames  # type: ignore[attr-defined]
        assert max(sizes) == frames.HOST_FRAME_MAX
        assert len(sizes) >= 1_000_000 // frames.HOST_FRAME_MAX


async def test_call_and_its_end_are_one_write() -> None:
    async with linked({"file.stat": stat}) as (link, _):
        sent = link._session.transport._stream.frames  # type: ignore[attr-defined]  # noqa: SLF001
        before = len(sent)
        await link.files.stat("/f")
        assert len(sent) == before + 1


class Recorder:
    """Owner of a stream that records events and errors."""

    def __init__(self) -> None:
        self.errors: list[SandlotError] = []

    def on_event(self, event: events.StreamEvent) -> None:
        raise RuntimeError(f"a defect at {type(event).__name__}")

    def on_closed(self, error: SandlotError) -> None:
        self.errors.append(error)


async def test_defect_of_the_service_ends_only_this_link_and_logs_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async with linked({"file.stat": stat}) as (link, _):
        owner = Recorder()
        with caplog.at_level(logging.ERROR):
            link._session.transport.open({"call": "file.stat", "id": b"", "args": {}}, owner)  # noqa: SLF001
            link._session.transport.flush()  # noqa: SLF001
            lost = await link.wait_closed()
        assert lost == LinkClosed(LinkClosedReason.VIOLATION, "internal error RuntimeError")
        assert isinstance(owner.errors[0], SandboxEndedError)
        (line,) = caplog.text.splitlines()
        assert "RuntimeError at test_transport.py:" in line
        assert "a defect at Received" not in line, "the guest may choose the text"


async def test_first_reason_of_the_end_is_reported_once() -> None:
    host_end, guest_end = pipes()
    transport = FrameTransport(host_end, lambda _: None, LinkTurns())
    owner = Recorder()
    transport.handlers[1] = owner
    transport.close(LinkClosedReason.BROKEN, "first")
    transport.close(LinkClosedReason.VIOLATION, "second")
    transport.close_streams(UnavailableError("third"))
    assert transport.closed.result() == LinkClosed(LinkClosedReason.BROKEN, "first")
    assert [str(error) for error in owner.errors] == ["The sandbox has ended: it no longer reads its input. Create a new sandbox."]
    with pytest.raises(SandboxEndedError):
        transport.open({}, owner)
    await transport.aclose()
    await guest_end.aclose()
