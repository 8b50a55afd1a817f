"""What ran in a sandbox and what it wrote, out of the log of runs: line by line, also long after its end.

Law: The sandbox is neither asked nor woken for it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Annotated
from uuid import UUID, uuid5

from fastapi import Query, Request, Response

from sandlot.compat.tensorlake.addressing import CONTROL, NAMESPACE, id_of
from sandlot.compat.tensorlake.control.schemas import LogLine, LogProcess, LogProcessesAnswer, LogsAnswer, LogsQuery
from sandlot.compat.tensorlake.translate import milliseconds, refuse
from sandlot.model.executions import Channel
from sandlot.model.history import LOG_CHANNELS, MAX_LOG_EXECUTIONS, LogEntry
from sandlot.model.ids import SandboxId
from sandlot.web.dependencies import get_node, get_principal
from sandlot.web.models import json_response

_LOGS = "/sandboxes/{sandbox}/logs"
INFO, ERROR = 3, 5
"""The levels that there are: of standard output, and of standard error."""
_NANOSECONDS = 1_000_000


@CONTROL.route("GET", _LOGS)
async def logs(sandbox: str, query: Annotated[LogsQuery, Query()], request: Request) -> Response:
    """Lines, oldest first: all that is told at once of the newest runs, or the first or the last so many of them."""
    if query.nextToken is not None:
        raise refuse("nextToken", "All lines that there are are told at once.")
    if query.head is not None and query.tail is not None:
        raise refuse("head beside tail", "Give one of the two.")
    id_ = await id_of(request, sandbox)
    found = [
        line
        for process, line in _lines(id_, await _entries(request, id_))
        if (not query.level or line.level in query.level)
        and (not query.processId or process in query.processId)
        and (query.body is None or query.body in line.body)
    ]
    if query.head is not None:
        found = found[: query.head]
    if query.tail is not None:
        found = found[len(found) - min(query.tail, len(found)) :]
    return json_response(LogsAnswer(logs=found, nextToken=None))


@CONTROL.route("GET", "/sandboxes/{sandbox}/processes")
async def processes(sandbox: str, request: Request) -> Response:
    """The processes that have written something."""
    id_ = await id_of(request, sandbox)
    node, principal = get_node(request), get_principal(request)
    counted = Counter(process for process, _ in _lines(id_, await _entries(request, id_)))
    page = await node.history.executions(principal, sandbox=SandboxId(id_), limit=MAX_LOG_EXECUTIONS)
    records = [record for record in page.items if counted[record.id]]
    told = [
        LogProcess(
            processId=record.id,
            processPid="",
            processCommand=" ".join(record.argv or ()) or record.code or "",
            processManagedId="",
            processManagedName="",
            firstSeen=milliseconds(record.created_at) * _NANOSECONDS,
            lastSeen=(milliseconds(record.created_at) + round(1000 * (record.duration_s or 0))) * _NANOSECONDS,
            logCount=counted[record.id],
        )
        for record in reversed(records)
    ]
    return json_response(LogProcessesAnswer(processes=told))


async def _entries(request: Request, sandbox: str) -> Sequence[LogEntry]:
    return (await get_node(request).history.logs(get_principal(request), sandbox, LOG_CHANNELS["both"])).items


def _lines(sandbox: str, entries: Sequence[LogEntry]) -> list[tuple[str, LogLine]]:
    """What runs wrote, line by line, each with its run. Pure."""
    return [
        (
            entry.execution,
            LogLine(
                timestamp=milliseconds(entry.at) * _NANOSECONDS,
                uuid=str(uuid5(UUID(hex=entry.execution), f"{entry.channel}-{number}")),
                namespace=NAMESPACE,
                sandboxId=sandbox,
                body=text,
                logAttributes=json.dumps({"process_id": entry.execution, "stream": "stderr" if entry.channel == Channel.STDERR else "stdout"}),
                level=ERROR if entry.channel == Channel.STDERR else INFO,
            ),
        )
        for entry in entries
        for number, text in enumerate(entry.text.removesuffix("\n").split("\n"))
    ]
