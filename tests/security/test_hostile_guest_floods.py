"""Promise: a guest that floods the link, or falls silent on it, costs the service bounded memory and nobody else their turn.

As in ``test_hostile_guest_lies.py`` the guest itself is hostile. A flood is sent as fast as the service takes it while another
sandbox goes on working; silence is waited out beside everything else here, because the service is patient: a command's own
timeout and 30 s more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, wait
from functools import partial

import pytest

from sandlot import Execution, Sandbox, SandlotError
from sandlot.model.errors import ErrorCode
from tests.support.bystanders import end_of, later, nobody_else_notices, outcome, reason
from tests.support.isolations import CONTAINERS_FIRST
from tests.support.localservice import LocalService
from tests.support.roots import Roots
from tests.support.traces import memory_bytes

pytestmark = pytest.mark.parametrize("isolation", CONTAINERS_FIRST, indirect=True, scope="module")
"""The host's end of the link does not depend on the isolation."""
USES_ROOTS = True
FLOOD_BYTES = 16 << 20
IGNORED_BYTES = 4 << 20
"""Of a flood that ends nothing: all of it is sent."""
BETWEEN_S = 0.1
"""Between two calls of the other sandbox while one is flooding."""
KEPT_BYTES = 24 << 20
"""What the service may have grown by: a window, a message and what the allocator keeps."""

FLOODS: Mapping[str, tuple[str, bool]] = {
    "one frame that never ends": ("piece = frame(frames.MESSAGE, call.stream.id, bytes(65000), more=True)", True),
    "streams that are taken back": (
        (
            "opened, closed = values.encode({'service': 'x', 'args': {}}), values.encode({'code': 'conflict', 'message': ''})\n    "
            "piece = b''.join(frame(frames.OPEN, n, opened) + frame(frames.RESET, n, closed) for n in range(2, 60000, 2))"
        ),
        True,
    ),
    "frames of a stream that is over": (
        "piece = (frame(frames.DATA, 1, b'x', 1) + frame(frames.CREDIT, 1, b'xxxx') + frame(frames.END, 1)) * 2000",
        False,
    ),
    "greetings": ("piece = handshake.welcome(GUESTS[0].link.protocol._nonce, 1, asleep=False) * 2000", False),
}
"""Flood -> what is said without end, and whether it breaks a law: then the sandbox ends."""

SILENCES: Mapping[str, str] = {
    "says no more": "pass",
    "says half a frame": "say(frame(frames.MESSAGE, call.stream.id, length=60000))",
    "closes what it reads from": "os.close(GUESTS[0].link._fd_in)",
    "closes what it writes to": "os.close(GUESTS[0].link._fd_out)",
    "says a byte a second": "say(frame(frames.MESSAGE, call.stream.id, length=60000)); drip()",
    "says a letter a second": "told(call)",
}
"""How a guest falls silent once it has said that what it was asked to run has started."""

SILENT_FROM_BIRTH: Mapping[str, str] = {
    "mute": "time.sleep(3600)",
    "raving": "while True: say(os.urandom(65536)); time.sleep(0.1)",
    "stranger": "while True: (say(handshake.welcome(bytes(16), 1, asleep=True)), time.sleep(0.1))",
}
"""How a guest never greets."""

SILENT = """
def drip():
    say(b"x")
    GUESTS[0].loop.call_later(1.0, drip)
def told(call):
    say(frame(frames.DATA, call.stream.id, b"x", 1))
    GUESTS[0].loop.call_later(1.0, lambda: told(call))
def fall_silent(call):
    started(call)
    {how}
on("process.start", fall_silent)
"""


@pytest.fixture(scope="module")
def silent(service: LocalService, other: Sandbox) -> Mapping[str, tuple[Sandbox, Future[object]]]:
    """Asked as early as possible, looked at last."""
    asked: dict[str, tuple[Sandbox, Future[object]]] = {}
    for name, how in SILENCES.items():
        made = service.create("impostor", envs={"MISDEED": SILENT.format(how=how)})
        asked[name] = made, later(partial(outcome, partial(made.commands.run, "true", timeout=1)))
    assert other.is_running()
    return asked


@pytest.fixture(scope="module")
def unborn(service: LocalService, roots: Roots, other: Sandbox) -> Mapping[str, Future[object]]:
    """Sandboxes whose guests never greet; asked for as early as possible."""
    assert other.is_running()
    for name, before in SILENT_FROM_BIRTH.items():
        roots.add_impostor(name, before)
    return {name: later(partial(outcome, partial(service.create, name))) for name in SILENT_FROM_BIRTH}


