"""``sys.stdout`` and ``sys.stderr`` of cells, and the order of all that is told.

Laws:
- What was written first is told first, across both streams, displays and errors, whatever thread wrote it.
- Text is kept back for ``PAUSE_S`` or ``KEPT`` characters at most, and never over a display, an error, the end of a cell, a fork or
  the start of a program. ``flush`` sends at once. The guest reads a program's own output another way, so before one
  starts it is waited for (but by threads, and by tasks between cells).
- Whoever keeps something back wakes a thread for it, but not in the first moment of a cell: the guest rings then, a little later, where
  the cell is not over. To wake a thread takes a tenth of a millisecond or several, which is more than most cells take.
- The first ``AT_ONCE`` lines of a cell, and those after a silence of ``SILENCE_S``, are sent by whoever writes them. A thread sends the
  rest; code that keeps the interpreter for itself (``sum(range(10**9))``, a long match) keeps it from that. So what is late until such
  code is done: lines beyond those, and text without the end of its line.
- Writing never fails for what is written: what UTF-8 has no bytes for is told by backslashes.
- In a forked child the streams are the child's descriptors 1 and 2, by lines; it never speaks on the kernel's wire.
"""

from __future__ import annotations

import io
import time
from _thread import allocate_lock, get_ident
from collections import deque

from . import origins
from .wire import Late, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .running import Interrupts
    from .wire import Wire

STDOUT, STDERR = 1, 2
KEPT = 32768
PAUSE_S = 0.03
SILENCE_S = 0.01
AT_ONCE = 4
PIECE = 65536
ENCODING, ERRORS = "utf-8", "backslashreplace"


