"""``sys.stdout`` and ``sys.stderr`` of cells."""

from __future__ import annotations

import io

from . import attribution
from .output import ENCODING, ERRORS, MAX_DELAYED_CHARS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .output import Output


class Stream(io.TextIOBase):
    """``sys.stdout`` or ``sys.stderr`` of cells.

    Args:
        output: Output of the kernel.
        channel: Descriptor of the stream: 1 or 2.
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
        """Write text."""
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
        """Send at once."""
        if self._closed:
            raise ValueError("I/O operation on closed file.")
        self._output.flush()

    def fileno(self) -> int:
        """Return the descriptor that C code and children write to. The guest reads it too."""
        return self._channel

    def close(self) -> None:
        """Close the stream until the next cell."""
        if not self._closed:
            self._closed = True
            self._output.flush()

    def reopen(self) -> None:
        """Open a stream that a cell has closed."""
        self._closed = False

    @property
    def closed(self) -> bool:
        """True if a cell has closed the stream."""
        return self._closed

    def isatty(self) -> bool:
        """Return False."""
        return False

    def writable(self) -> bool:
        """Return True."""
        return True

    def reconfigure(self, **_options: Any) -> None:
        """Do nothing. Text is always UTF-8 and is sent unchanged."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} name={self.name!r} mode='w' encoding='utf-8'>"


class ChildStream(Stream):
    """A stream in a forked child. It writes to the child's descriptor, line by line."""

    def write(self, text: str) -> int:
        """Write text."""
        size = super().write(text)
        if "\n" in text:
            self._output.flush()
        return size


class Buffer(io.BufferedIOBase):
    """The ``buffer`` of a stream, which accepts bytes."""

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
        self._output.parts.append((attribution.current_cell(), self._channel, copied))
        self._output.size += len(copied)
        if self._output.size > MAX_DELAYED_CHARS:
            self._output.flush()
        elif self._output.needs_attention:
            self._output.on_write(ends_line=b"\n" in copied)
        return len(copied)

    def flush(self) -> None:
        """Send at once."""
        self._output.flush()

    def fileno(self) -> int:
        """Return the stream's descriptor."""
        return self._channel

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()

    @property
    def closed(self) -> bool:
        """True if the stream is closed."""
        return self._stream.closed

    def writable(self) -> bool:
        """Return True."""
        return True
