"""Processes that are started again: what ran is killed where it still runs, and the same is started anew, under another id.

Law: What is started is what was asked for the first time, whole; where that is not known any more, nothing is done.
"""

from __future__ import annotations

import signal as signals

from sandlot.core import notes
from sandlot.core.records.executions import NATIVE, ExecutionDescription
from sandlot.core.runs import processes
from sandlot.core.runs.inputs import check_id
from sandlot.core.sandbox import CALL_TIMEOUT_S, Sandbox
from sandlot.model.errors import ConflictError, ErrorCode
from sandlot.model.ids import ProcessId


async def restart(sandbox: Sandbox, id_: str, *, description: ExecutionDescription = NATIVE) -> tuple[ProcessId, int]:
    """Start a process again, and leave it; its new id and its pid.

    Args:
        sandbox: Where.
        id_: The process, which may have ended.
        description: What the log says of it beyond what it is.

    Raises:
        NotFoundError: ``process_not_found``.
        ConflictError: It is not known with what it was started, or it does not die.
        SandboxEndedError: The sandbox has ended.
    """
    process = check_id(id_)
    known = await processes.look(sandbox, process)
    spec = notes.of(sandbox, process).spec
    if spec is None:
        raise ConflictError(
            f"It is not known any more with what process {process} was started.",
            code=ErrorCode.CONFLICT,
            hint="Start it as a new one.",
            fields={"process": process},
        )
    if known.running:
        await processes.send_signal(sandbox, process, int(signals.SIGKILL))
        if await processes.wait(sandbox, process, CALL_TIMEOUT_S) is None:
            raise ConflictError(
                f"Process {process} does not end.", code=ErrorCode.CONFLICT, hint="Look at what it waits for.", fields={"process": process}
            )
    return await processes.launch(sandbox, spec, description=description)