@pytest.mark.usefixtures("silent", "unborn")  # they wait meanwhile
@pytest.mark.parametrize("name", FLOODS)
def test_flood_is_not_kept_and_does_not_stop_other_sandboxes(service: LocalService, other: Sandbox, name: str) -> None:
    makes, is_crime = FLOODS[name]
    size = FLOOD_BYTES if is_crime else IGNORED_BYTES
    flood = f"def flood(call):\n    {makes}\n    for _ in range({size} // len(piece)): say(piece)\n    ended(call)\n"
    misdeed = f"{flood}on('process.start', lambda call: (started(call), flood(call)))"
    before = memory_bytes(service.pid)
    with service.create("impostor", envs={"MISDEED": misdeed}) as liar:
        flooding = later(lambda: outcome(lambda: liar.commands.run("true", timeout=60)))
        served = 0
        while served < 5 or not flooding.done():
            assert other.commands.run("echo served").stdout == "served\n"
            wait([flooding], BETWEEN_S)
            served += 1
        if is_crime:
            assert reason(flooding.result()) == "crashed"
            assert "link" in str(end_of(liar).fields["detail"])
        else:
            assert not isinstance(flooding.result(), SandlotError)
    assert memory_bytes(service.pid) - before < KEPT_BYTES


def test_endless_results_are_cut_and_not_kept(service: LocalService, other: Sandbox) -> None:
    """What breaks no law: credit is waited for, every message is right, there are only too many of them."""
    shows = (
        "def show(call, n=0):\n"
        "    while n < 1100 and call.room() > 0:\n"  # 35 MB: more results and more bytes than are kept
        "        call.event('display', data={'text/plain': 'x' * 32000}, main=True)\n"
        "        n += 1\n"
        "    call.on_writable = lambda: show(call, n)\n"
        "    if n == 1100:\n"
        "        call.result(status='ok', execution_count=1, duration_s=1.0)\n"
        "on('kernel.execute', show)\n"
    )
    held = []
    for _ in range(4):
        with service.create("impostor", envs={"MISDEED": shows}) as liar:
            showing = later(lambda: liar.run_code("1", timeout=120))
            while not showing.done():
                assert other.commands.run("echo served").stdout == "served\n"
                wait([showing], BETWEEN_S)
            shown = showing.result()
            assert isinstance(shown, Execution)
            assert len(shown.results) <= 1000
        held.append(memory_bytes(service.pid))
    # One answer has up to 32 MiB of results, written as JSON once; it goes with the answer, and the next one takes its place. How
    # the allocator places them differs by more than one; were they kept, it would be three.
    assert held[-1] - held[0] < 80 << 20


def test_create_fails_if_the_guest_never_greets(unborn: Mapping[str, Future[object]]) -> None:
    for name, creating in unborn.items():
        seen = creating.result(timeout=120)
        assert isinstance(seen, SandlotError), name
        assert seen.code in {ErrorCode.TIMEOUT, ErrorCode.HOST_NOT_READY}, name
        assert seen.hint


def test_calls_to_a_silent_guest_end(silent: Mapping[str, tuple[Sandbox, Future[object]]]) -> None:
    for name, (made, asked) in silent.items():
        seen = asked.result(timeout=120)
        assert isinstance(seen, SandlotError), name
        assert seen.code in {ErrorCode.TIMEOUT, ErrorCode.SANDBOX_ENDED}, name
        assert seen.hint, name
        if seen.code is ErrorCode.TIMEOUT:
            waiting = [later(partial(outcome, partial(ask, made))) for ask in (_stat, _write)]
            made.kill()
            for each in waiting:
                answer = each.result(timeout=60)
                assert not isinstance(answer, SandlotError) or answer.code is ErrorCode.SANDBOX_ENDED, name
        else:
            made.kill()


def _stat(sandbox: Sandbox) -> object:
    return sandbox.files.stat("/")


def _write(sandbox: Sandbox) -> object:
    return sandbox.files.write("/tmp/f", bytes(1 << 20))


@pytest.fixture(scope="module", autouse=True)
def _others_notice_nothing(service: LocalService, other: Sandbox) -> Iterator[None]:
    with nobody_else_notices(service, other):
        yield
