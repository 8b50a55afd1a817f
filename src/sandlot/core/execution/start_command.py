"""Start commands of templates: a program, such as a server, that runs in every sandbox of a template from the beginning.

The snapshot of a template contains the running program. Sandboxes that are not restored from this snapshot start the program themselves.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable
from typing import Final

from sandlot.core.ports import Clock
from sandlot.core.sandbox import Sandbox
from sandlot.link.client import Link
from sandlot.link.payload import program_argv
from sandlot.link.processes import ProcessCall
from sandlot.model.errors import ConflictError
from sandlot.model.executions import Output
from sandlot.model.ids import new_process_id
from sandlot.model.specs import ProcessSpec
from sandlot.model.templates import TemplateStart
from sandlot.protocol.helpers import READY

READY_S: Final = 60.0
"""Seconds within which the ready command must succeed."""
SETTLE_S: Final = 2.0
"""Seconds for which a start command without a ready command runs before its sandbox is saved."""
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
                await link.processes.start(_process(start), id=new_process_id(), attach=False)
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
        await link.processes.start(_process(start), id=id_, attach=False)
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


def _process(start: TemplateStart) -> ProcessSpec:
    return ProcessSpec((*_SHELL, start.command), cwd=start.cwd, user=start.user, timeout_s=None)


async def _wait_ready(link: Link, start: TemplateStart, template: str) -> None:
    repeated = ProcessSpec((*_SHELL, _UNTIL, "sh", start.ready_command), cwd=start.cwd, user=start.user, timeout_s=READY_S, hidden=True)
    waiting = await link.processes.start(repeated)
    if (await waiting.result()).exit_code != 0:
        raise ConflictError(
            f"The ready command of the template {template} did not succeed within {READY_S:g} s.",
            hint="Build the template without the start command, and run both commands in a sandbox of it.",
            fields={"template": template},
        )


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
