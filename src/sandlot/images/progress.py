"""Progress of a build: one line for each step, and details of long steps, which are read from the output of the tools."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

Progress = Callable[[str], None]
"""Called with one line of text. If it raises, the build ends and removes its incomplete files."""

DETAIL_EVERY_S = 2.0


def discard_progress(_line: str) -> None:
    """Ignore a line."""


class ProgressReporter:
    """Reports the progress of one build. Lines begin with its name; details of a long step are reported at most every 2 s.

    Args:
        name: Name of the build.
        progress: Called with each line.
        clock: Returns monotonic seconds.
    """

    __slots__ = ("_clock", "_last_s", "_name", "_progress")

    def __init__(self, name: str, progress: Progress, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._progress = progress
        self._clock = clock
        self._last_s = clock()

    def step(self, text: str) -> None:
        """Report that a step begins."""
        self._last_s = self._clock()
        self._progress(f"{self._name}: {text}")

    def detail(self, text: str) -> None:
        """Report the progress of a step, unless the last line is younger than 2 s."""
        if self._clock() - self._last_s >= DETAIL_EVERY_S:
            self.step(text)


class OutputParser:
    """Derives progress from the output of a tool. Use one parser for each run of a tool.

    Args:
        total: Number of packages or modules, if known beforehand.
    """

    __slots__ = ("_done", "_total")

    _NEW = re.compile(r"\d+ upgraded, (\d+) newly installed")
    #: Lines of apt-get, dpkg and pip, with the step that they count. Lines about package lists have two words less than those about packages.
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
        """Return the progress after a line of output, or None if it has not changed."""
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
