"""A terminal in a sandbox on this terminal, and the output of processes as it was written.

Laws:
- This terminal is as it was before, however it ends: by the program, the detach key, a signal, or a connection that breaks.
- What is typed reaches the program byte for byte, also what a terminal usually keeps (Ctrl-C, Ctrl-Z, Ctrl-S); only the detach key does not.
- Without a terminal here, standard input is typed to its end, and its end is told.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import os
import signal
import sys
import termios
import tty
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import typer

from sandlot.cli.output import Legible, note
from sandlot.cli.passthrough import emit, exit_status, failure_status, standard_input, write_all
from sandlot.model.errors import SandlotError
from sandlot.sdk import AsyncClient, AsyncSandbox
from sandlot.sdk._async.pty import SHELL
from sandlot.sdk.models.processes import Output, Stream

if TYPE_CHECKING:
    from sandlot.sdk import AsyncTerminal, LogEntry

ROWS, COLS = 24, 80
"""Where there is no terminal here that would say."""
CONTROL = 0x1F
"""What Ctrl leaves of a character, ascii(7)."""
FORGET = b"\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[?1049l\x1b[?25h\x1b[0m\r\n"
"""What a program would have undone that is left in the middle: mouse, pasting, a screen of its own, a hidden cursor, colours (xterm's)."""


@dataclass(frozen=True, slots=True)
class Visit:
    """What is asked for.

    Args:
        sandbox: Its id.
        argv: The program; empty is a shell.
        process: A terminal that is there already, instead.
        env: For the program.
        cwd: The same.
        user: The same.
        tag: The same.
        detach_code: The byte that detaches; None is none.
    """

    sandbox: str
    argv: tuple[str, ...]
    process: str | None
    env: Mapping[str, str]
    cwd: str | None
    user: str | None
    tag: str | None
    detach_code: int | None


def key_code(text: str) -> int | None:
    """The byte that a key sends: ``ctrl-]``, ``ctrl-p``; ``none``. Pure.

    Raises:
        typer.BadParameter: It is none of these.
    """
    if text == "none":
        return None
    name, _, key = text.lower().partition("-")
    if name != "ctrl" or len(key) != 1 or not (key.isascii() and (key.isalpha() or key in "]\\^_")):
        raise typer.BadParameter(f"--detach-key {text!r}: it takes 'ctrl-' and a letter or one of ]\\^_ , or 'none'.")
    return ord(key) & CONTROL


async def visit(asked: Visit) -> int:
    """Use a terminal until its program ends or the key is pressed; the exit status."""
    async with AsyncClient(autostart=asked.process is None) as client:
        sandbox = await AsyncSandbox.connect(asked.sandbox, client=client, resume=False)
        try:
            screen = await _opened(sandbox, asked)
        except SandlotError as error:
            status = failure_status(error) if asked.process is None else None
            if status is None:
                raise
            return status
        async with screen:
            with raw(0) as is_terminal:
                detached = await _used(screen, asked.detach_code, is_terminal=is_terminal)
        if detached:
            note(f"sandlot: detached; 'sandlot shell {asked.sandbox} --attach {screen.id}' goes back.")
            return 0
        result = screen.result
        assert result is not None  # noqa: S101 - it has ended
        return exit_status(result, None)


async def print_output(sandbox_id: str, process: str, *, follow: bool, as_is: bool, in_json: bool) -> int:
    """Write out what a process wrote; the exit status."""
    async with AsyncClient(autostart=False) as client:
        handle = await (await AsyncSandbox.connect(sandbox_id, client=client, resume=False)).commands.connect(process)
        await _print(handle.output(follow=follow), as_is=as_is, in_json=in_json)
    return 0


async def print_logs(sandbox_id: str, *, follow: bool, as_is: bool, in_json: bool) -> int:
    """Write out what the runs of a sandbox wrote, which may have ended; the exit status."""
    async with AsyncClient(autostart=False) as client:
        told = AsyncSandbox(client, await client.sandboxes.get(sandbox_id))
        entries = told.follow_logs() if follow else _each(await told.logs())
        await _print((_piece(entry) async for entry in entries), as_is=as_is, in_json=in_json)
    return 0


async def _each(entries: Iterable[LogEntry]) -> AsyncIterator[LogEntry]:
    for entry in entries:
        yield entry


def _piece(entry: LogEntry) -> Output:
    """An entry of the log as a piece of output; where something is left out of one, its text says so."""
    stream: Stream = "stderr" if entry.stream == "stderr" else "stdout"
    return Output(stream, entry.text.encode(), 0 if entry.text else entry.omitted_bytes)


async def _print(pieces: AsyncIterable[Output], *, as_is: bool, in_json: bool) -> None:
    if in_json:
        async for line in json_lines(pieces):
            await write_all(1, line)
        return
    shown = {name: Legible() for name, descriptor in (("stdout", 1), ("stderr", 2)) if os.isatty(descriptor) and not as_is}
    async for piece in pieces:
        await emit(replace(piece, data=shown[piece.stream].feed(piece.data)) if piece.stream in shown else piece)
    for name, legible in shown.items():
        await write_all(1 if name == "stdout" else 2, legible.feed(b"", last=True))


async def json_lines(pieces: AsyncIterable[Output]) -> AsyncIterator[bytes]:
    """Output as JSON, an object a line; a character that came in two pieces is told whole, and bytes that are no UTF-8 as U+FFFD. Pure."""
    decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}

    def line(stream: str, text: str, lost_bytes: int) -> bytes:
        return json.dumps({"stream": stream, "text": text, "lost_bytes": lost_bytes}).encode() + b"\n"

    async for piece in pieces:
        text = decoders[piece.stream].decode(piece.data)
        if text or piece.lost_bytes:
            yield line(piece.stream, text, piece.lost_bytes)
    for name, decoder in decoders.items():
        if rest := decoder.decode(b"", True):
            yield line(name, rest, 0)


