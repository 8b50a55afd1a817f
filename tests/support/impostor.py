"""A guest that lies: the real one, until it is told what to do instead. Runs as PID 1 of a sandbox, on the guest's interpreter.

Root inside can do all of this to a sandbox that it owns; here it is done from the first byte on, with every means of the guest.
What it does is Python, given in two places: ``/.sandlot/before.py`` before it greets, and the variable ``MISDEED`` of the
sandbox's environment once it is woken. Both find the names of this module.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable

REAL = "/.sandlot/real.zip"

# This file stands where the real module is looked for: step aside.
for _name in [name for name in sys.modules if name.partition(".")[0] == "sandlot"]:
    del sys.modules[_name]
sys.path[0] = REAL

from sandlot.guest import main as real  # noqa: E402
from sandlot.guest.connection import LinkConnection  # noqa: E402
from sandlot.guest.loop import Loop  # noqa: E402
from sandlot.guest.rpc import Call, RpcServer  # noqa: E402
from sandlot.guest.streams import StreamRouter  # noqa: E402
from sandlot.protocol import events, frames, handshake, schema, values  # noqa: E402

LINK_OUT = 1
PID = 4242
ENTRY = {"name": "f", "path": "/f", "kind": "file", "size": 3, "mode": 0o644, "uid": 0, "gid": 0, "modified_ns": 0, "target": None}

GUESTS: list[Impostor] = []
"""The one that there is, once there is one."""


def frame(type_: int, stream: int, payload: bytes = b"", channel: int = 0, *, more: bool = False, length: int | None = None) -> bytes:
    """A frame, whatever it says: also one with a length that is not its payload's."""
    return frames.HEADER.pack(frames.SYNC, type_, int(more), channel, stream, len(payload) if length is None else length) + payload


def say(told: bytes) -> None:
    """Bytes on the link, past the protocol; waits where it is full."""
    view = memoryview(told)
    poller = select.poll()
    poller.register(_fd_out(), select.POLLOUT)
    while view:
        poller.poll()
        try:
            view = view[os.write(_fd_out(), view[:65536]) :]
        except BlockingIOError:
            continue


def _fd_out() -> int:
    return GUESTS[0].link._fd_out if GUESTS else LINK_OUT  # noqa: SLF001 - an impostor has no manners


def on(name: str, handler: Callable[[Call], object]) -> None:
    """Answer a call in another way."""
    RpcServer.serve(GUESTS[0].rpc, {name: handler})  # not its own, which adds to a wake


def message(call: Call, told: object) -> None:
    """A message on a call's stream, past the protocol."""
    say(frame(frames.MESSAGE, call.stream.id, values.encode(told)))


def end(call: Call) -> None:
    """The end of what this side says on a call's stream."""
    say(frame(frames.END, call.stream.id))


def started(call: Call) -> None:
    """That a process was started, and which."""
    message(call, {"event": "started", "pid": PID})


def ended(call: Call, **lies: object) -> None:
    """How a process ended, but for the lies."""
    true = {"process": call.id, "pid": PID, "reason": "exited", "exit_code": 0, "signal": None, "duration_s": 1.0}
    message(call, {"result": {**true, **lies}})
    end(call)


def runs(**lies: object) -> None:
    """Every process starts, and ends as told, at once."""

    def run(call: Call) -> None:
        started(call)
        ended(call, **lies)

    on("process.start", run)


def answers(name: str, *told: object, over: bool = True) -> None:
    """Every call of a name gets these messages, and the end."""

    def answer(call: Call) -> None:
        for each in told:
            message(call, each)
        if over:
            end(call)

    on(name, answer)


class Impostor:
    """The objects of the guest that lie.

    Attributes:
        loop: Its loop.
        link: Its end of the link.
        rpc: Its calls.
        wake: How it is truly woken.
    """

    def __init__(self, loop: Loop, link: LinkConnection, rpc: RpcServer) -> None:
        self.loop = loop
        self.link = link
        self.rpc = rpc
        self.wake: Callable[[Call], object]

    def _wake_and_change(self, call: Call) -> None:
        self.wake(call)
        exec(call.args["env"].get("MISDEED", ""), globals())  # noqa: S102 - what it is for


class LyingRpcServer(RpcServer):
    """Calls that can be handled in another way, and a wake that is followed by the misdeed."""

    def __init__(self, router: StreamRouter, is_asleep: Callable[[], bool]) -> None:
        super().__init__(router, is_asleep)
        link = router._link  # noqa: SLF001 - an impostor has no manners
        GUESTS.append(Impostor(link._loop, link, self))  # noqa: SLF001 - likewise

    def serve(self, handlers: dict[str, Callable[[Call], object]]) -> None:
        super().serve(handlers)
        if "guest.wake" in handlers:
            impostor = GUESTS[-1]
            impostor.wake = handlers["guest.wake"]
            super().serve({"guest.wake": impostor._wake_and_change})  # noqa: SLF001 - likewise


def quiesces(how: Callable[[Impostor], object]) -> None:
    """Do something else when asked to come to rest. Said before the greeting."""
    polite = real.LinkEventDispatcher.on_event

    def on_event(self: real.LinkEventDispatcher, event: events.Event) -> None:
        if isinstance(event, events.QuiesceRequested):
            how(GUESTS[0])
        else:
            polite(self, event)

    real.LinkEventDispatcher.on_event = on_event  # type: ignore[method-assign]


real.RpcServer = LyingRpcServer  # type: ignore[attr-defined]
__all__ = ["ENTRY", "answers", "events", "handshake", "quiesces", "runs", "schema", "time"]

with open("/.sandlot/before.py") as _before:  # noqa: PTH123 - the guest's interpreter has no pathlib
    exec(_before.read(), globals())  # noqa: S102 - likewise
