"""Connection of the kernel to the guest: a socket on which both send messages in the encoding of the module ``values``.

Invariants:
- A message is always sent completely. If an interrupt arrives while the guest does not read, sending stops, and the rest of the message is sent
  before the next message.
- A message that exceeds the guest's limits is shortened before it is sent, and gets a note. The guest would otherwise kill the kernel.
- Sending a message usually takes one system call, because a system call takes tens of microseconds in gVisor.
- While the channel waits until the guest reads, an interrupt can end the wait. No other step that changes the channel's state can be interrupted.
- The socket has a high descriptor number, because a cell that closes a range of descriptors rarely includes such high numbers.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import time
from collections import deque

from . import values  # type: ignore[attr-defined]  # protocol/values.py is shipped beside this module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MESSAGE_MAX_BYTES = 8 * 1024 * 1024
"""Maximum size in bytes of a message that the guest accepts (``protocol.connection.MESSAGE_MAX_BYTES``)."""
MAX_SHORT_CHARS = 2000
"""Maximum number of characters of a text in a shortened message."""
MAX_SHORT_LINES = 100
"""Maximum number of traceback lines in a shortened message."""
TOO_LARGE = "[left out, because it is too large]"
CHUNK_BYTES = 65536
SYNC_TIMEOUT_S = 1.0
"""Maximum time in seconds to wait until the guest confirms that it has read all output."""
MIN_DESCRIPTOR = 700
"""Lowest descriptor number of the kernel's own files, below the usual limit of 1,024 (RLIMIT_NOFILE)."""


def duplicate_high(fd: int) -> int:
    """Return a duplicate of a descriptor, with a number of at least ``MIN_DESCRIPTOR``. The duplicate is closed by exec(2).

    If RLIMIT_NOFILE does not allow such a number, the duplicate has a number of at least 3.
    """
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, MIN_DESCRIPTOR)
    except OSError:  # RLIMIT_NOFILE is lower than MIN_DESCRIPTOR
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)


def encode(message: dict[str, Any]) -> bytes:
    """Return the encoded form of a message. The message is shortened if it is larger than the guest accepts or cannot be encoded."""
    try:
        raw: bytes = values.encode_message(message)
    except (values.EncodingError, RecursionError):
        return bytes(values.encode_message(shortened(message)))
    size = len(raw) - values.HEAD_BYTES
    # Count the items only if the message has more than MAX_ITEMS bytes: each item takes at least one byte.
    is_too_large = size > MESSAGE_MAX_BYTES or (size > values.MAX_ITEMS and _items(message) > values.MAX_ITEMS)
    return bytes(values.encode_message(shortened(message))) if is_too_large else raw


def shortened(message: dict[str, Any]) -> dict[str, Any]:
    """Return a shortened message of the same kind, with all required fields and a note.

    Args:
        message: Message of the kernel. Its values may be texts, bytes, numbers, dicts (``data`` of a display, ``metadata``) and lists of lines.
    """
    short: dict[str, Any] = {}
    for name, item in message.items():
        if name == "data" and message["event"] == "display":
            short[name] = {"text/plain": TOO_LARGE}
        elif isinstance(item, str):
            short[name] = _short(item)
        elif isinstance(item, (list, tuple)):
            short[name] = [_short(line) for line in item[-MAX_SHORT_LINES:]] + [TOO_LARGE]
        elif isinstance(item, (bytes, bytearray)):
            short[name] = bytes(item[:CHUNK_BYTES])
        elif not isinstance(item, dict):
            short[name] = item  # dicts that get here are left out: they are metadata of displays, which are optional
    return short


def _short(text: Any) -> str:
    return str.__str__(text)[:MAX_SHORT_CHARS] if isinstance(text, str) else TOO_LARGE


def _items(value: Any) -> int:
    """Return the number of nested items in a value, in the same way as ``values.decode`` counts the items."""
    if isinstance(value, dict):
        return 2 * len(value) + sum(map(_items, value.values()))
    return len(value) + sum(map(_items, value)) if isinstance(value, (list, tuple)) else 0


def write_all(fd: int, data: bytes) -> None:
    """Write all bytes to a descriptor. Used in forked children only. After an error, the rest is dropped.

    Args:
        fd: The descriptor.
        data: Bytes to write.
    """
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except OSError:
            return


