"""What one cell tells, on standard output and error, as it comes."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from sandlot.cli.output import Legible, note
from sandlot.cli.passthrough import emit, write_all
from sandlot.cli.repl import render
from sandlot.sdk import CodeEvent, ExceptionInfo, Execution, Output, Result

WHY: Mapping[str, str] = {
    "timeout": "the cell was interrupted, because its time was up.",
    "killed": "the interpreter had to be killed; its variables are gone.",
    "died": "the interpreter ended; its variables are gone.",
    "oom": "the interpreter needed more memory than the sandbox may have, and was killed; its variables are gone.",
    "aborted": "the cell never ran: it was taken back, or one before it failed.",
}
"""What a person is told of an end that is not the code's own doing."""


class Screen:
    """Shows what one cell tells.

    Args:
        folder: Where images go.
        as_is: Whether a terminal gets output byte for byte.
    """

    def __init__(self, folder: Path, *, as_is: bool) -> None:
        self._folder = folder
        self._widths = {descriptor: shutil.get_terminal_size().columns if os.isatty(descriptor) else None for descriptor in (1, 2)}
        self._legible = {name: Legible() for name, fd in (("stdout", 1), ("stderr", 2)) if self._widths[fd] is not None and not as_is}
        self._within_line = False

    async def tell(self, event: CodeEvent) -> None:
        """Show an event."""
        if isinstance(event, Output):
            await self._output(event)
        elif isinstance(event, Result):
            files = await asyncio.to_thread(render.save, event, self._folder)
            await self._write(1, render.shown(event, files, width=self._widths[1]))
        elif isinstance(event, ExceptionInfo):
            await self._write(2, render.failure(event, width=self._widths[2]))
        elif isinstance(event, Execution):
            await self._end(event)

    async def _output(self, piece: Output) -> None:
        legible = self._legible.get(piece.stream)
        shown = piece if legible is None else replace(piece, data=legible.feed(piece.data))
        if shown.data:
            self._within_line = not shown.data.endswith(b"\n")
        await emit(shown)

    async def _write(self, descriptor: int, text: str) -> None:
        if text:
            await self._end_line()
            await write_all(descriptor, text.encode("utf-8", "replace"))

    async def _end_line(self) -> None:
        """On a terminal, what follows begins on a line of its own."""
        if self._within_line and self._widths[1] is not None:
            await write_all(1, b"\n")
        self._within_line = False

    async def _end(self, execution: Execution) -> None:
        for name, legible in self._legible.items():
            await write_all(1 if name == "stdout" else 2, legible.feed(b"", last=True))
        await self._end_line()
        why = WHY.get(execution.status)
        if why is not None:
            note(f"sandlot: {why}")