@contextmanager
def raw(descriptor: int) -> Iterator[bool]:
    """Hand a terminal's keys over as they are, for as long as the context is open; whether it is one."""
    if not os.isatty(descriptor):
        yield False
        return
    before = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor, termios.TCSADRAIN)  # what was typed ahead stays
        yield True
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def screen_size() -> tuple[int, int]:
    """Rows and columns of the terminal here."""
    for descriptor in (0, 1, 2):
        try:
            size = os.get_terminal_size(descriptor)
        except OSError:
            continue
        if size.lines and size.columns:
            return size.lines, size.columns
    return ROWS, COLS


async def _opened(sandbox: AsyncSandbox, asked: Visit) -> AsyncTerminal:
    rows, cols = screen_size()
    if asked.process is not None:
        return await sandbox.pty.connect(asked.process, rows=rows, cols=cols)
    env = {**({"TERM": os.environ["TERM"]} if os.environ.get("TERM") and os.isatty(0) else {}), **asked.env}
    return await sandbox.pty.create(asked.argv or SHELL, rows=rows, cols=cols, envs=env, cwd=asked.cwd, user=asked.user, tag=asked.tag)


async def _used(screen: AsyncTerminal, code: int | None, *, is_terminal: bool) -> bool:
    """Show, type and resize until the program ends (False) or the key detaches (True)."""
    resized = asyncio.Event()
    loop = asyncio.get_running_loop()
    if is_terminal:
        loop.add_signal_handler(signal.SIGWINCH, resized.set)
    showing = asyncio.create_task(_show(screen))
    typing = asyncio.create_task(_type(screen, standard_input(), code if is_terminal else None))
    following = asyncio.create_task(_follow_size(screen, resized))
    tasks = {showing, typing, following}
    try:
        await asyncio.wait({showing, typing}, return_when=asyncio.FIRST_COMPLETED)
        if typing.done() and not showing.done() and typing.exception() is None and not typing.result():
            await asyncio.wait({showing})  # nothing more is typed; the program goes on
    finally:
        if is_terminal:
            loop.remove_signal_handler(signal.SIGWINCH)
        ended = showing.done() and not showing.cancelled() and showing.exception() is None
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        if not ended and sys.stdout.isatty():
            await write_all(1, FORGET)
    if not showing.cancelled():
        showing.result()
        return False
    typing.result()
    return True


async def _show(screen: AsyncTerminal) -> None:
    async for piece in screen:
        await write_all(1, piece)


async def _type(screen: AsyncTerminal, typed: AsyncIterator[bytes], code: int | None) -> bool:
    """Pass on what is typed; whether the key ended it."""
    key = b"" if code is None else bytes([code])
    async for piece in typed:
        data, found, _ = piece.partition(key) if key else (piece, b"", b"")
        if data:
            await screen.send(data)
        if found:
            return True
    await screen.send_eof()
    return False


async def _follow_size(screen: AsyncTerminal, resized: asyncio.Event) -> None:
    while True:
        await resized.wait()
        resized.clear()
        await screen.resize(*screen_size())
