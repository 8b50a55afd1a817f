"""Processes on a terminal: opened, gone back to, resized. They outlive whoever looks at them.

Law: What is typed goes on the looker's own call, so that lookers do not wait for each other.
"""

from __future__ import annotations

from sandlot.core.runs import processes
from sandlot.core.runs.inputs import check_id
from sandlot.core.runs.processes import Run
from sandlot.core.sandbox import Sandbox
from sandlot.model.errors import ConflictError, ErrorCode
from sandlot.model.specs import check_screen


async def attach(box: Sandbox, id_: str, *, offset: int | None = None) -> Run:
    """Look at a process on a terminal again, and type.

    Args:
        box: Where.
        id_: The process.
        offset: Byte of its output to go on from; None is the oldest that is kept.

    Raises:
        NotFoundError: ``process_not_found``.
        ConflictError: It has no terminal.
        SandboxEndedError: The sandbox has ended.
    """
    if not (await processes.look(box, id_)).pty:
        raise ConflictError(
            f"Process {id_} has no terminal.", code=ErrorCode.CONFLICT, hint="Start it with 'pty', or read its output and write its input."
        )
    return await processes.follow(box, id_, stdout_from=offset, stderr_from=None)


async def resize(box: Sandbox, id_: str, rows: int, cols: int) -> bool:
    """Give a process's terminal another size; whether it was still running.

    Raises:
        NotFoundError: ``process_not_found``.
        ConflictError: It has no terminal.
        InvalidRequestError: No such size.
        SandboxEndedError: The sandbox has ended.
    """
    check_screen(rows, cols)
    async with box.using() as link:
        return await link.resize(check_id(id_), rows, cols)
