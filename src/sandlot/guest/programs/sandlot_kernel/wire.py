"""The socket to the guest, which carries messages of ``values``; and the thread that hears the guest ring.

Laws:
- A message goes out whole or, where the cell was interrupted while nobody read, its rest goes out before the next one: the wire is
  never torn.
- A message that the guest would not take, and end the kernel for, is told as far as it fits, and says so.
- A message comes by one call of the kernel's most times: each takes tens of microseconds in gVisor, after a while of quiet.
- Waiting for room can be interrupted; everything else that changes state cannot (see ``running.Interrupts``).
- The socket lies at a high descriptor, where programs that close "all" descriptors seldom reach.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import time
from _thread import allocate_lock, start_new_thread
from collections import deque

from . import values  # type: ignore[attr-defined]  # protocol/values.py is put beside this module when it is shipped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .streams import Output

MESSAGE_MAX_BYTES = 8 * 1024 * 1024
"""The guest takes no longer one (``protocol.connection.MESSAGE_MAX_BYTES``)."""
SHORT_CHARS = 2000
SHORT_LINES = 100
TOO_LARGE = "[left out: it is too large to be told]"
PIECE = 65536
SETTLE_S = 1.0
HIGH = 700
"""The lowest descriptor for what is ours; far below RLIMIT_NOFILE's usual 1,024."""


def high(fd: int) -> int:
    """A copy of a descriptor that a loop over the low ones does not hit, closed by exec."""
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH)
    except OSError:  # a lower RLIMIT_NOFILE
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)


def encoded(message: dict[str, Any]) -> bytes:
    """A message as the guest takes it: as it is, or what fits of it."""
    try:
        raw: bytes = values.encode_message(message)
    except (values.BadValue, RecursionError):
        return bytes(values.encode_message(shortened(message)))
    size = len(raw) - values.HEAD_BYTES
    # A value has a byte at least: few bytes are few values.
    is_much = size > MESSAGE_MAX_BYTES or (size > values.MAX_ITEMS and _items(message) > values.MAX_ITEMS)
    return bytes(values.encode_message(shortened(message))) if is_much else raw


def shortened(message: dict[str, Any]) -> dict[str, Any]:
    """A message of the same kind with all that is needed, as little as possible of the rest, and a word about that.

    Args:
        message: One of the kernel's: its values are texts, numbers, a result's representations, a traceback's lines.
    """
    told: dict[str, Any] = {}
    for name, item in message.items():
        if name == "data" and message["event"] == "display":
            told[name] = {"text/plain": TOO_LARGE}
        elif isinstance(item, str):
            told[name] = _short(item)
        elif isinstance(item, (list, tuple)):
            told[name] = [_short(line) for line in item[-SHORT_LINES:]] + [TOO_LARGE]
        elif isinstance(item, (bytes, bytearray)):
            told[name] = bytes(item[:PIECE])
        elif not isinstance(item, dict):
            told[name] = item  # metadata is left out
    return told


def _short(text: Any) -> str:
    return str.__str__(text)[:SHORT_CHARS] if isinstance(text, str) else TOO_LARGE


def _items(value: Any) -> int:
    """How many values a value has, as the guest counts them."""
    if isinstance(value, dict):
        return 2 * len(value) + sum(map(_items, value.values()))
    return len(value) + sum(map(_items, value)) if isinstance(value, (list, tuple)) else 0


