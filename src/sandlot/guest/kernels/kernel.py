"""One kernel process: started or taken over, spoken to over a socket pair, heard in order, killed with its family.

Laws:
- What it says is bounded and checked; a kernel that breaks the wire is killed.
- What C code and children write to the two pipes is read before each message that was written after it.
- Where a cell's follower does not read, nothing more is read of its kernel; everything else goes on.
- All that it wrote before its end is handed on before its end is told.
- Of what it says, ``AT_ONCE`` messages are handled in one turn of the loop: a talkative kernel takes nobody else's turn.
"""

from __future__ import annotations

import os
import select

from sandlot.guest.kernels import family
from sandlot.guest.kernels.messages import checked
from sandlot.guest.loop import READ, READ_BYTES, WRITE
from sandlot.guest.output import OutputLog
from sandlot.guest.pipes import DRAIN_READS, OutputPipe
from sandlot.guest.process.accounts import build_environment, lookup_account
from sandlot.protocol import values
from sandlot.protocol.connection import MESSAGE_MAX_BYTES
from sandlot.protocol.schema import STDERR, STDOUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from sandlot.guest.kernels.cells import Cell
    from sandlot.guest.kernels.ends import Ends
    from sandlot.guest.kernels.services import KernelServices

AT_ONCE = 64
REAP_S = 0.2
"""How long a kernel that has closed its socket may live on."""


class Owner:
    """Who hears a kernel."""

    __slots__ = ()

    def on_message(self, message: dict[str, Any], size: int) -> None:
        """It said something: anything but output."""
        raise NotImplementedError

    def cell_of(self, id_: str | None) -> Cell | None:
        """The cell that it speaks of, where that is its own and known still; None as the id is the one that runs."""
        raise NotImplementedError

    def on_piped(self) -> None:
        """One of its pipes gave something."""
        raise NotImplementedError

    def on_broken(self) -> None:
        """It is no kernel any more: kill it."""
        raise NotImplementedError

    def on_over(self) -> None:
        """It is gone, and all that it said was handed on."""
        raise NotImplementedError


