"""The streams that cells use as ``sys.stdout`` and ``sys.stderr``."""

from __future__ import annotations

import io

from . import attribution
from .output import ENCODING, ERRORS, MAX_DELAYED_CHARS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .output import Output


class Stream(io.TextIOBase):
    """Text stream that is used as ``sys.stdout`` or ``sys.stderr``. It puts the text that cells write into the kernel's queue of output.

    Args:
        output: Queue of the kernel's output.
        channel: 1 for standard output, 2 for standard error; also the result of :meth:`fileno`.
        name: Python's name of the stream, such as ``<stdout>``.
    """

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
        """Add text to the kernel's queue of output, for the current cell. Return the number of characters.

        Raises:
            TypeError: ``text`` is not a str.
            ValueError: A cell has closed the stream.
        """
        if type(text) is not str:
            if not isinstance(text, str):
                raise TypeError(f"write() argument must be str, not {type(text).__name__}")
            text = str.__str__(text)
        if self._closed:
            raise ValueError("I/O operation on closed file.")
        output = self._output
        size = len(text)
        output.parts.append((attribution.CELL.get() or attribution.current_cell(), self._channel, text))
        output.size += size
        if output.size > MAX_DELAYED_CHARS:
            output.flush()
        elif output.needs_attention:
            output.on_write(ends_line="\n" in text)
        return size

    def flush(self) -> None:
        """Send all queued output of the kernel to the guest."""
        if self._closed:
            raise ValueError("I/O operation on closed file.")
        self._output.flush()

    def fileno(self) -> int:
        """Return 1 or 2: the descriptor to which C code and child processes write. It is a pipe that the guest reads."""
        return self._channel

    def close(self) -> None:
        """Refuse writes to the stream until the next cell, and send all queued output. The descriptor stays open."""
        if not self._closed:
            self._closed = True
            self._output.flush()

    def reopen(self) -> None:
        """Accept writes again. Called before each cell, because an earlier cell may have closed the stream."""
        self._closed = False

    @property
    def closed(self) -> bool:
        """True if a cell has closed the stream and no new cell has started since."""
        return self._closed

    def isatty(self) -> bool:
        """Return False: the output of cells does not go to a terminal."""
        return False

    def writable(self) -> bool:
        """Return True: the stream supports writing."""
        return True

    def reconfigure(self, **_options: Any) -> None:
        """Accept and ignore all options. Text is always encoded as UTF-8, and line ends are not translated."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} name={self.name!r} mode='w' encoding='utf-8'>"


class ChildStream(Stream):
    """Text stream of a forked child, which flushes after each write that contains the end of a line."""

    def write(self, text: str) -> int:
        """Write text. Flush if the text contains the end of a line."""
        size = super().write(text)
        if "\n" in text:
            self._output.flush()
        return size


class Buffer(io.BufferedIOBase):
    """Binary stream to which cells can write bytes: the attribute ``buffer`` of a text stream.

    Args:
        stream: The text stream.
        output: Queue of the kernel's output.
        channel: 1 for standard output, 2 for standard error.
    """

    mode = "wb"

    def __init__(self, stream: Stream, output: Output, channel: int) -> None:
        super().__init__()
        self._stream = stream
        self._output = output
        self._channel = channel
        self.name = stream.name
        self.raw = self

    def write(self, data: Any) -> int:
        """Add bytes to the kernel's queue of output, for the current cell. Return the number of bytes.

        Raises:
            ValueError: A cell has closed the stream.
        """
        if self._stream.closed:
            raise ValueError("write to closed file")
        copied = bytes(memoryview(data))
        self._output.parts.append((attribution.current_cell(), self._channel, copied))
        self._output.size += len(copied)
        if self._output.size > MAX_DELAYED_CHARS:
            self._output.flush()
        elif self._output.needs_attention:
            self._output.on_write(ends_line=b"\n" in copied)
        return len(copied)

    def flush(self) -> None:
        """Send all queued output of the kernel to the guest."""
        self._output.flush()

    def fileno(self) -> int:
        """Return the descriptor of the text stream: 1 or 2."""
        return self._channel

    def close(self) -> None:
        """Close the text stream that this buffer belongs to."""
        self._stream.close()

    @property
    def closed(self) -> bool:
        """True if the text stream that this buffer belongs to is closed."""
        return self._stream.closed

    def writable(self) -> bool:
        """Return True: the buffer supports writing."""
        return True
