"""``sandlot repl``: code typed into a context of a sandbox, and what comes of it.

Laws:
- Ctrl-C interrupts what runs, and nothing else; Ctrl-D leaves. A sandbox that was made for the session ends with it.
- Without a terminal all of standard input is one cell, and the exit status is the cell's.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.options import TemplateName, live_ids

if TYPE_CHECKING:
    from sandlot.sdk import AsyncCodeHandle, AsyncSandbox, CodeEvent, Execution

SESSION_S = 3600.0
"""What a sandbox that was made for a session lives on when this program is no more there to renew it."""
RENEW_S = 600.0
RESULTS = Path("sandlot-results")

Language = Annotated[str | None, typer.Option("--language", "-l", metavar="NAME", help="python, bash or javascript. (default: python)")]
ContextId = Annotated[
    str | None, typer.Option("--context", metavar="ID", help="Where (`sandlot contexts ls`). (default: the language's that is there always)")
]
Save = Annotated[Path, typer.Option("--save", metavar="FOLDER", help="Where images go.")]


@dataclass(frozen=True, slots=True)
class Cells:
    """How cells are run.

    Args:
        language: None is the context's, or python.
        context: None is the language's own.
        timeout_s: Seconds until one is interrupted; None is never.
        env: For each of them.
        folder: Where images go.
        as_is: Whether a terminal gets output byte for byte.
    """

    language: str | None = None
    context: str | None = None
    timeout_s: float | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    folder: Path = RESULTS
    as_is: bool = False


def repl(
    *,
    sandbox: Annotated[str | None, typer.Argument(metavar="ID", help="The sandbox. (default: one of its own)", autocompletion=live_ids)] = None,
    language: Language = None,
    context: ContextId = None,
    template: TemplateName = None,
    timeout: Annotated[float | None, typer.Option("--timeout", metavar="SECONDS", help="Interrupt a cell after that long. (default: never)")] = None,
    save: Save = RESULTS,
    raw: Annotated[bool, typer.Option("--raw", help="Output to a terminal byte for byte: what commands a terminal then does.")] = False,
) -> None:
    """Type code into a sandbox, where variables and imports stay from one cell to the next.

    Ctrl-C interrupts what runs, Ctrl-D leaves, Alt-Enter breaks a line. Images are saved, and their paths printed. Without a terminal all of
    standard input is one cell; the exit status is then 0, 1 after an exception, that of `sys.exit` or of the shell, 124 when the time was up.
    """
    from sandlot.cli.passthrough import run_until_signal

    if sandbox is not None and template is not None:
        raise typer.BadParameter("--template is what a new sandbox starts from; this one is there already.")
    cells = Cells(language=language, context=context, timeout_s=timeout, folder=save, as_is=raw)
    raise typer.Exit(run_until_signal(session(sandbox, template, cells)))


async def session(sandbox_id: str | None, template: str | None, cells: Cells) -> int:
    """A session in a sandbox of its own, or in one that lives; the exit status."""
    async with _entered(sandbox_id, template) as sandbox:
        if not sys.stdin.isatty():
            return (await run_cell(sandbox, await piped(), cells)).exit_code
        language = cells.language
        if language is None:
            language = "python" if cells.context is None else (await sandbox.contexts.get(cells.context)).language
        await _typed(sandbox, cells, language)
        return 0


async def run_cell(sandbox: AsyncSandbox, code: str, cells: Cells) -> Execution:
    """Run one cell and show what it gives; cancelling interrupts it."""
    events = sandbox.stream_code(code, cells.language, context=cells.context, timeout=cells.timeout_s, envs=cells.env or None)
    try:
        return await show(events, cells)
    finally:
        await events.aclose()


async def show(events: AsyncIterable[CodeEvent], cells: Cells) -> Execution:
    """Show what a cell tells, to its end; what came of it."""
    from sandlot.cli.repl.screen import Screen
    from sandlot.sdk import Execution

    screen = Screen(cells.folder, as_is=cells.as_is)
    async for event in events:
        await screen.tell(event)
        if isinstance(event, Execution):
            return event
    raise AssertionError("a stream of events ends with the execution, or raises")


async def _typed(sandbox: AsyncSandbox, cells: Cells, language: str) -> None:
    """Run what is typed, until the person leaves."""
    from sandlot.cli.output import note
    from sandlot.cli.repl.editor import LEAVING, PROMPTS, editor
    from sandlot.model.errors import SandboxEndedError, SandlotError

    typing = editor(language)
    running = Running()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, running.interrupt)
    note(f"sandlot: {language} in {sandbox.id}, isolated by {sandbox.isolation}; Ctrl-C interrupts, Ctrl-D leaves")
    while True:
        try:
            code = await typing.prompt_async(PROMPTS.get(language, PROMPTS["python"]), handle_sigint=False)
        except KeyboardInterrupt:
            continue  # the line is given up
        except EOFError:
            return
        if code.strip() in LEAVING:
            return
        if not code.strip():
            continue
        try:
            await running.run(sandbox, code, cells)
        except SandboxEndedError:
            raise
        except SandlotError as error:
            note(f"sandlot: {error}")


class Running:
    """The cell that runs, and Ctrl-C, which interrupts it as often as it is pressed."""

    def __init__(self) -> None:
        self._handle: AsyncCodeHandle | None = None
        self._is_pressed = False
        self._asking: set[asyncio.Task[None]] = set()

    def interrupt(self) -> None:
        """Interrupt what runs, or is about to."""
        self._is_pressed = True
        if self._handle is not None:
            task = asyncio.ensure_future(self._interrupt(self._handle))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def run(self, sandbox: AsyncSandbox, code: str, cells: Cells) -> Execution:
        """Run a cell, and show what it gives; cancelling interrupts it."""
        env, self._is_pressed = cells.env or None, False
        handle = await sandbox.run_code(code, cells.language, context=cells.context, timeout=cells.timeout_s, envs=env, background=True)
        self._handle = handle
        if self._is_pressed:  # while the service was asked
            self.interrupt()
        try:
            return await show(handle, cells)
        finally:
            self._handle = None
            if handle.result is None:
                await asyncio.shield(self._interrupt(handle))

    async def _interrupt(self, handle: AsyncCodeHandle) -> None:
        from sandlot.model.errors import SandlotError

        with suppress(SandlotError):
            await handle.interrupt()


@asynccontextmanager
async def _entered(sandbox_id: str | None, template: str | None) -> AsyncIterator[AsyncSandbox]:
    """A sandbox that lives, or one for this session alone."""
    from sandlot.cli.progress import building
    from sandlot.sdk import AsyncClient, AsyncSandbox

    async with AsyncClient() as client:
        if sandbox_id is not None:
            yield await AsyncSandbox.connect(sandbox_id, client=client, resume=False)
            return
        async with building(client, template):
            made = await AsyncSandbox.create(template, timeout=SESSION_S, client=client)
        async with made as sandbox:
            renewing = asyncio.create_task(_renew(sandbox))
            try:
                yield sandbox
            finally:
                renewing.cancel()
                await asyncio.wait({renewing})


async def _renew(sandbox: AsyncSandbox) -> None:
    from sandlot.model.errors import SandlotError

    while True:
        await asyncio.sleep(RENEW_S)
        with suppress(SandlotError):  # whoever runs the next cell is told
            await sandbox.set_timeout(SESSION_S)


async def piped() -> str:
    """All of standard input as text."""
    from sandlot.cli.passthrough import standard_input

    content = b"".join([piece async for piece in standard_input()])
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise typer.BadParameter("Standard input is no UTF-8 text.") from None
