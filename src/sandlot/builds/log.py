"""The log of one build: lines of output, whose number, length and rate are limited.

Invariants:
- A program can write without end: what the log drops costs neither memory nor disk. One line says how much was dropped.
- Lines are stored within ``FLUSH_S``, and all of them before the end of the build is recorded.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Sequence
from typing import Final

from sandlot.builds.limits import BuildLimits
from sandlot.core.node import Node
from sandlot.core.ports import Clock
from sandlot.model.errors import LimitError
from sandlot.model.templates import MAX_LINE_CHARS, BuildLine, BuildRecord, LogLevel

FLUSH_S: Final = 0.2
BURST_S: Final = 10.0
"""Size of a burst in seconds: after silence, this many seconds' worth of lines may be written at once."""
TAIL_LINES: Final = 20
"""Number of last lines that an error contains."""
TAIL_CHARS: Final = 2_000
MAX_LINES_AT_ONCE: Final = 500
"""Number of lines that are kept at each end of one piece of output, which can have 100,000 lines. The middle is dropped."""
_CONTROL: Final = dict.fromkeys([*range(9), *range(10, 32), 127], "")


class BuildLog:
    """The log of one build.

    Args:
        node: Node with the records of builds.
        build: The build.
        limits: Limits of builds.
        clock: Clock of the service.

    Attributes:
        build: The build, with the step that runs.
    """

    def __init__(self, node: Node, build: BuildRecord, limits: BuildLimits, clock: Clock) -> None:
        self._records = node.template_builds
        self._limits = limits
        self._clock = clock
        self.build = build
        self._pending: list[BuildLine] = []
        self._flusher: asyncio.Task[None] | None = None
        self._lines = 0
        self._output_bytes = 0
        self._credit = limits.lines_per_s * BURST_S
        self._credited_s = clock.monotonic_s()
        self._dropped = 0

    async def step(self, label: str, text: str) -> None:
        """Record the step that runs, and log its text."""
        self._report_dropped()
        await self.flush()
        changed = await self._records.step(self.build, label)
        self.build = changed or self.build
        self.add(text)

    def add(self, text: str, level: LogLevel = LogLevel.INFO) -> None:
        """Add a line of the build itself."""
        self._pending.append(BuildLine(self._clock.now(), level, text, self.build.step))
        if self._flusher is None or self._flusher.done():
            self._flusher = asyncio.create_task(self._flush_soon())

    def warn(self, text: str) -> None:
        """Add a warning."""
        self.add(text, LogLevel.WARNING)

    def output(self, lines: Sequence[str], left_out: int = 0) -> None:
        """Add lines of output, or drop those for which there is no room. Dropped lines cost nothing.

        Args:
            lines: Lines.
            left_out: Number of further lines that the caller has dropped.
        """
        now_s = self._clock.monotonic_s()
        rate = self._limits.lines_per_s
        self._credit = min(rate * BURST_S, self._credit + (now_s - self._credited_s) * rate)
        self._credited_s = now_s
        report_lines = 1 if self._dropped else 0
        kept = lines[: max(0, min(int(self._credit), self._limits.log_lines - self._lines) - report_lines)]
        if kept:
            self._report_dropped()
            for line in kept:
                self.add(line)
            self._credit -= report_lines + len(kept)
            self._lines += report_lines + len(kept)
        self._dropped += len(lines) - len(kept) + left_out

    def count(self, size_bytes: int) -> None:
        """Count output.

        Raises:
            LimitError: The build has written too much.
        """
        self._output_bytes += size_bytes
        if self._output_bytes > self._limits.output_bytes:
            raise LimitError(
                f"The commands of the build have written more than {self._limits.output_bytes} bytes of output, the maximum.",
                hint="Write less output, or redirect it to a file.",
            )

    async def flush(self) -> None:
        """Store all lines."""
        lines, self._pending = self._pending, []
        if lines:
            await self._records.log(self.build, lines)

    async def fail(self, text: str) -> None:
        """Add the reason of a failure, and store all lines."""
        self._report_dropped()
        for line in text.splitlines():
            self.add(line, LogLevel.ERROR)
        await self.aclose()

    async def aclose(self) -> None:
        """Store all lines. Idempotent."""
        self._report_dropped()
        if self._flusher is not None:
            self._flusher.cancel()
            await asyncio.wait([self._flusher])
            self._flusher = None
        await self.flush()

    def _report_dropped(self) -> None:
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            self.warn(f"{dropped} lines of output were left out.")

    async def _flush_soon(self) -> None:
        while self._pending:
            await self._clock.sleep_until(self._clock.monotonic_s() + FLUSH_S)
            await asyncio.shield(self.flush())


class OutputLines:
    """Splits the output of one command into lines. Carriage returns end lines, so that progress bars do not make endless lines.

    Args:
        log: Log that gets the lines.

    Attributes:
        tail: The last lines, for an error.
    """

    def __init__(self, log: BuildLog) -> None:
        self._log = log
        self._rest: dict[int, str] = {}
        self._decoders: dict[int, codecs.IncrementalDecoder] = {}
        self._cut: set[int] = set()
        self.tail: list[str] = []

    def feed(self, channel: int, data: bytes) -> None:
        """Take the next bytes of a channel.

        Raises:
            LimitError: The build has written too much.
        """
        self._log.count(len(data))
        decoder = self._decoders.setdefault(channel, codecs.getincrementaldecoder("utf-8")("replace"))
        *lines, rest = (self._rest.get(channel, "") + decoder.decode(data)).replace("\r", "\n").split("\n")
        if lines and channel in self._cut:
            self._cut.discard(channel)
            del lines[0]  # the rest of a line that was cut
        self._emit(lines)
        if len(rest) > MAX_LINE_CHARS:
            if channel not in self._cut:
                self._cut.add(channel)
                self._emit([rest])
            rest = ""
        self._rest[channel] = rest

    def finish(self) -> None:
        """Take the last lines, which have no line break."""
        self._emit([rest for channel, rest in self._rest.items() if channel not in self._cut])
        self._rest.clear()

    def _emit(self, lines: Sequence[str]) -> None:
        """Log lines without their control characters. Of many lines at once, the middle is dropped first."""
        left_out = max(0, len(lines) - 2 * MAX_LINES_AT_ONCE)
        if left_out:
            lines = [*lines[:MAX_LINES_AT_ONCE], *lines[-MAX_LINES_AT_ONCE:]]
        shown = [line[:MAX_LINE_CHARS].translate(_CONTROL) for line in lines if line and not line.isspace()]
        self.tail = [*self.tail, *shown][-TAIL_LINES:]
        self._log.output(shown, left_out)

    def tail_text(self) -> str:
        """Return the last lines as one text of at most ``TAIL_CHARS``."""
        return "\n".join(self.tail)[-TAIL_CHARS:]
