"""The socket to the guest: messages of ``values``, each with its length before it.

Laws:
- A message goes out whole or, where the cell was interrupted while nobody read, its rest goes out before the next one: the wire is
  never torn.
- A message that the guest would not take, and end the kernel for, is told as far as it fits, and says so.
- Waiting for room can be interrupted; everything else that changes state cannot (see ``running.Interrupts``).
- The socket lies at a high descriptor, where programs that close "all" descriptors seldom reach.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import time
from collections import deque

from . import values  # type: ignore[attr-defined]  # protocol/values.py is put beside this module when it is shipped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HEAD = struct.Struct(">I")
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
        raw: bytes = values.encode(message)
    except (values.BadValue, RecursionError):
        return bytes(values.encode(shortened(message)))
    # A value has a byte at least: few bytes are few values.
    is_much = len(raw) > MESSAGE_MAX_BYTES or (len(raw) > values.MAX_ITEMS and _items(message) > values.MAX_ITEMS)
    return bytes(values.encode(shortened(message))) if is_much else raw


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
        self._socket.setblocking(False)
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
    def has_early(self) -> bool:
        """Whether a message was read before its turn."""
        return bool(self._early)

    def close(self) -> None:
        """This process talks to the guest no more."""
        self._socket.close()

    def put(self, message: dict[str, Any]) -> None:
        """Append a message to what goes out; the caller holds the lock of the output."""
        raw = encoded(message)
        if message["event"] != "started":  # the guest takes no pipe for older than that
            self.is_settled = message["event"] == "sync"
        self._out += HEAD.pack(len(raw))
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
                sent = self._socket.send(out[:PIECE])
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
            if not self._wait(select.POLLIN, min(rest_s, 0.1)):
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
        (size,) = HEAD.unpack(self._exactly(HEAD.size))
        return values.decode(self._exactly(size))

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

    def _exactly(self, size: int) -> bytes:
        parts = []
        while size:
            try:
                part = self._socket.recv(min(size, 1 << 20))
            except BlockingIOError:
                self._wait(select.POLLIN, None)
                continue
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)
