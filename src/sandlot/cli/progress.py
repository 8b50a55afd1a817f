"""Progress of long operations, on standard error: a moving line on a terminal, a line per step elsewhere."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Self

from sandlot.cli.output import note, visible

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID
    from rich.status import Status

    from sandlot.sdk import AsyncClient, TemplateInfo, TransferProgress

POLL_S = 1.0
"""Seconds between two requests for the state of a build."""
DEFAULT_TEMPLATE = "code-interpreter"
_BUILDING = "building the template {name!r}, which is used for the first time; this takes a few minutes."


class Spinner:
    """A line about an operation that is waited for. A context manager.

    Args:
        text: Name of the operation.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._step = ""
        self._status: Status | None = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.text import Text

            self._status = Console(stderr=True).status(Text(visible(text)), spinner="line")

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        else:
            note(f"sandlot: {self._text}")
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def show_step(self, step: str) -> None:
        """Show the current step; a repeated step is shown once."""
        if step == self._step:
            return
        self._step = step
        if self._status is not None:
            from rich.text import Text

            self._status.update(Text(f"{visible(self._text)} {visible(step)}"))
        else:
            note(f"sandlot:   {step}")


class ByteProgressBar:
    """Progress of a transfer on a terminal; elsewhere nothing is shown. A context manager.

    Args:
        name: Name of the file.
    """

    def __init__(self, name: str) -> None:
        self.last: TransferProgress | None = None
        """Last progress; None before the first."""
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

            # Names can come from a sandbox: no markup.
            title, files = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[files]}", markup=False)
            columns = (title, BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn(), files)
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._progress.add_task(visible(name), total=None, files="")

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def update(self, progress: TransferProgress) -> None:
        """Show the progress of the transfer."""
        self.last = progress
        if self._progress is not None and self._task is not None:
            files = f"{progress.done_files}" + (f"/{progress.total_files}" if progress.total_files is not None else "") + " files"
            self._progress.update(self._task, completed=progress.done_bytes, total=progress.total_bytes, files=files)


def unbuilt_template(templates: Iterable[TemplateInfo], template: str | None) -> str | None:
    """Return the name of a template if it is not built yet, otherwise None.

    Args:
        templates: Templates of the service.
        template: Name of the template that a sandbox starts from; None for the default.
    """
    name = template or DEFAULT_TEMPLATE
    return name if any(known.name == name and not known.built for known in templates) else None


def announce_build(templates: Iterable[TemplateInfo], template: str | None) -> None:
    """Print a note if the first sandbox of a template has to wait for its build; arguments as in :func:`unbuilt_template`."""
    name = unbuilt_template(templates, template)
    if name is not None:
        note(f"sandlot: {_BUILDING.format(name=name)}")


@asynccontextmanager
async def show_build(client: AsyncClient, template: str | None) -> AsyncIterator[None]:
    """Show the steps of a template's build while the body creates a sandbox. Nothing is shown if the template is built.

    Args:
        client: Client for the state of the build.
        template: Name of the template; None for the default.
    """
    name = unbuilt_template(await client.templates.list(), template)
    if name is None:
        yield
        return
    with Spinner(_BUILDING.format(name=name)) as spinner:
        following = asyncio.create_task(_follow_build(client, name, spinner))
        try:
            yield
        finally:
            following.cancel()
            await asyncio.wait({following})


async def _follow_build(client: AsyncClient, name: str, spinner: Spinner) -> None:
    from sandlot.sdk import SandlotError

    while True:
        await asyncio.sleep(POLL_S)
        with suppress(SandlotError):  # the body reports errors of the service
            for known in await client.templates.list():
                if known.name == name and known.building:
                    spinner.show_step(known.building)
