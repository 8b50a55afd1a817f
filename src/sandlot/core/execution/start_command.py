"""Start commands of templates: a program, such as a server, that runs in every sandbox of a template from the beginning."""

from __future__ import annotations

import shlex
from typing import Final

from sandlot.core.sandbox import Sandbox
from sandlot.link.payload import program_argv
from sandlot.model.errors import ConflictError
from sandlot.model.ids import new_process_id
from sandlot.model.specs import ProcessSpec
from sandlot.protocol.helpers import READY

READY_S: Final = 60.0
"""Seconds within which the ready command must succeed."""
TAG: Final = "start"
"""Tag of the process of a start command."""
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


async def run_start_command(sandbox: Sandbox, command: str, ready_command: str) -> None:
    """Start the start command of a template, and repeat its ready command until it succeeds.

    The program runs as the user and in the working directory of the sandbox. Its output can be read like that of any other process.

    Args:
        sandbox: A new sandbox.
        command: Start command, for ``/bin/sh``.
        ready_command: Ready command, for ``/bin/sh``; empty: nothing is waited for.

    Raises:
        ConflictError: The ready command did not succeed within ``READY_S``.
    """
    cwd, user = sandbox.spec.cwd, sandbox.spec.user
    async with sandbox.connection() as link:
        start = ProcessSpec((*_SHELL, command), cwd=cwd, user=user, timeout_s=None, tag=TAG)
        await link.processes.start(start, id=new_process_id(), attach=False)
        if not ready_command:
            return
        waiting = await link.processes.start(ProcessSpec((*_SHELL, _UNTIL, "sh", ready_command), cwd=cwd, user=user, timeout_s=READY_S, hidden=True))
        if (await waiting.result()).exit_code != 0:
            raise ConflictError(
                f"The ready command of the template {sandbox.spec.template.name} did not succeed within {READY_S:g} s.",
                hint="Build the template without the start command, and run both commands in a sandbox of it.",
                fields={"template": sandbox.spec.template.name},
            )
