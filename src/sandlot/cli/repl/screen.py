"""Shows the events of a cell on standard output and error."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from sandlot.cli.output import ControlCharacterFilter, note
from sandlot.cli.passthrough import emit, write_all
from sandlot.cli.repl import render
from sandlot.sdk import CodeEvent, ExceptionInfo, Execution, Output, Result

REASONS: Mapping[str, str] = {
    "timeout": "the code was interrupted after its timeout.",
    "killed": "the interpreter was killed; its variables are lost.",
    "died": "the interpreter ended; its variables are lost.",
    "oom": "the interpreter was killed because it exceeded the sandbox's memory limit; its variables are lost.",
    "aborted": "the code did not run: it was withdrawn, or code before it failed.",
}
"""Notes for executions that the code itself did not end."""


class Screen:
    """Shows the events of one cell.

    Args:
        save_dir: Directory for images.
        raw: Do not escape control characters on a terminal.
    """

    def __init__(self, save_dir: Path, *, raw: bool) -> None:
        self._save_dir = save_dir
        self._widths = {descriptor: shutil.get_terminal_size().columns if os.isatty(descriptor) else None for descriptor in (1, 2)}
        self._filters = {name: ControlCharacterFilter() for name, fd in (("stdout", 1), ("stderr", 2)) if self._widths[fd] is not None and not raw}
        self._within_line = False

    async def show(self, event: CodeEvent) -> None:
        """Show an event."""
        if isinstance(event, Output):
            await self._output(event)
        elif isinstance(event, Result):
            files = await asyncio.to_thread(render.save_image, event, self._save_dir)
            await self._write(1, render.render(event, files, width=self._widths[1]))
        elif isinstance(event, ExceptionInfo):
            await self._write(2, render.render_error(event, width=self._widths[2]))
        elif isinstance(event, Execution):
            await self._end(event)

    async def _output(self, output: Output) -> None:
        escaped = self._filters.get(output.stream)
        shown = output if escaped is None else replace(output, data=escaped.feed(output.data))
        if shown.data:
            self._within_line = not shown.data.endswith(b"\n")
        await emit(shown)

    async def _write(self, descriptor: int, text: str) -> None:
        if text:
            await self._end_line()
            await write_all(descriptor, text.encode("utf-8", "replace"))

    async def _end_line(self) -> None:
        """On a terminal, end a line that output has started."""
        if self._within_line and self._widths[1] is not None:
            await write_all(1, b"\n")
        self._within_line = False

    async def _end(self, execution: Execution) -> None:
        for name, escaped in self._filters.items():
            await write_all(1 if name == "stdout" else 2, escaped.feed(b"", last=True))
        await self._end_line()
        reason = REASONS.get(execution.status)
        if reason is not None:
            note(f"sandlot: {reason}")
