"""Progress of a build: a line of text for each step, and further lines during long steps, derived from the output of the tools."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

Progress = Callable[[str], None]
"""Callback that receives one line of text about the progress of a build. If it raises, the build stops and removes its incomplete files."""

DETAIL_EVERY_S = 2.0


def discard_progress(_line: str) -> None:
    """Ignore a line of progress. Callback for callers that need no progress."""


class ProgressReporter:
    """Reports the progress of one build. Each line begins with the name of the build.

    Args:
        name: Name of the build.
        progress: Callback that receives each line.
        clock: Function that returns the monotonic time in seconds.
    """

    __slots__ = ("_clock", "_last_s", "_name", "_progress")

    def __init__(self, name: str, progress: Progress, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._progress = progress
        self._clock = clock
        self._last_s = clock()

    def step(self, text: str) -> None:
        """Report that a step of the build begins."""
        self._last_s = self._clock()
        self._progress(f"{self._name}: {text}")

    def detail(self, text: str) -> None:
        """Report the progress within a step. Do nothing if the previous line was reported less than :data:`DETAIL_EVERY_S` seconds ago."""
        if self._clock() - self._last_s >= DETAIL_EVERY_S:
            self.step(text)


class OutputParser:
    """Derives lines of progress from the output of apt, dpkg, pip and compileall. Each run of a tool needs a new parser.

    Args:
        total: Number of packages or modules that the tool processes; 0 if unknown.
    """

    __slots__ = ("_done", "_total")

    _NEW = re.compile(r"\d+ upgraded, (\d+) newly installed")
    #: Pattern of an output line, and the step that the number of such lines measures. apt's "Get:" lines about package lists have two words fewer.
    _COUNTED = (
        (re.compile(r"Get:\d+ (?:\S+ ){6}\["), "downloading Debian packages"),
        (re.compile(r"Unpacking "), "unpacking Debian packages"),
        (re.compile(r"Setting up "), "setting up Debian packages"),
        (re.compile(r"(Collecting|Processing) "), "downloading Python packages"),
        (re.compile(r"Compiling "), "compiling Python modules"),
    )
    _PHASES = (
        (re.compile(r"I: running apt-get update"), "reading Debian's package lists"),
        (re.compile(r"I: extracting archives"), "extracting Debian packages"),
        (re.compile(r"I: cleaning "), "cleaning up"),
        (re.compile(r"Installing collected packages"), "installing Python packages"),
    )

    def __init__(self, total: int = 0) -> None:
        self._total = total
        self._done: dict[str, int] = {}

    def feed(self, line: str) -> str | None:
        """Read one line of the tool's output. Return the new progress as text, or None if the line does not change the progress."""
        found = self._NEW.match(line)
        if found is not None:
            self._total = int(found.group(1))
            self._done.clear()
            return None
        for pattern, text in self._PHASES:
            if pattern.match(line):
                return text
        for pattern, text in self._COUNTED:
            if pattern.match(line):
                count = self._done[text] = self._done.get(text, 0) + 1
                return f"{text}, {count} of {self._total}" if count <= self._total else text
        return None
