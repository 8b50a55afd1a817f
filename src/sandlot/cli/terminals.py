"""``sandlot shell``: a terminal in a sandbox on this terminal; and the output of ``sandlot logs``.

Invariants:
- This terminal is restored in every case: after the program's end, the detach key, a signal, or a broken connection.
- All keys reach the program unchanged, also Ctrl-C, Ctrl-Z and Ctrl-S. Only the detach key does not.
- If standard input is not a terminal, it is typed until its end, and then the end of the input is sent.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import os
import signal
import sys
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sandlot.cli.options import Cwd, Env, SandboxId, Tag, User, as_dict
from sandlot.cli.output import ControlCharacterFilter, note

if TYPE_CHECKING:
    from sandlot.sdk import AsyncSandbox, AsyncTerminal, LogEntry, Output

DEFAULT_ROWS, DEFAULT_COLS = 24, 80
"""Size of the terminal if there is none here."""
CONTROL_MASK = 0x1F
"""Bits of a character that Ctrl keeps, ascii(7)."""
TERMINAL_RESET = b"\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[?1049l\x1b[?25h\x1b[0m\r\n"
"""Turns off modes that a running program may have set: mouse, bracketed paste, alternate screen, hidden cursor, colours (xterm)."""


@dataclass(frozen=True, slots=True)
class TerminalSession:
    """Use of a terminal in a sandbox.

    Args:
        sandbox: Id or name of the sandbox.
        argv: Program to start; empty for a shell.
        process: Running terminal to connect to instead.
        env: Environment variables of the program.
        cwd: Working directory of the program.
        user: User of the program.
        tag: Tag of the program.
        detach_code: Byte of the detach key; None for no key.
    """

    sandbox: str
    argv: tuple[str, ...]
    process: str | None
    env: Mapping[str, str]
    cwd: str | None
    user: str | None
    tag: str | None
    detach_code: int | None


def shell(
    *,
    sandbox: SandboxId,
    command: Annotated[list[str] | None, typer.Argument(metavar="COMMAND", help="Program and arguments, after '--'. (default: bash)")] = None,
    attach: Annotated[str | None, typer.Option("--attach", metavar="PROCESS", help="Connect to a terminal that was detached.")] = None,
    env: Env = None,
    cwd: Cwd = None,
    user: User = None,
    tag: Tag = None,
    detach_key: Annotated[
        str, typer.Option("--detach-key", metavar="KEY", help="Key that detaches: 'ctrl-' and a letter or one of ]\\^_ , or 'none'.")
    ] = "ctrl-]",
) -> None:
    """Open an interactive shell or terminal program in a sandbox.

    Ctrl-] detaches: the program keeps running, and `sandlot shell SANDBOX --attach PROCESS` connects to it again. All other keys go to the program.
    Exits with the program's status, as `sandlot exec` does, or with 0 after detaching.
    """
    from sandlot.cli.passthrough import run_until_signal

    if attach is not None and (command or env or cwd or user or tag):
        raise typer.BadParameter("It cannot be combined with a command, --env, --cwd, --user or --tag.", param_hint="--attach")
    argv = command[1:] if command and command[0] == "--" else command
    session = TerminalSession(
        sandbox=sandbox,
        argv=tuple(argv or ()),
        process=attach,
        env=as_dict(env),
        cwd=cwd,
        user=user,
        tag=tag,
        detach_code=key_code(detach_key),
    )
    raise typer.Exit(run_until_signal(use_terminal(session)))


def key_code(text: str) -> int | None:
    """Return the byte of a key such as ``ctrl-]`` or ``ctrl-p``; None for ``none``.

    Raises:
        typer.BadParameter: The text is no such key.
    """
    if text == "none":
        return None
    name, _, key = text.lower().partition("-")
    if name != "ctrl" or len(key) != 1 or not (key.isascii() and (key.isalpha() or key in "]\\^_")):
        raise typer.BadParameter(f"{text!r} is not 'ctrl-' and a letter or one of ]\\^_ , or 'none'.", param_hint="--detach-key")
    return ord(key) & CONTROL_MASK


async def use_terminal(session: TerminalSession) -> int:
    """Use a terminal until its program ends or the detach key is pressed, and return the exit status."""
    from sandlot.cli.passthrough import exit_status, failure_status
    from sandlot.sdk import AsyncClient, AsyncSandbox, SandlotError

    async with AsyncClient(autostart=session.process is None) as client:
        sandbox = await AsyncSandbox.connect(session.sandbox, client=client, resume=False)
        try:
            terminal = await _open(sandbox, session)
        except SandlotError as error:
            status = failure_status(error) if session.process is None else None
            if status is None:
                raise
            return status
        async with terminal:
            with raw_mode(0) as is_terminal:
                detached = await _interact(terminal, session.detach_code, is_terminal=is_terminal)
        if detached:
            note(f"sandlot: detached; connect again with `sandlot shell {session.sandbox} --attach {terminal.id}`.")
            return 0
        result = terminal.result
        assert result is not None  # noqa: S101 - the program has ended
        return exit_status(result, None)


async def print_output(sandbox_id: str, process: str, *, follow: bool, raw: bool, json_output: bool) -> int:
    """Print the output of a process, and return the exit status."""
    from sandlot.sdk import AsyncClient, AsyncSandbox

    async with AsyncClient(autostart=False) as client:
        handle = await (await AsyncSandbox.connect(sandbox_id, client=client, resume=False)).commands.connect(process)
        await _print(handle.output(follow=follow), raw=raw, json_output=json_output)
    return 0


async def print_logs(sandbox_id: str, *, follow: bool, raw: bool, json_output: bool) -> int:
    """Print the execution log of a sandbox, which may have ended, and return the exit status."""
    from sandlot.sdk import AsyncClient, AsyncSandbox

    async with AsyncClient(autostart=False) as client:
        sandbox = AsyncSandbox(client, await client.sandboxes.get(sandbox_id))
        entries = sandbox.follow_logs() if follow else _each(await sandbox.logs())
        await _print((_as_output(entry) async for entry in entries), raw=raw, json_output=json_output)
    return 0


async def _each(entries: Iterable[LogEntry]) -> AsyncIterator[LogEntry]:
    for entry in entries:
        yield entry


def _as_output(entry: LogEntry) -> Output:
    """Return a log entry as output. If an entry has text, the text says what is omitted."""
    from sandlot.sdk import Output

    stream: Literal["stdout", "stderr"] = "stderr" if entry.stream == "stderr" else "stdout"
    return Output(stream, entry.text.encode(), 0 if entry.text else entry.omitted_bytes)


async def _print(output: AsyncIterable[Output], *, raw: bool, json_output: bool) -> None:
    from sandlot.cli.passthrough import emit, write_all

    if json_output:
        async for line in json_lines(output):
            await write_all(1, line)
        return
    filters = {name: ControlCharacterFilter() for name, descriptor in (("stdout", 1), ("stderr", 2)) if os.isatty(descriptor) and not raw}
    async for chunk in output:
        await emit(replace(chunk, data=filters[chunk.stream].feed(chunk.data)) if chunk.stream in filters else chunk)
    for name, escaped in filters.items():
        await write_all(1 if name == "stdout" else 2, escaped.feed(b"", last=True))


async def json_lines(output: AsyncIterable[Output]) -> AsyncIterator[bytes]:
    """Yield output as JSON, an object per line. A character that was split is joined; bytes that are not UTF-8 become U+FFFD."""
    decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}

    def line(stream: str, text: str, lost_bytes: int) -> bytes:
        return json.dumps({"stream": stream, "text": text, "lost_bytes": lost_bytes}).encode() + b"\n"

    async for chunk in output:
        if chunk.lost_bytes and (rest := decoders[chunk.stream].decode(b"", True)):
            yield line(chunk.stream, rest, 0)
        text = decoders[chunk.stream].decode(chunk.data)
        if text or chunk.lost_bytes:
            yield line(chunk.stream, text, chunk.lost_bytes)
    for name, decoder in decoders.items():
        if rest := decoder.decode(b"", True):
            yield line(name, rest, 0)


@contextmanager
def raw_mode(descriptor: int) -> Iterator[bool]:
    """Set a terminal to raw mode while the context is open; yield False if the descriptor is not a terminal."""
    if not os.isatty(descriptor):
        yield False
        return
    import termios  # Windows has none
    import tty

    before = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor, termios.TCSADRAIN)  # keeps keys that were typed before
        yield True
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def terminal_size() -> tuple[int, int]:
    """Return rows and columns of this terminal."""
    for descriptor in (0, 1, 2):
        try:
            size = os.get_terminal_size(descriptor)
        except OSError:
            continue
        if size.lines and size.columns:
            return size.lines, size.columns
    return DEFAULT_ROWS, DEFAULT_COLS


async def _open(sandbox: AsyncSandbox, session: TerminalSession) -> AsyncTerminal:
    rows, cols = terminal_size()
    if session.process is not None:
        return await sandbox.pty.connect(session.process, rows=rows, cols=cols)
    env = {**({"TERM": os.environ["TERM"]} if os.environ.get("TERM") and os.isatty(0) else {}), **session.env}
    return await sandbox.pty.create(
        session.argv or ["/bin/bash"], rows=rows, cols=cols, envs=env, cwd=session.cwd, user=session.user, tag=session.tag
    )


async def _interact(terminal: AsyncTerminal, detach_code: int | None, *, is_terminal: bool) -> bool:
    """Copy output, input and the terminal's size until the program ends (False) or the detach key is pressed (True)."""
    from sandlot.cli.passthrough import standard_input, write_all

    resized = asyncio.Event()
    loop = asyncio.get_running_loop()
    if is_terminal:
        loop.add_signal_handler(signal.SIGWINCH, resized.set)
    showing = asyncio.create_task(_show(terminal))
    typing = asyncio.create_task(_type(terminal, standard_input(), detach_code if is_terminal else None))
    resizing = asyncio.create_task(_resize(terminal, resized))
    tasks = {showing, typing, resizing}
    try:
        await asyncio.wait({showing, typing}, return_when=asyncio.FIRST_COMPLETED)
        if typing.done() and not showing.done() and typing.exception() is None and not typing.result():
            await asyncio.wait({showing})  # standard input has ended; the program still runs
    finally:
        if is_terminal:
            loop.remove_signal_handler(signal.SIGWINCH)
        ended = showing.done() and not showing.cancelled() and showing.exception() is None
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        if not ended and sys.stdout.isatty():
            await write_all(1, TERMINAL_RESET)
    if not showing.cancelled():
        showing.result()
        return False
    typing.result()
    return True


async def _show(terminal: AsyncTerminal) -> None:
    from sandlot.cli.passthrough import write_all

    async for chunk in terminal:
        await write_all(1, chunk)


async def _type(terminal: AsyncTerminal, typed: AsyncIterator[bytes], detach_code: int | None) -> bool:
    """Send input until its end (False) or the detach key (True)."""
    key = b"" if detach_code is None else bytes([detach_code])
    async for chunk in typed:
        data, found, _ = chunk.partition(key) if key else (chunk, b"", b"")
        if data:
            await terminal.send(data)
        if found:
            return True
    await terminal.send_eof()
    return False


async def _resize(terminal: AsyncTerminal, resized: asyncio.Event) -> None:
    while True:
        await resized.wait()
        resized.clear()
        await terminal.resize(*terminal_size())
