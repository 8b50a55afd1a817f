"""A program in a sandbox as if it ran here: bytes in, bytes out, its exit status, and an end when this process gets a signal.

Laws:
- Not a byte is added, dropped or changed on standard input, output and error.
- Nothing inherited is made non-blocking: the terminal and pipes belong to other processes as well.
- A slow reader slows the program down and nothing else; a reader that is gone ends it (status 141, as SIGPIPE would have).
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import stat
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from typing import Any

import anyio

from sandlot.cli.output import note
from sandlot.model.errors import ErrorCode, SandlotError
from sandlot.sdk.models.code import TIMED_OUT
from sandlot.sdk.models.processes import CommandResult, Output

CHUNK_BYTES = 64 * 1024
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OF_SIGNAL = 128
_NOT_RUN = {ErrorCode.PROGRAM_NOT_FOUND: 127, ErrorCode.PERMISSION_DENIED: 126, ErrorCode.WORKING_DIRECTORY_NOT_FOUND: 125}
"""Exit statuses of env(1) for a program that was not started."""


class _BrokenOutputError(Exception):
    """Nobody reads our output any more."""


def run_until_signal(main: Coroutine[Any, Any, int]) -> int:
    """Run a coroutine; a signal cancels it, so that it cleans up, and becomes the exit status.

    A second signal ends this process at once: what was not cleaned up then ends by its own timeout.

    Args:
        main: Gives the exit status.
    """
    received: list[int] = []
    # In the background, reading from the terminal is then an error (the end of the input) and no stop, as termios(3) has it.
    signal.signal(signal.SIGTTIN, signal.SIG_IGN)

    async def guarded() -> int:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine that runs has one

        def stop(number: int) -> None:
            if received:
                os._exit(_OF_SIGNAL + number)
            received.append(number)
            task.cancel()

        loop.set_exception_handler(_log_error)
        for number in SIGNALS:
            loop.add_signal_handler(number, stop, number)
        return await main

    try:
        return asyncio.run(guarded())
    except asyncio.CancelledError:
        return _OF_SIGNAL + (received[0] if received else signal.SIGTERM)
    except _BrokenOutputError:
        return _OF_SIGNAL + signal.SIGPIPE
    except Exception as error:
        if not received:
            raise
        note(f"sandlot: interrupted, and not all was cleaned up: {error}")
        return _OF_SIGNAL + received[0]


def _log_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # AnyIO 4.16 sets the result of a read of a unix socket that was cancelled in the same turn of the loop (_RawSocketMixin). asyncio would log a
    # traceback, among the standard error of the program. To be removed with a release of AnyIO that leaves a cancelled read alone.
    if not isinstance(context.get("exception"), asyncio.InvalidStateError):
        loop.default_exception_handler(context)


def exit_status(result: CommandResult, timeout_s: float | None) -> int:
    """The status to exit with; says why on standard error where that is not the program's own doing."""
    if result.timed_out:
        note(f"sandlot: the program was ended after its {timeout_s:g} s." if timeout_s else "sandlot: the program ran out of time.")
        return TIMED_OUT
    if result.reason == "pids":
        note("sandlot: the program was ended because it started more processes than the sandbox may have.")
    if result.reason == "oom":
        note("sandlot: the program was ended because it needed more memory than the sandbox may have.")
    return result.exit_code


def failure_status(error: SandlotError) -> int | None:
    """Return the exit status for a program that was not started, or whose sandbox ended; None if Sandlot failed."""
    if error.code is ErrorCode.SANDBOX_ENDED and error.fields.get("reason") == "oom":
        note("sandlot: the sandbox needed more memory than it may have, and was ended.")
        return _OF_SIGNAL + signal.SIGKILL
    status = _NOT_RUN.get(error.code)
    if status is not None:
        note(f"sandlot: {error}")
    return status


async def standard_input(descriptor: int = 0) -> AsyncIterator[bytes]:
    """What this process gets on its standard input, as it comes."""
    with suppress(OSError):  # closed, or a terminal that this process may not read from: both are an end
        pollable = _pollable(descriptor)
        while True:
            if pollable:
                await anyio.wait_readable(descriptor)
            piece = os.read(descriptor, CHUNK_BYTES)
            if not piece:
                return
            yield piece


async def emit(piece: Output) -> None:
    """Write a piece of output to where the program would have written it."""
    await write_all(1 if piece.stream == "stdout" else 2, piece.data)
    if piece.lost_bytes:
        note(f"sandlot: {piece.lost_bytes} bytes of {piece.stream} were lost.")


async def write_all(descriptor: int, data: bytes) -> None:
    """Write it all, without blocking the event loop while nobody reads."""
    rest = memoryview(data)
    pollable = _pollable(descriptor)
    try:
        while rest:
            if pollable:
                await anyio.wait_writable(descriptor)
            # A pipe that is writable takes PIPE_BUF bytes without blocking, pipe(7); a file takes everything.
            rest = rest[os.write(descriptor, rest[: select.PIPE_BUF] if pollable else rest) :]
    except BrokenPipeError:
        raise _BrokenOutputError from None


def _pollable(descriptor: int) -> bool:
    """Whether it can be waited for: epoll(7) refuses regular files and folders, which never block, and some devices."""
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        return True
    return stat.S_ISCHR(mode) and os.isatty(descriptor)
