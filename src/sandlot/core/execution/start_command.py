"""Start commands of templates: a program, such as a server, that runs in every sandbox of a template from the beginning.

The snapshot of a template contains the running program. Sandboxes that are not restored from this snapshot start the program themselves.

The commands are for a shell. If the image has none, as one that begins with `FROM scratch`, the words of a command are a program and its arguments.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from sandlot.core.ports import Clock
from sandlot.core.sandbox import Sandbox
from sandlot.link.client import Link
from sandlot.link.payload import program_argv
from sandlot.link.processes import ProcessCall
from sandlot.model.errors import ConflictError, ErrorCode, SandlotError
from sandlot.model.executions import Output
from sandlot.model.ids import ProcessId, new_process_id
from sandlot.model.specs import ProcessSpec
from sandlot.model.templates import TemplateStart
from sandlot.protocol.helpers import READY

READY_S: Final = 60.0
"""Seconds within which the ready command must succeed."""
SETTLE_S: Final = 2.0
"""Seconds for which a start command without a ready command runs before its sandbox is saved."""
_PAUSE_S: Final = 0.1
"""Seconds between two runs of a ready command in an image without a shell."""
_SHELL: Final = ("/bin/sh", "-c")
_PROGRAMS: Final = ("ss", "curl", "pgrep")
"""Programs that ready commands of vendors' clients use. The guest stands in for those that an image lacks (``guest/helpers/ready.py``)."""
_UNTIL: Final = "\n".join(
    (
        *(f'command -v {name} >/dev/null 2>&1 || {name}() {{ {shlex.join(program_argv(READY))} {name} "$@"; }}' for name in _PROGRAMS),
        'until (eval "$1") >/dev/null 2>&1; do sleep 0.1 || sleep 1; done',
    )
)
"""Script that repeats the ready command. Not every ``sleep`` takes fractions of a second."""

OnOutput = Callable[[int, bytes], None]
"""Function that is called with the channel and the bytes of a piece of output."""


class StartCommandStep:
    """Setup step that runs the start command of a template in a new sandbox, unless the sandbox was restored with the running program.

    Attributes:
        is_done: True if the sandbox was restored with the running program.
    """

    def __init__(self, start: TemplateStart) -> None:
        self.start = start
        self.is_done = False

    async def __call__(self, sandbox: Sandbox) -> None:
        """Start the start command, and repeat the ready command until it succeeds.

        The program runs as the user and in the working directory of the sandbox. Its output can be read like that of any other process.

        Raises:
            ConflictError: The ready command did not succeed within ``READY_S``.
        """
        if self.is_done:
            return
        start = TemplateStart(self.start.command, self.start.ready_command, sandbox.spec.cwd, sandbox.spec.user)
        async with sandbox.connection() as link:
            if start.command:
                await _start(link, start, new_process_id())
            if start.ready_command:
                await _wait_ready(link, start, sandbox.spec.template.name)


async def start_for_snapshot(link: Link, start: TemplateStart, template: str, clock: Clock, on_output: OnOutput) -> None:
    """Start the start command in a sandbox whose memory is then saved, and wait until it is ready.

    Without a ready command, the program runs for ``SETTLE_S``. A program that ends with exit code 0 has not failed: it may have started others.

    Args:
        link: Link to the guest.
        start: Commands.
        template: Name of the template, for errors.
        clock: Clock of the service.
        on_output: Called with the output of the start command until it is ready.

    Raises:
        ConflictError: The program ended with another exit code before it was ready, or the ready command did not succeed within ``READY_S``.
    """
    running = None
    if start.command:
        id_ = new_process_id()
        await _start(link, start, id_)
        running = await link.processes.attach(id_)  # a call whose end does not end the process
    is_ready = asyncio.create_task(_wait_ready(link, start, template) if start.ready_command else clock.sleep_until(clock.monotonic_s() + SETTLE_S))
    following = asyncio.create_task(_follow(running, on_output))
    try:
        await asyncio.wait({is_ready, following}, return_when=asyncio.FIRST_COMPLETED)
        exit_code = following.result() if following.done() else 0
        if exit_code:
            raise ConflictError(
                f"The start command of the template ended with exit code {exit_code} before it was ready.",
                hint="Correct the start command, or the files that it needs.",
                fields={"exit_code": exit_code},
            )
        await is_ready
    finally:
        tasks = (is_ready, following)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if running is not None:
            running.abandon()


async def _start(link: Link, start: TemplateStart, id_: ProcessId) -> None:
    process = ProcessSpec((*_SHELL, start.command), cwd=start.cwd, user=start.user, timeout_s=None)
    try:
        await link.processes.start(process, id=id_, attach=False)
    except SandlotError as error:
        await link.processes.start(replace(process, argv=_words(start.command, error)), id=id_, attach=False)


async def _wait_ready(link: Link, start: TemplateStart, template: str) -> None:
    repeated = ProcessSpec((*_SHELL, _UNTIL, "sh", start.ready_command), cwd=start.cwd, user=start.user, timeout_s=READY_S, hidden=True)
    try:
        waiting = await link.processes.start(repeated)
        is_ready = (await waiting.result()).exit_code == 0
    except SandlotError as error:
        is_ready = await _repeat(link, replace(repeated, argv=_words(start.ready_command, error)))
    if not is_ready:
        raise ConflictError(
            f"The ready command of the template {template} did not succeed within {READY_S:g} s.",
            hint="Build the template without the start command, and run both commands in a sandbox of it.",
            fields={"template": template},
        )


async def _repeat(link: Link, process: ProcessSpec) -> bool:
    """Repeat a program of an image without a shell until the program succeeds. Returns False if it has not succeeded within ``READY_S``."""
    if process.argv[0] in _PROGRAMS:
        process = replace(process, argv=(*program_argv(READY), *process.argv))
    try:
        async with asyncio.timeout(READY_S):
            while (await (await link.processes.start(process)).result()).exit_code != 0:  # noqa: ASYNC110 - as with a shell
                await asyncio.sleep(_PAUSE_S)
    except TimeoutError:
        return False
    return True


def _words(command: str, error: SandlotError) -> tuple[str, ...]:
    """Return the words of a command that could not be run because the image has no shell; raise any other error."""
    if error.code is not ErrorCode.PROGRAM_NOT_FOUND:
        raise error
    try:
        words = shlex.split(command)
    except ValueError:
        raise error from None
    if not words:
        raise error
    return tuple(words)


async def _follow(running: ProcessCall | None, on_output: OnOutput) -> int:
    """Pass on the output of the start command, and return its exit code at its end. If there is no start command, wait forever."""
    if running is None:
        await asyncio.Event().wait()
        return 0
    async for piece in running:
        if isinstance(piece, Output):
            on_output(piece.channel, piece.data)
    result = await running.result()
    return result.exit_code if result.exit_code is not None else 1
