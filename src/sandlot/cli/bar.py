"""How far a copy is, for whoever sits at a terminal; nothing elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Self

from sandlot.cli.output import visible

if TYPE_CHECKING:
    from rich.progress import Progress as Shown
    from rich.progress import TaskID

    from sandlot.sdk import TransferProgress


class Bar:
    """A line at the bottom of the terminal, on standard error.

    Args:
        what: What is copied.
    """

    def __init__(self, what: str) -> None:
        self._shown: Shown | None = None
        self._task: TaskID | None = None
        self.last: TransferProgress | None = None
        """What was told last."""
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
            from rich.progress import Progress as Made

            # Names are a sandbox's: never markup.
            words = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[files]}", markup=False)
            columns = (words[0], BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn(), words[1])
            self._shown = Made(*columns, console=Console(stderr=True), transient=True)
            self._task = self._shown.add_task(visible(what), total=None, files="")

    def __enter__(self) -> Self:
        if self._shown is not None:
            self._shown.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown is not None:
            self._shown.stop()

    def tell(self, progress: TransferProgress) -> None:
        """It is so far now."""
        self.last = progress
        if self._shown is not None and self._task is not None:
            files = f"{progress.done_files}" + (f"/{progress.total_files}" if progress.total_files is not None else "") + " files"
            self._shown.update(self._task, completed=progress.done_bytes, total=progress.total_bytes, files=files)
