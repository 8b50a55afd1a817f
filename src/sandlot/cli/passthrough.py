"""Run a program in a sandbox like a local one: unchanged bytes in and out, its exit status, and an end when this process gets a signal.

Invariants:
- No byte of standard input, output and error is added, dropped or changed.
- Inherited descriptors stay blocking, because other processes use the terminal and the pipes as well.
- A slow reader slows the program down. A closed reader ends it, with status 141 as SIGPIPE would.
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
from sandlot.sdk import CommandResult, ErrorCode, Output, SandlotError

INPUT_BYTES = 4 * 1024 * 1024
"""Largest chunk of standard input. Each chunk is a separate request."""
PIPE_BYTES = 1024 * 1024
"""Capacity that a pipe at standard input gets, the largest that users may set by default (pipe(7))."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
EXIT_TIMED_OUT = 124
"""Exit status of a timeout, as of timeout(1)."""
_EXIT_SIGNAL = 128
_NOT_RUN = {ErrorCode.PROGRAM_NOT_FOUND: 127, ErrorCode.PERMISSION_DENIED: 126, ErrorCode.WORKING_DIRECTORY_NOT_FOUND: 125}
"""Exit statuses for a program that was not started, as of env(1)."""


class _BrokenOutputError(Exception):
    """The reader of standard output or error is closed."""


def run_until_signal(main: Coroutine[Any, Any, int]) -> int:
    """Run a coroutine and return the exit status that it returns.

    SIGINT, SIGTERM and SIGHUP cancel it, so that it cleans up, and the status is 128 and the signal's number. A second signal ends this process at
    once; sandboxes that were not removed then end by their timeout.
    """
    received: list[int] = []
    # A background process that reads from the terminal then gets an error instead of being stopped, termios(3); the error ends the input.
    signal.signal(signal.SIGTTIN, signal.SIG_IGN)

    async def guarded() -> int:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None  # noqa: S101 - a running coroutine has a task

        def stop(number: int) -> None:
            if received:
                os._exit(_EXIT_SIGNAL + number)
            received.append(number)
            task.cancel()

        loop.set_exception_handler(_log_error)
        for number in SIGNALS:
            loop.add_signal_handler(number, stop, number)
        return await main

    try:
        return asyncio.run(guarded())
    except asyncio.CancelledError:
        return _EXIT_SIGNAL + (received[0] if received else signal.SIGTERM)
    except _BrokenOutputError:
        return _EXIT_SIGNAL + signal.SIGPIPE
    except Exception as error:
        if not received:
            raise
        note(f"sandlot: interrupted, and the cleanup failed: {error}")
        return _EXIT_SIGNAL + received[0]


def _log_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # AnyIO 4.16 sets the result of a read of a unix socket that was cancelled in the same iteration of the loop (_RawSocketMixin). asyncio would log
    # a traceback between the program's standard error. Remove this with a release of AnyIO that ignores a cancelled read.
    if not isinstance(context.get("exception"), asyncio.InvalidStateError):
        loop.default_exception_handler(context)


def exit_status(result: CommandResult, timeout_s: float | None) -> int:
    """Return the exit status of a result, and print a note if a limit ended the program."""
    if result.timed_out:
        note(
            f"sandlot: the program was killed after its timeout of {timeout_s:g} s."
            if timeout_s
            else "sandlot: the program was killed after its timeout."
        )
        return EXIT_TIMED_OUT
    if result.reason == "pids":
        note("sandlot: the program was killed because it exceeded the sandbox's process limit.")
    if result.reason == "oom":
        note("sandlot: the program was killed because it exceeded the sandbox's memory limit.")
    return result.exit_code


def failure_status(error: SandlotError) -> int | None:
    """Return the exit status for a program that was not started, or whose sandbox ended; None if Sandlot failed."""
    if error.code is ErrorCode.SANDBOX_ENDED and error.fields.get("reason") == "oom":
        note("sandlot: the sandbox was ended because it exceeded its memory limit.")
        return _EXIT_SIGNAL + signal.SIGKILL
    status = _NOT_RUN.get(error.code)
    if status is not None:
        note(f"sandlot: {error}")
    return status


async def standard_input(descriptor: int = 0) -> AsyncIterator[bytes]:
    """Yield chunks of standard input as they arrive. Each chunk costs a request, so the chunks are as large as the input allows."""
    with suppress(OSError, ImportError):  # no pipe, a user that has no more memory for pipes, or Windows: the capacity stays as it is
        import fcntl

        if fcntl.fcntl(descriptor, fcntl.F_GETPIPE_SZ) < PIPE_BYTES:
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    with suppress(OSError):  # a closed descriptor, or a terminal of another process group: the input has ended
        pollable = _pollable(descriptor)
        while True:
            if pollable:
                await anyio.wait_readable(descriptor)
            piece = os.read(descriptor, INPUT_BYTES)
            if not piece:
                return
            yield piece


async def emit(piece: Output) -> None:
    """Write output to standard output or error."""
    await write_all(1 if piece.stream == "stdout" else 2, piece.data)
    if piece.lost_bytes:
        note(f"sandlot: {piece.lost_bytes} bytes of {piece.stream} were lost.")


async def write_all(descriptor: int, data: bytes) -> None:
    """Write all data without blocking the event loop."""
    rest = memoryview(data)
    pollable = _pollable(descriptor)
    try:
        while rest:
            if pollable:
                await anyio.wait_writable(descriptor)
            # A writable pipe accepts PIPE_BUF bytes without blocking, pipe(7); a file accepts everything.
            rest = rest[os.write(descriptor, rest[: select.PIPE_BUF] if pollable else rest) :]
    except BrokenPipeError:
        raise _BrokenOutputError from None


def _pollable(descriptor: int) -> bool:
    """Return True if epoll(7) accepts the descriptor. It refuses regular files and directories, which never block, and some devices."""
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        return True
    return stat.S_ISCHR(mode) and os.isatty(descriptor)
