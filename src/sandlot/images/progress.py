"""What a build says while it runs: one line per step, and how far a long one has come, read from the tool's own output."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

Progress = Callable[[str], None]
"""Takes one line for a person. It may raise: that ends the build, which then cleans up behind itself."""

DETAIL_EVERY_S = 2.0


def quiet(_line: str) -> None:
    """Says nothing."""


class Reporter:
    """Lines of one piece of work, each with its name in front; details of a long step at most every 2 s.

    Args:
        name: What is being built.
        progress: Where the lines go.
        clock: Monotonic seconds.
    """

    __slots__ = ("_clock", "_last_s", "_name", "_progress")

    def __init__(self, name: str, progress: Progress, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._progress = progress
        self._clock = clock
        self._last_s = clock()

    def step(self, text: str) -> None:
        """A step begins."""
        self._last_s = self._clock()
        self._progress(f"{self._name}: {text}")

    def detail(self, text: str) -> None:
        """How far it has come; left out when the last line is younger than 2 s."""
        if self._clock() - self._last_s >= DETAIL_EVERY_S:
            self.step(text)


class Meter:
    """Reads a tool's output line by line and says how far it is. One per run of a tool.

    Args:
        total: How many packages, where that is known beforehand.
    """

    __slots__ = ("_done", "_total")

    _NEW = re.compile(r"\d+ upgraded, (\d+) newly installed")
    #: apt-get's, dpkg's and pip's own wording -> what it counts. Package lists have two words less than packages.
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
        """What to say after this line of output; None is nothing new."""
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
