"""The socket to the guest, which carries the messages of ``values``.

Invariants:
- A message is sent whole. If a cell is interrupted while the guest does not read, the rest of the message is sent before the next one.
- A message that the guest would refuse, and end the kernel for, is shortened and says so.
- Most times, a message arrives with one system call: each takes tens of microseconds in gVisor.
- Waiting for room can be interrupted; everything else that changes the state of the channel cannot (``interrupts``).
- The socket has a high descriptor, because programs that close "all" descriptors seldom get that far.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import time
from collections import deque

from . import values  # type: ignore[attr-defined]  # protocol/values.py is put beside this module when it is shipped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MESSAGE_MAX_BYTES = 8 * 1024 * 1024
"""Longest message that the guest accepts (``protocol.connection.MESSAGE_MAX_BYTES``)."""
MAX_SHORT_CHARS = 2000
MAX_SHORT_LINES = 100
TOO_LARGE = "[left out: it is too large to be told]"
CHUNK_BYTES = 65536
SYNC_TIMEOUT_S = 1.0
MIN_DESCRIPTOR = 700
"""Lowest descriptor of the kernel's own files; RLIMIT_NOFILE is usually 1,024."""


def duplicate_high(fd: int) -> int:
    """Return a high duplicate of a descriptor that is closed by exec(2)."""
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, MIN_DESCRIPTOR)
    except OSError:  # a lower RLIMIT_NOFILE
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)


def encode(message: dict[str, Any]) -> bytes:
    """Return an encoded message, shortened if the guest would refuse it."""
    try:
        raw: bytes = values.encode_message(message)
    except (values.EncodingError, RecursionError):
        return bytes(values.encode_message(shortened(message)))
    size = len(raw) - values.HEAD_BYTES
    # A value takes at least a byte: few bytes are few values.
    is_too_large = size > MESSAGE_MAX_BYTES or (size > values.MAX_ITEMS and _items(message) > values.MAX_ITEMS)
    return bytes(values.encode_message(shortened(message))) if is_too_large else raw


def shortened(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message of the same kind with its required fields, little of the rest, and a note about that.

    Args:
        message: A message of the kernel: its values are texts, numbers, representations of a result, lines of a traceback.
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
            short[name] = item  # metadata is left out
    return short


def _short(text: Any) -> str:
    return str.__str__(text)[:MAX_SHORT_CHARS] if isinstance(text, str) else TOO_LARGE


def _items(value: Any) -> int:
    """Return the number of values in a value, as the guest counts them."""
    if isinstance(value, dict):
        return 2 * len(value) + sum(map(_items, value.values()))
    return len(value) + sum(map(_items, value)) if isinstance(value, (list, tuple)) else 0


def write_all(fd: int, data: bytes) -> None:
    """Write everything to a descriptor of a forked child."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except OSError:
            return


class Channel:
    """Messages to and from the guest.

    Args:
        fd: Socket to the guest; it is moved to a high descriptor.
    """

    def __init__(self, fd: int) -> None:
        high_fd = duplicate_high(fd)
        os.close(fd)
        self._socket = socket.socket(fileno=high_fd)
        self._socket.setblocking(True)  # for reading; writing never blocks
        self._in = values.MessageReader()
        self._out = bytearray()
        self._received: deque[Any] = deque()
        """Messages that arrived while a confirmation was awaited."""
        self._sync_number = 0
        self.is_synced = True
        """True if the guest has confirmed all messages, or its confirmation is awaited."""

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    @property
    def queued_bytes(self) -> int:
        """Number of bytes that were queued and not sent."""
        return len(self._out)

    @property
    def has_message(self) -> bool:
        """True if a message was received and not yet taken."""
        return bool(self._received) or bool(self._in.has_message)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def queue(self, message: dict[str, Any]) -> None:
        """Queue a message; the caller holds the lock of the output."""
        raw = encode(message)
        if message["event"] != "started":  # the guest does not read the pipes before it handles this one
            self.is_synced = message["event"] == "sync"
        self._out += raw

    def send_queued(self, give_up: Callable[[], bool]) -> bool:
        """Send the queued messages.

        Args:
            give_up: Returns whether to stop waiting for room.

        Returns:
            True if everything was sent.

        Raises:
            OSError: The guest is gone, or a cell closed the socket.
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
        """Return a number for a message ``sync``. The guest confirms it when it has handled everything that was sent before."""
        self._sync_number += 1
        return self._sync_number

    def wait_synced(self, give_up: Callable[[], bool]) -> None:
        """Wait for the confirmation of the last ``sync``, for a short time: a guest that has no room confirms late.

        Args:
            give_up: Returns whether to stop waiting.

        Raises:
            OSError: The guest is gone, or the socket is closed.
        """
        end_s = time.monotonic() + SYNC_TIMEOUT_S
        while not give_up() and (rest_s := end_s - time.monotonic()) > 0:
            if not self._in.has_message and not self._wait(select.POLLIN, min(rest_s, 0.1)):
                continue
            try:
                message = self._receive()
            except EOFError:
                raise OSError("the guest is gone") from None
            if message["op"] != "synced":
                self._received.append(message)
            elif message["number"] == self._sync_number:
                return
        self.is_synced = False

    def receive(self) -> Any:
        """Return the next message.

        Raises:
            EOFError: The guest is gone.
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
        """Wait for a message; return whether there is one."""
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
