"""Routes for logs: output of the runs of a sandbox from the execution log, line by line, also after the end of the sandbox.

Invariant: The sandbox is not woken.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Final
from uuid import UUID, uuid5

from fastapi import Query, Request, Response

from sandlot.compat.tensorlake.addressing import CONTROL, NAMESPACE, resolve_id
from sandlot.compat.tensorlake.control.schemas import LogLine, LogListResponse, LogProcess, LogProcessListResponse, LogsQuery
from sandlot.compat.tensorlake.translate import milliseconds, not_possible
from sandlot.model.executions import Channel
from sandlot.model.history import LOG_CHANNELS, MAX_LOG_EXECUTIONS, LogEntry
from sandlot.model.ids import SandboxId
from sandlot.web.dependencies import get_node, get_principal
from sandlot.web.models import json_response

INFO, ERROR = 3, 5
"""Levels of lines of standard output and standard error."""
_NS_PER_MS: Final = 1_000_000


@CONTROL.route("GET", "/sandboxes/{sandbox}/logs")
async def list_logs(sandbox: str, query: Annotated[LogsQuery, Query()], request: Request) -> Response:
    """List log lines of the newest runs, oldest first: all, the first, or the last ones."""
    if query.nextToken is not None:
        raise not_possible("nextToken", "Omit nextToken: all lines are returned at once.")
    if query.head is not None and query.tail is not None:
        raise not_possible("head with tail", "Pass one of the two.")
    id_ = await resolve_id(request, sandbox)
    lines = [
        line
        for process, line in _log_lines(id_, await _read_entries(request, id_))
        if (not query.level or line.level in query.level)
        and (not query.processId or process in query.processId)
        and (query.body is None or query.body in line.body)
    ]
    if query.head is not None:
        lines = lines[: query.head]
    if query.tail is not None:
        lines = lines[len(lines) - min(query.tail, len(lines)) :]
    return json_response(LogListResponse(logs=lines, nextToken=None))


@CONTROL.route("GET", "/sandboxes/{sandbox}/processes")
async def list_log_processes(sandbox: str, request: Request) -> Response:
    """List the processes that have written output."""
    id_ = await resolve_id(request, sandbox)
    counts = Counter(process for process, _ in _log_lines(id_, await _read_entries(request, id_)))
    page = await get_node(request).history.executions(get_principal(request), sandbox=SandboxId(id_), limit=MAX_LOG_EXECUTIONS)
    processes = [
        LogProcess(
            processId=record.id,
            processPid="",
            processCommand=" ".join(record.argv or ()) or record.code or "",
            processManagedId="",
            processManagedName="",
            firstSeen=milliseconds(record.created_at) * _NS_PER_MS,
            lastSeen=(milliseconds(record.created_at) + round(1000 * (record.duration_s or 0))) * _NS_PER_MS,
            logCount=counts[record.id],
        )
        for record in reversed(page.items)
        if counts[record.id]
    ]
    return json_response(LogProcessListResponse(processes=processes))


async def _read_entries(request: Request, sandbox: str) -> Sequence[LogEntry]:
    return (await get_node(request).history.logs(get_principal(request), sandbox, LOG_CHANNELS["both"])).items


def _log_lines(sandbox: str, entries: Sequence[LogEntry]) -> list[tuple[str, LogLine]]:
    """Return log entries as lines, each with the id of its run. Pure."""
    return [
        (
            entry.execution,
            LogLine(
                timestamp=milliseconds(entry.at) * _NS_PER_MS,
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