class Channel:
    """The kernel's connection to the guest, which sends and receives messages.

    Args:
        fd: Descriptor of the socket. It is closed and replaced by a duplicate with a high number.
    """

    def __init__(self, fd: int) -> None:
        high_fd = duplicate_high(fd)
        os.close(fd)
        self._socket = socket.socket(fileno=high_fd)
        self._socket.setblocking(True)  # for reading; writes use MSG_DONTWAIT
        self._in = values.MessageReader()
        self._out = bytearray()
        self._received: deque[Any] = deque()
        """Messages of the guest that arrived during :meth:`wait_synced` and that :meth:`receive` has not returned yet."""
        self._sync_number = 0
        self.is_synced = True
        """True if no output was queued since the last ``sync`` message. False if output was queued, or if the wait for confirmation was given up."""

    def fileno(self) -> int:
        """Return the descriptor of the socket to the guest."""
        return self._socket.fileno()

    @property
    def queued_bytes(self) -> int:
        """Number of bytes that were queued with :meth:`queue` and not sent yet."""
        return len(self._out)

    @property
    def has_message(self) -> bool:
        """True if a message of the guest was received that :meth:`receive` has not returned yet."""
        return bool(self._received) or bool(self._in.has_message)

    def close(self) -> None:
        """Close the socket to the guest."""
        self._socket.close()

    def queue(self, message: dict[str, Any]) -> None:
        """Queue a message for :meth:`send_queued`. The caller must hold the lock of ``Output``."""
        raw = encode(message)
        if message["event"] != "started":  # "started" needs no confirmation: the guest does not read the pipes before it handles this message
            self.is_synced = message["event"] == "sync"
        self._out += raw

    def send_queued(self, give_up: Callable[[], bool]) -> bool:
        """Send all queued messages, and wait while the guest does not read.

        Args:
            give_up: Function that returns True to stop waiting. Called repeatedly during the wait.

        Returns:
            True if all messages were sent.

        Raises:
            OSError: The guest or a cell has closed the socket.
        """
        out = self._out
        while out:
            try:
                sent = self._socket.send(out[:CHUNK_BYTES], socket.MSG_DONTWAIT)
            except BlockingIOError:
                if give_up():
                    return False
                self._wait(select.POLLOUT, 0.1)
                continue
            del out[:sent]
        return True

    def next_sync(self) -> int:
        """Return the number for a new ``sync`` message. The guest confirms the number after it has handled all earlier messages."""
        self._sync_number += 1
        return self._sync_number

    def wait_synced(self, give_up: Callable[[], bool]) -> None:
        """Wait until the guest has confirmed the last ``sync`` message, at most ``SYNC_TIMEOUT_S``.

        The time is limited because the guest confirms late if a client reads slowly.

        Args:
            give_up: Function that returns True to stop waiting. Called repeatedly during the wait.

        Raises:
            OSError: The guest or a cell has closed the socket.
        """
        end_s = time.monotonic() + SYNC_TIMEOUT_S
        while not give_up() and (rest_s := end_s - time.monotonic()) > 0:
            if not self._in.has_message and not self._wait(select.POLLIN, min(rest_s, 0.1)):
                continue
            try:
                message = self._receive()
            except EOFError:
                raise OSError("the guest has closed the socket") from None
            if message["op"] != "synced":
                self._received.append(message)
            elif message["number"] == self._sync_number:
                return
        self.is_synced = False

    def receive(self) -> Any:
        """Return the next message of the guest. Wait until there is one.

        Raises:
            EOFError: The guest has closed the socket.
        """
        return self._received.popleft() if self._received else self._receive()

    def _receive(self) -> Any:
        while (raw := self._in.take()) is None:
            part = self._socket.recv(CHUNK_BYTES)
            if not part:
                raise EOFError
            self._in.feed(part)
        return values.decode(raw)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until :meth:`receive` can read from the guest.

        Args:
            timeout_s: Maximum time to wait in seconds; None for no limit.

        Returns:
            True if a message, a part of a message, or the end of the stream can be read. False after the timeout.
        """
        return self.has_message or self._wait(select.POLLIN, timeout_s)

    def _wait(self, events: int, timeout_s: float | None) -> bool:
        poll = select.poll()
        poll.register(self._socket.fileno(), events)
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            rest = None if end_s is None else max(0.0, end_s - time.monotonic()) * 1000
            found = poll.poll(rest)
            if found or rest is not None:
                return bool(found)