class Kernel:
    """One process.

    Args:
        guest: The guest.
        pid: It; it leads its session.
        ends: The guest's ends.
        number: Its mark.
        env: What of its environment is the sandbox's or its context's, not its user's account's.
    """

    __slots__ = (
        "_bell",
        "_found",
        "_gone",
        "_guest",
        "_is_broken",
        "_is_closed",
        "_look",
        "_messages",
        "_out",
        "_over",
        "_owner",
        "_rest",
        "_sink",
        "_socket",
        "_stalled",
        "env",
        "killed",
        "number",
        "pid",
        "pipes",
    )

    def __init__(self, guest: KernelServices, pid: int, ends: Ends, number: int, env: dict[str, str]) -> None:
        self._guest = guest
        self.env = env
        self.pid = pid
        self.number = number
        self._socket = ends.socket
        self._socket.setblocking(False)
        self._bell = ends.bell
        if self._bell >= 0:
            os.set_blocking(self._bell, False)
        self._messages = values.MessageReader(MESSAGE_MAX_BYTES)
        self._out = bytearray()
        self._found: tuple[dict[str, Any], int] | None = None
        self._rest: tuple[Cell, int, memoryview] | None = None
        self._stalled = False
        self._gone = False
        self._is_closed = False
        self._is_broken = False  # nothing that it says counts any more
        self._over = False
        self.killed = False
        self._owner: Owner | None = None
        self._sink = OutputLog((STDOUT, STDERR))  # what is printed before the first cell is nobody's
        self.pipes = [OutputPipe(guest.loop, fd, channel, self._sink, self._piped) for fd, channel in ((ends.out, STDOUT), (ends.err, STDERR))]
        self._look = select.poll()
        for pipe in self.pipes:
            self._look.register(pipe.fd, select.POLLIN)
        family.mark(pid, number)

    @property
    def started_text(self) -> str:
        """The last of what it wrote to standard error before it was a kernel: why it did not become one."""
        buffer = self._sink.buffers[STDERR]
        return buffer.read(buffer.start, 4096).decode("utf-8", "replace")

    def serve(self, owner: Owner) -> None:
        """Speak to it from now on."""
        self._owner = owner
        self._guest.loop.watch(self._socket.fileno(), READ, self._ready)
        if self._messages.buffered_bytes:
            self._guest.loop.call_soon(self._hand_on)

    def unread(self) -> int:
        """How many bytes it has said so far to whom it will serve: they are taken in for that."""
        self._messages.feed((not self._gone and self._receive()) or b"")
        return self._messages.buffered_bytes

    def when_heard(self, callback: Callable[[], object]) -> None:
        """Call back once it has said its first word, or is gone. That is left for whom it will serve; who does so before calls for it."""
        descriptor = self._socket.fileno()
        if self._messages.buffered_bytes:
            self._guest.loop.call_soon(callback)
            return

        def heard(_mask: int) -> None:
            self._guest.loop.unwatch(descriptor)
            callback()

        self._guest.loop.watch(descriptor, READ, heard)

    def send(self, message: dict[str, Any]) -> None:
        """Say something to it."""
        self._out += values.encode_message(message)
        self._write()

    def wake(self, env: dict[str, str], entropy: bytes, cwd: str) -> None:
        """A life begins, or a context takes it: what is new is told before its next cell.

        Args:
            env: As ``Kernel.env``, from now on. What cells made of a variable that stays as it is stays theirs.
            entropy: That nobody else is given.
            cwd: Where it is to be; empty is where it is.
        """
        changed, gone = difference(self.env, env)
        if gone:
            own = build_environment(lookup_account("user"))
            changed.update({name: own[name] for name in gone if name in own})
            gone = [name for name in gone if name not in own]
        self.env = env
        self.send({"op": "wake", "entropy": entropy, "env": changed, "gone": gone, "cwd": cwd})

    def ring(self) -> None:
        """A cell takes its time: what the kernel has kept back of it is wanted now."""
        if self._bell >= 0:
            try:
                os.write(self._bell, b"\0")
            except OSError:  # it has not heard thousands of them, or is gone
                return

    def direct(self, cell: Cell) -> None:
        """What comes by the pipes is that cell's from now on."""
        for pipe in self.pipes:
            pipe.redirect(cell.outputs)

    def read_on(self) -> None:
        """There may be room for more."""
        for pipe in self.pipes:
            pipe.refresh()
        if self._stalled:
            self._stalled = False
            self._guest.loop.call_soon(self._hand_on)

    def kill(self) -> None:
        """Kill it and its family. What it has said until now is handed on, then its end is told. Idempotent."""
        if not self.killed:
            self.killed = True
            family.end(self.pid, self.number)
            self.ended()

    def ended(self) -> None:
        """The process is gone. Idempotent."""
        if self._gone:
            return
        self._gone = True
        if not self.killed:
            family.end(self.pid, self.number)
        self._guest.loop.unwatch(self._socket.fileno())
        for _ in range(DRAIN_READS):
            data = self._receive()
            if not data or self._is_broken:
                break
            self._messages.feed(data)
        self._guest.loop.call_soon(self._hand_on)

    def discard(self) -> None:
        """Kill it; nobody wants to hear of it any more."""
        self._owner = None
        self.kill()
        self._close()

    # -- in -----------------------------------------------------------------------------------------------------------

    def _piped(self) -> None:
        if self._owner is not None:
            self._owner.on_piped()

    def _ready(self, mask: int) -> None:
        if mask & WRITE:
            self._write()
        if mask & ~WRITE and not self._gone:
            self._read()

    def _read(self) -> None:
        data = self._receive()
        if data is None:
            return
        if not data:
            # About to be reaped, which says how it ended; or closed on purpose, and then it is no kernel any more.
            self._is_closed = True
            self._watch()
            self._guest.loop.call_later(REAP_S, self._break)
            return
        self._messages.feed(data)
        self._hand_on()

    def _receive(self) -> bytes | None:
        """What there is; None where nothing is, empty at the end."""
        try:
            return self._guest.loop.read_buffer.read(self._socket.fileno())
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def _break(self) -> None:
        if self._owner is not None and not self.killed and not self._gone:
            self._owner.on_broken()

    def _hand_on(self) -> None:
        """Hand on all that there is room for."""
        if self._over or self._stalled or self._owner is None:
            return
        try:
            done = self._hand_on_all()
        except (values.BadValue, LookupError, TypeError, ValueError, AttributeError):
            self._is_broken = True
            self._messages.clear()
            if self._gone:
                self._guest.loop.call_soon(self._hand_on)
            else:
                self._break()
            return
        if not done:
            self._stalled = True
            if not self._gone:
                self._watch()
        elif self._gone:
            self._over = True
            self._close()
            self._owner.on_over()
        else:
            self._watch()

    def _hand_on_all(self) -> bool:
        """Whether there is nothing left."""
        drained = False
        for number in range(AT_ONCE + 1):
            if self._owner is None:
                break
            if number == AT_ONCE:
                self._guest.loop.call_soon(self._go_on)
                return False
            if not self._pour():
                return False
            self._found = self._found or self._next()
            if self._found is None:
                return not self._gone or self._drain()
            message, size = self._found
            # What a cell writes comes after its beginning, however soon. One look is enough for all messages that are here by now.
            if message["event"] != "started" and not (drained := drained or self._drain()):
                return False
            self._found = None
            if message["event"] == "output":
                cell = self._owner.cell_of(message["cell"])
                if cell is not None:
                    self._rest = (cell, message["channel"], memoryview(message["data"]))
            elif message["event"] == "sync":
                self._answer(message["number"])
            else:
                self._owner.on_message(message, size)
        return True

    def _answer(self, number: int) -> None:
        """Everything before it was taken in. A kernel that does not read its answers goes on without."""
        if not self._out:
            self.send({"op": "synced", "number": number})

    def _go_on(self) -> None:
        """The others had their turn."""
        if self._stalled:
            self._stalled = False
            self._hand_on()

    def _drain(self) -> bool:
        """Read what is in the pipes; whether that was all. Most times there is nothing, which one look tells of both."""
        return not self._look.poll(0) or all([pipe.drain() for pipe in self.pipes if pipe.is_open])  # noqa: C419 - each, also after a full one

    def _pour(self) -> bool:
        """Put what is left of an output where it belongs, as far as that wants it; whether nothing is left."""
        while self._rest is not None:
            cell, channel, data = self._rest
            if not cell.outputs.may_read(channel):
                return False
            cell.outputs.buffers[channel].append(bytes(data[:READ_BYTES]))
            self._rest = (cell, channel, data[READ_BYTES:]) if len(data) > READ_BYTES else None
            cell.pump()
        return True

    def _next(self) -> tuple[dict[str, Any], int] | None:
        """The next whole message, and how long it was."""
        raw = self._messages.take()
        return None if raw is None else (checked(values.decode(raw)), len(raw))

    # -- out ----------------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        try:
            while self._out and not self._gone:
                sent = self._socket.send(memoryview(self._out)[:65536])
                del self._out[:sent]
        except BlockingIOError:
            pass
        except OSError:
            return  # the end of file follows
        if self._owner is not None and not self._gone:
            self._watch()

    def _watch(self) -> None:
        mask = (0 if self._stalled else READ) | (WRITE if self._out else 0)
        if mask and not self._is_closed:
            self._guest.loop.watch(self._socket.fileno(), mask, self._ready)
        else:
            self._guest.loop.unwatch(self._socket.fileno())

    def _close(self) -> None:
        self._guest.loop.unwatch(self._socket.fileno())
        self._socket.close()
        if self._bell >= 0:
            os.close(self._bell)
            self._bell = -1
        for pipe in self.pipes:
            pipe.close()


def difference(before: dict[str, str], after: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    """What is new or other in an environment, and the names that are gone. Pure."""
    return {name: text for name, text in after.items() if before.get(name) != text}, [name for name in before if name not in after]