def write_all(fd: int, data: bytes) -> None:
    """All of it, to a descriptor of a child."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except OSError:
            return


class Wire:
    """Messages in and out."""

    def __init__(self, fd: int) -> None:
        ours = high(fd)
        os.close(fd)
        self._socket = socket.socket(fileno=ours)
        self._socket.setblocking(True)  # to read; nothing that is written waits
        self._in = values.MessageReader()
        self._out = bytearray()
        self._early: deque[Any] = deque()
        """Messages that came while something else was waited for."""
        self._asked = 0
        self.is_settled = True
        """Whether the guest has taken in all that was put, or is waited for to do so."""

    def fileno(self) -> int:
        """For a loop that waits for messages."""
        return self._socket.fileno()

    @property
    def waiting(self) -> int:
        """Bytes that were put and not pushed."""
        return len(self._out)

    @property
    def has_early(self) -> bool:
        """Whether a message was read before its turn."""
        return bool(self._early) or bool(self._in.has_message)

    def close(self) -> None:
        """This process talks to the guest no more."""
        self._socket.close()

    def put(self, message: dict[str, Any]) -> None:
        """Append a message to what goes out; the caller holds the lock of the output."""
        raw = encoded(message)
        if message["event"] != "started":  # the guest takes no pipe for older than that
            self.is_settled = message["event"] == "sync"
        self._out += raw

    def push(self, given_up: Any) -> bool:
        """Write what is there.

        Args:
            given_up: Says whether to stop waiting for room.

        Returns:
            Whether all of it went.

        Raises:
            OSError: The guest is gone, or the cell closed the socket.
        """
        out = self._out
        while out:
            try:
                sent = self._socket.send(out[:PIECE], socket.MSG_DONTWAIT)
            except BlockingIOError:
                if given_up():
                    return False
                self._wait(select.POLLOUT, 0.1)
                continue
            del out[:sent]
        return True

    def ask(self) -> int:
        """The number of the next message ``sync``, which the guest answers when it has taken in what was put before."""
        self._asked += 1
        return self._asked

    def settle(self, given_up: Any) -> None:
        """Wait for the answer to the last ``sync``; not for long, because a guest that has no room for more answers late.

        Args:
            given_up: Says whether to stop waiting.

        Raises:
            OSError: The guest is gone, or the socket closed.
        """
        end_s = time.monotonic() + SETTLE_S
        while not given_up() and (rest_s := end_s - time.monotonic()) > 0:
            if not self._in.has_message and not self._wait(select.POLLIN, min(rest_s, 0.1)):
                continue
            try:
                message = self._receive()
            except EOFError:
                raise OSError("the guest is gone") from None
            if message["op"] != "synced":
                self._early.append(message)
            elif message["number"] == self._asked:
                return
        self.is_settled = False

    def receive(self) -> Any:
        """One message; EOFError once the guest is gone."""
        return self._early.popleft() if self._early else self._receive()

    def _receive(self) -> Any:
        while (raw := self._in.take()) is None:
            part = self._socket.recv(PIECE)
            if not part:
                raise EOFError
            self._in.feed(part)
        return values.decode(raw)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for a message; whether there is one."""
        return self.has_early or self._wait(select.POLLIN, timeout_s)

    def _wait(self, events: int, timeout_s: float | None) -> bool:
        poll = select.poll()
        poll.register(self._socket.fileno(), events)
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            rest = None if end_s is None else max(0.0, end_s - time.monotonic()) * 1000
            found = poll.poll(rest)
            if found or rest is not None:
                return bool(found)


class Late:
    """A thread that sends what is kept back: after a pause, or at once where the guest rings. It is none of ``threading``'s: cells do not see it.

    Args:
        output: Whose ``late`` it calls.
        bell: The pipe by which the guest rings; -1 is none.
        pause_s: How long what is kept back waits for more.

    Raises:
        RuntimeError: There is no room for a thread.
        OSError: There is none for descriptors.
    """

    def __init__(self, output: Output, bell: int, pause_s: float) -> None:
        self._output = output
        self._pause_s = pause_s
        self._bell = bell
        self._own = _own_pipe()
        self._poll = select.poll()
        for fd in (bell, self._own[0]):
            if fd >= 0:
                self._poll.register(fd, select.POLLIN)
        self.is_rung = bell >= 0
        """Whether the guest rings."""
        self._pause = allocate_lock()
        self._over = allocate_lock()
        for lock in (self._pause, self._over):
            lock.acquire()
        self._ending = False
        self.is_over = False
        """Whether the thread has ended by itself: a cell has closed its pipe, or the guest is gone."""
        try:
            start_new_thread(self._run, ())
        except RuntimeError:
            self._close()
            raise

    def ring(self) -> None:
        """Something is kept."""
        try:
            os.write(self._own[1], b"\0")
        except OSError:
            pass  # it is full: the thread will come

    def end(self) -> None:
        """End the thread, and wait for that."""
        self._ending = True
        self._pause.release()
        self.ring()
        self._over.acquire()
        self._close()

    def _run(self) -> None:
        try:
            while not self.is_over and not self._ending:
                if not self._wait() and not self._ending:
                    self._pause.acquire(timeout=self._pause_s)
                if not self._ending:
                    self._output.late()
        except OSError:
            pass
        finally:
            self.is_over = True
            self.is_rung = False
            self._over.release()

    def _wait(self) -> bool:
        """Wait until there is something to do; whether it was the guest who said so."""
        rung = False
        for fd, mask in self._poll.poll():
            try:
                gone = not (mask & select.POLLIN and os.read(fd, 64))
            except OSError:
                gone = True
            if fd == self._bell:
                rung = self._output.was_rung = True
                self.is_rung = not gone
                self._output.bell = -1 if gone else fd
            else:
                self.is_over = gone
            if gone:
                self._poll.unregister(fd)
        return rung

    def _close(self) -> None:
        for fd in self._own:
            os.close(fd)


def _own_pipe() -> tuple[int, int]:
    """A pipe to oneself, out of the way of cells."""
    pipe = os.pipe()
    made = high(pipe[0]), high(pipe[1])
    for fd in pipe:
        os.close(fd)
    for fd in made:
        os.set_blocking(fd, False)
    return made
