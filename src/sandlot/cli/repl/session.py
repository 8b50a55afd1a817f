"""``sandlot repl``: an interactive session in a context of a sandbox.

Invariants:
- Ctrl-C interrupts running code and does nothing else; Ctrl-D ends the session. A sandbox that was created for the session ends with it.
- Without a terminal, all of standard input is one cell, and the exit status is that of the cell.
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

from sandlot.cli.options import Language, Raw, TemplateName, complete_sandboxes

if TYPE_CHECKING:
    from sandlot.sdk import AsyncCodeHandle, AsyncSandbox, CodeEvent, Execution

SESSION_S = 3600.0
"""Timeout of a sandbox that was created for a session; the session sets it again every :data:`RENEW_S` seconds."""
RENEW_S = 600.0
DEFAULT_SAVE_DIR = Path("sandlot-results")


@dataclass(frozen=True, slots=True)
class CellOptions:
    """Options of the cells of a session.

    Args:
        language: Language; None for that of the context, or Python.
        context: Context id; None for the default context of the language.
        timeout_s: Seconds until a cell is interrupted; None for no limit.
        env: Environment variables of each cell.
        save_dir: Directory for images.
        raw: Do not escape control characters on a terminal.
    """

    language: str | None = None
    context: str | None = None
    timeout_s: float | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    save_dir: Path = DEFAULT_SAVE_DIR
    raw: bool = False


def repl(
    *,
    sandbox: Annotated[
        str | None,
        typer.Argument(metavar="SANDBOX", help="Id or name of the sandbox. (default: a new sandbox)", autocompletion=complete_sandboxes),
    ] = None,
    language: Language = None,
    context: Annotated[
        str | None, typer.Option("--context", metavar="CONTEXT", help="Context id. (default: the default context of the language)")
    ] = None,
    template: TemplateName = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", help="Seconds until an input is interrupted. (default: no limit)")
    ] = None,
    save: Annotated[Path, typer.Option("--save", metavar="DIRECTORY", help="Directory for images.")] = DEFAULT_SAVE_DIR,
    raw: Raw = False,
) -> None:
    """Start an interactive session; variables persist between inputs.

    Ctrl-C interrupts running code, Ctrl-D ends the session, Alt-Enter inserts a line break. Images are saved and their paths printed. Without a
    terminal, all of standard input is one input; the exit status is then 0, 1 after an exception, that of `sys.exit` or of the shell, or 124 after a
    timeout.
    """
    from sandlot.cli.passthrough import run_until_signal

    if sandbox is not None and template is not None:
        raise typer.BadParameter("It cannot be combined with SANDBOX.", param_hint="--template")
    options = CellOptions(language=language, context=context, timeout_s=timeout, save_dir=save, raw=raw)
    raise typer.Exit(run_until_signal(run_session(sandbox, template, options)))


async def run_session(sandbox_id: str | None, template: str | None, options: CellOptions) -> int:
    """Run a session in a new or a running sandbox, and return the exit status."""
    if sys.stdin.isatty():
        import sandlot.cli.repl.editor  # noqa: F401 - without prompt-toolkit, no sandbox is created

    async with _open_sandbox(sandbox_id, template) as sandbox:
        if not sys.stdin.isatty():
            return (await run_cell(sandbox, await read_standard_input(), options)).exit_code
        language = options.language
        if language is None:
            language = "python" if options.context is None else (await sandbox.contexts.get(options.context)).language
        await _typed(sandbox, options, language)
        return 0


async def run_cell(sandbox: AsyncSandbox, code: str, options: CellOptions) -> Execution:
    """Run a cell and show its output and results; cancellation interrupts the cell."""
    events = sandbox.stream_code(code, options.language, context=options.context, timeout=options.timeout_s, envs=options.env or None)
    try:
        return await show(events, options)
    finally:
        await events.aclose()


async def show(events: AsyncIterable[CodeEvent], options: CellOptions) -> Execution:
    """Show the events of a cell until its end, and return its execution."""
    from sandlot.cli.repl.screen import Screen
    from sandlot.sdk import Execution

    screen = Screen(options.save_dir, raw=options.raw)
    async for event in events:
        await screen.show(event)
        if isinstance(event, Execution):
            return event
    raise AssertionError("a stream of events ends with the execution, or raises")


async def _typed(sandbox: AsyncSandbox, options: CellOptions, language: str) -> None:
    """Read and run cells until the session is ended."""
    from sandlot.cli.output import note
    from sandlot.cli.repl.editor import EXIT_WORDS, PROMPTS, create_editor
    from sandlot.sdk import SandboxEndedError, SandlotError

    editor = create_editor(language)
    running = CellRunner()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, running.interrupt)
    note(f"sandlot: {language} in {sandbox.id}, isolated by {sandbox.isolation}; Ctrl-C interrupts, Ctrl-D ends the session")
    while True:
        try:
            code = await editor.prompt_async(PROMPTS.get(language, PROMPTS["python"]), handle_sigint=False)
        except KeyboardInterrupt:
            continue  # discards the typed line
        except EOFError:
            return
        if code.strip() in EXIT_WORDS:
            return
        if not code.strip():
            continue
        try:
            await running.run(sandbox, code, options)
        except SandboxEndedError:
            raise
        except SandlotError as error:
            note(f"sandlot: {error}")


class CellRunner:
    """Runs cells, and interrupts the running cell each time Ctrl-C is pressed."""

    def __init__(self) -> None:
        self._handle: AsyncCodeHandle | None = None
        self._is_pressed = False
        self._interrupts: set[asyncio.Task[None]] = set()

    def interrupt(self) -> None:
        """Interrupt the running cell, also if its request is still being sent."""
        self._is_pressed = True
        if self._handle is not None:
            task = asyncio.ensure_future(self._interrupt(self._handle))
            self._interrupts.add(task)
            task.add_done_callback(self._interrupts.discard)

    async def run(self, sandbox: AsyncSandbox, code: str, options: CellOptions) -> Execution:
        """Run a cell and show its output and results; cancellation interrupts the cell."""
        env, self._is_pressed = options.env or None, False
        handle = await sandbox.run_code(code, options.language, context=options.context, timeout=options.timeout_s, envs=env, background=True)
        self._handle = handle
        if self._is_pressed:  # while the request was sent
            self.interrupt()
        try:
            return await show(handle, options)
        finally:
            self._handle = None
            if handle.result is None:
                await asyncio.shield(self._interrupt(handle))

    async def _interrupt(self, handle: AsyncCodeHandle) -> None:
        from sandlot.sdk import SandlotError

        with suppress(SandlotError):
            await handle.interrupt()


@asynccontextmanager
async def _open_sandbox(sandbox_id: str | None, template: str | None) -> AsyncIterator[AsyncSandbox]:
    """Connect to a running sandbox, or create one for the session."""
    from sandlot.cli.progress import show_build
    from sandlot.sdk import AsyncClient, AsyncSandbox

    async with AsyncClient() as client:
        if sandbox_id is not None:
            yield await AsyncSandbox.connect(sandbox_id, client=client, resume=False)
            return
        async with show_build(client, template):
            created = await AsyncSandbox.create(template, timeout=SESSION_S, client=client)
        async with created as sandbox:
            renewing = asyncio.create_task(_renew(sandbox))
            try:
                yield sandbox
            finally:
                renewing.cancel()
                await asyncio.wait({renewing})


async def _renew(sandbox: AsyncSandbox) -> None:
    from sandlot.sdk import SandlotError

    while True:
        await asyncio.sleep(RENEW_S)
        with suppress(SandlotError):  # the next cell reports the error
            await sandbox.set_timeout(SESSION_S)


async def read_standard_input() -> str:
    """Return all of standard input as text."""
    from sandlot.cli.passthrough import standard_input

    content = b"".join([chunk async for chunk in standard_input()])
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise typer.BadParameter("Standard input is not UTF-8 text.") from None