class Output:
    """Everything that goes out, in order."""

    def __init__(self, interrupts: Interrupts) -> None:
        self.parts: deque[tuple[Any, int, Any]] = deque()
        """(cell, channel, text or bytes), or (None, 0, message)."""
        self.size = 0
        self.armed = True
        """Whether somebody sees to it that what is kept is sent."""
        self.is_alert = False
        """Whether something is to be seen to at the next write: that, or a line that goes at once."""
        self.is_muted = False
        """Whether nothing of it goes anywhere."""
        self.was_rung = False
        """Whether the guest has rung since the last cell was over."""
        self._interrupts = interrupts
        self._wire: Wire | None = None
        self._main = get_ident()
        self._lock = allocate_lock()
        self._owner = 0
        self._late: Late | None = None
        self.bell = -1
        """By which the guest rings; -1 where there is none, or a cell has closed it."""
        self._at_once = AT_ONCE
        self._sent_s = 0.0

    def connect(self, wire: Wire, bell: int = -1) -> None:
        """From now on there is somebody to tell.

        Args:
            wire: How.
            bell: A pipe by which the guest rings once in a while when a cell runs; -1 is none.
        """
        self._wire = wire
        self._main = get_ident()
        self.bell = bell
        if bell >= 0:
            self._listen()
        self.fresh()

    def fresh(self) -> None:
        """A cell begins: its first lines are sent at once, also where an interrupt struck while it was seen to that others are."""
        self._at_once = AT_ONCE
        late = self._late
        self.armed = late is not None and late.is_rung
        if self.was_rung:  # this cell waited for its turn here for longer than the guest did
            self.armed = False
        self.is_alert = True

    def begin(self, message: dict[str, Any]) -> None:
        """Tell that a cell has begun: with what it says first, or when the guest rings."""
        self.parts.append((None, 0, message))
        if not self.armed:
            self.flush()

    def send(self, message: dict[str, Any]) -> None:
        """Tell something, after all that was written before."""
        self.parts.append((None, 0, message))
        self.flush()

    def written(self, *, ends_line: bool) -> None:
        """See to it that what is kept is sent: at once or soon."""
        now_s = time.monotonic()
        if now_s - self._sent_s >= SILENCE_S:
            self._at_once = AT_ONCE
        if ends_line and self._at_once:
            self._at_once -= 1
            self._sent_s = now_s
            self.flush()
            return
        self.is_alert = self._at_once > 0
        if not self.armed:
            self._arm()

    def late(self) -> None:
        """Send what was kept back for long enough."""
        self.armed = False
        self.is_alert = True
        self._sent_s = time.monotonic()
        self.flush()

    def _arm(self) -> None:
        """See to it that what is kept is sent soon."""
        self.armed = True
        late = self._late
        if late is None or late.is_over:
            late = self._listen()
        if late is None:  # nothing is kept back then
            self.armed, self.is_alert = False, True
            self.flush()
            return
        late.ring()

    def _listen(self) -> Late | None:
        """The thread that sends what is kept back; none where the sandbox has as many threads, or descriptors, as it may."""
        is_main = get_ident() == self._main
        self._interrupts.depth += is_main
        try:
            self._late = Late(self, self.bell, PAUSE_S)
        except (RuntimeError, OSError):
            self._late = None
        finally:
            self._interrupts.depth -= is_main
        return self._late

    def flush(self) -> None:
        """Send all that is kept.

        Raises:
            OSError: The guest is gone, or the socket closed.
        """
        ident = get_ident()
        if self._owner == ident:
            return  # called by a finalizer or a signal handler in the middle of this; what it wrote is sent as well
        interrupts = self._interrupts
        if ident != self._main:
            with self._lock:
                self._owner = ident
                try:
                    self._drain(bool)  # never given up
                finally:
                    self._owner = 0
            return
        interrupts.depth += 1
        try:
            while not self._lock.acquire(timeout=0.1):
                if interrupts.pending and interrupts.in_user_code:
                    break
            else:
                self._owner = ident
                try:
                    self._drain(lambda: interrupts.pending and interrupts.in_user_code)
                finally:
                    self._owner = 0
                    self._lock.release()
        finally:
            interrupts.depth -= 1
        interrupts.check()

    def settle(self) -> None:
        """As :meth:`flush`, and wait until the guest has taken it in: what a child writes then comes after it."""
        wire, interrupts = self._wire, self._interrupts
        if wire is None or not interrupts.in_cell or get_ident() != self._main:  # somebody else reads what the guest says
            self.flush()
        elif self.parts or not wire.is_settled:
            self.send({"event": "sync", "number": wire.ask()})
            interrupts.depth += 1
            try:
                wire.settle(lambda: interrupts.pending and interrupts.in_user_code)
            finally:
                interrupts.depth -= 1
            interrupts.check()

    def before_fork(self) -> None:
        """What is kept is told by the parent; a thread of ours would make Python warn."""
        try:
            self.settle()
        except OSError:
            pass
        late, self._late = self._late, None
        if late is not None:
            late.end()
        self.armed, self.is_alert = False, True

    def in_child(self) -> None:
        """This process is a forked child now: the wire is not its own."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None
        self._lock = allocate_lock()
        self._owner = 0
        self._late = None
        self._main = get_ident()
        self.parts.clear()
        self.armed, self.is_alert = True, False

    def _drain(self, given_up: Any) -> None:
        parts = self.parts
        while parts:
            self.size = 0
            cell, channel, first = parts.popleft()
            if cell is None:
                self._tell(first, given_up)
                continue
            kind = type(first)
            run = [first]
            size = len(first)
            while parts and size < PIECE:
                part = parts[0]
                if part[1] != channel or part[0] != cell or type(part[2]) is not kind:
                    break
                run.append(part[2])
                size += len(part[2])
                parts.popleft()
            whole = first if len(run) == 1 else kind().join(run)
            for at in range(0, len(whole), PIECE):
                piece = whole[at : at + PIECE]
                data = piece if kind is bytes else piece.encode(ENCODING, ERRORS)
                if not self._tell({"event": "output", "cell": cell, "channel": channel, "data": data}, given_up):
                    break  # interrupted while nobody read: as with any write, what was not written is not
        if self._wire is not None:
            self._wire.push(given_up)

    def _tell(self, message: dict[str, Any], given_up: Any) -> bool:
        """Put a message where it goes, and what is enough for a write to whom it is for; False is given up."""
        if self.is_muted:
            return True
        wire = self._wire
        if wire is not None:
            wire.put(message)
            return wire.waiting < PIECE or wire.push(given_up)
        if message["event"] == "output":
            write_all(message["channel"], message["data"])
        elif message["event"] == "display" and "text/plain" in message["data"]:
            write_all(STDOUT, message["data"]["text/plain"].encode(ENCODING, ERRORS) + b"\n")
        return True


class Stream(io.TextIOBase):
    """A text stream of cells."""

    encoding = ENCODING
    errors = ERRORS  # type: ignore[mutable-override]
    mode = "w"
    newlines = None  # type: ignore[mutable-override]
    line_buffering = False
    write_through = False

    def __init__(self, output: Output, channel: int, name: str) -> None:
        super().__init__()
        self._output = output
        self._channel = channel
        self._closed = False
        self.name = name
        self.buffer = Buffer(self, output, channel)

    def write(self, text: str) -> int:
        """Write text."""
        if type(text) is not str:
            if not isinstance(text, str):
                raise TypeError(f"write() argument must be str, not {type(text).__name__}")
            text = str.__str__(text)
        if self._closed:
            raise ValueError("I/O operation on closed file.")
        output = self._output
        size = len(text)
        output.parts.append((origins.CELL.get() or origins.current(), self._channel, text))
        output.size += size
        if output.size > KEPT:
            output.flush()
        elif output.is_alert:
            output.written(ends_line="\n" in text)
        return size

    def flush(self) -> None:
        """Send at once."""
        if self._closed:
            raise ValueError("I/O operation on closed file.")
        self._output.flush()

    def fileno(self) -> int:
        """The descriptor of what C code and children write: another way to the same reader."""
        return self._channel

    def close(self) -> None:
        """Close it; the next cell finds it open again."""
        if not self._closed:
            self._closed = True
            self._output.flush()

    def reopen(self) -> None:
        """Undo what the last cell closed."""
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether the cell closed it."""
        return self._closed

    def isatty(self) -> bool:
        """No terminal."""
        return False

    def writable(self) -> bool:
        """Written to."""
        return True

    def reconfigure(self, **_options: Any) -> None:
        """Accepted: everything is UTF-8 here, and text is sent as it stands."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} name={self.name!r} mode='w' encoding='utf-8'>"


class ChildStream(Stream):
    """What a stream of cells becomes in a forked child: by lines, to the child's descriptor."""

    def write(self, text: str) -> int:
        """Write text."""
        size = super().write(text)
        if "\n" in text:
            self._output.flush()
        return size


class Buffer(io.BufferedIOBase):
    """The stream's bytes."""

    mode = "wb"

    def __init__(self, stream: Stream, output: Output, channel: int) -> None:
        super().__init__()
        self._stream = stream
        self._output = output
        self._channel = channel
        self.name = stream.name
        self.raw = self

    def write(self, data: Any) -> int:
        """Write bytes."""
        if self._stream.closed:
            raise ValueError("write to closed file")
        copied = bytes(memoryview(data))
        self._output.parts.append((origins.current(), self._channel, copied))
        self._output.size += len(copied)
        if self._output.size > KEPT:
            self._output.flush()
        elif self._output.is_alert:
            self._output.written(ends_line=b"\n" in copied)
        return len(copied)

    def flush(self) -> None:
        """Send at once."""
        self._output.flush()

    def fileno(self) -> int:
        """As the stream's."""
        return self._channel

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()

    @property
    def closed(self) -> bool:
        """Whether the stream is."""
        return self._stream.closed

    def writable(self) -> bool:
        """Written to."""
        return True
