"""What sandboxes use, and what ran in them: metrics, and logs, which here are what the execution log keeps of runs.

Laws:
- Metrics are those of the moment: nothing is measured while nobody asks. CPU is the average over the sandbox's life.
- A run is a line that says what ran, and a line for every line that it wrote, all of the time when it began; in the order in which that was kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from sandlot.compat.common import rfc3339_ms
from sandlot.compat.e2b.control.sandboxes import find, unless_ended
from sandlot.compat.e2b.control.schemas import LogsQuery, LogsV2Query, ManyMetricsQuery, MetricsQuery
from sandlot.compat.e2b_conventions import e2b_json_response
from sandlot.core.node import Node
from sandlot.model.access import Principal
from sandlot.model.errors import InvalidRequestError, SandlotError
from sandlot.model.records import ExecutionRecord
from sandlot.model.sandboxes import SandboxInfo
from sandlot.web.dependencies import get_node, get_principal

MOST_SANDBOXES = 100
"""Of which metrics are told at once; as E2B has it."""
MOST_RUNS = 100
"""Of a sandbox whose lines are told, the newest: each may have 128 KiB of them."""
LEVELS = ("debug", "info", "warn", "error")

router = APIRouter()


@router.get("/sandboxes/metrics")
async def many_metrics(query: Annotated[ManyMetricsQuery, Query()], request: Request) -> Response:
    """What some sandboxes use now; those that there are not are left out."""
    node, principal = get_node(request), get_principal(request)
    ids = [each for each in query.sandbox_ids.split(",") if each]
    if not 0 < len(ids) <= MOST_SANDBOXES:
        raise InvalidRequestError(f"sandbox_ids has {len(ids)} ids; 1 to {MOST_SANDBOXES} are allowed.", fields={"field": "sandbox_ids"})

    async def metric(id_: str) -> dict[str, Any] | None:
        try:
            return await _metric(node, principal, await find(node, principal, id_))
        except SandlotError:
            return None

    found = await asyncio.gather(*(metric(id_) for id_ in ids))
    return e2b_json_response({"sandboxes": {id_: each for id_, each in zip(ids, found, strict=True) if each is not None}})


@router.get("/sandboxes/{sandbox}/metrics")
async def metrics(sandbox: str, query: Annotated[MetricsQuery, Query()], request: Request) -> Response:
    """What a sandbox uses now, where that is asked for."""
    node, principal = get_node(request), get_principal(request)
    found = await find(node, principal, sandbox)
    now = found.as_of.timestamp()
    wanted = (query.start is None or query.start <= now) and (query.end is None or query.end >= int(now))
    with unless_ended(sandbox):
        return e2b_json_response([await _metric(node, principal, found)] if wanted else [])


@router.get("/sandboxes/{sandbox}/logs")
async def logs(sandbox: str, query: Annotated[LogsQuery, Query()], request: Request) -> Response:
    """What runs in a sandbox wrote, oldest first, as older clients ask for it."""
    asked = LogsV2Query(cursor=query.start, limit=query.limit)
    kept = await _found(request, sandbox, asked)
    return e2b_json_response({"logs": [{"timestamp": each["timestamp"], "line": each["message"]} for each in kept], "logEntries": kept})


@router.get("/v2/sandboxes/{sandbox}/logs")
async def logs_v2(sandbox: str, query: Annotated[LogsV2Query, Query()], request: Request) -> Response:
    """What runs in a sandbox wrote, from the cursor on or backward from it."""
    return e2b_json_response({"logs": await _found(request, sandbox, query)})


async def _found(request: Request, sandbox: str, asked: LogsV2Query) -> list[dict[str, Any]]:
    node, principal = get_node(request), get_principal(request)
    found = await find(node, principal, sandbox)
    return chosen((await node.history.executions(principal, sandbox=found.id, limit=MOST_RUNS)).items, asked)


async def _metric(node: Node, principal: Principal, sandbox: SandboxInfo) -> dict[str, Any]:
    used, now = await node.sandboxes.usage(principal, sandbox.id), sandbox.as_of
    lived_s = max(0.001, (now - sandbox.created_at).total_seconds())
    return {
        "timestamp": rfc3339_ms(now),
        "timestampUnix": int(now.timestamp()),
        "cpuCount": max(1, round(used.limits.cpus)),
        "cpuUsedPct": round(100 * used.usage.cpu_s / lived_s, 2),
        "memUsed": used.usage.memory_bytes,
        "memTotal": used.limits.memory_bytes,
        "memCache": 0,
        "diskUsed": used.usage.disk_bytes,
        "diskTotal": used.limits.disk_bytes,
    }


def chosen(runs: Sequence[ExecutionRecord], asked: LogsV2Query) -> list[dict[str, Any]]:
    """The lines that were asked for. Pure.

    Args:
        runs: Newest first.
        asked: Which lines, and how many.
    """
    backward, least = asked.direction == "backward", 0 if asked.level is None else LEVELS.index(asked.level)
    found: list[dict[str, Any]] = []
    for run in runs if backward else reversed(runs):
        at = int(run.created_at.timestamp() * 1000)
        if asked.cursor is not None and (at > asked.cursor if backward else at < asked.cursor):
            continue
        every = lines(run)
        for level, message, fields in reversed(every) if backward else every:
            if LEVELS.index(level) >= least and (asked.search or "") in message:
                found.append({"timestamp": rfc3339_ms(run.created_at), "message": message, "level": level, "fields": fields})
                if len(found) == asked.limit:
                    return found
    return found


def lines(run: ExecutionRecord) -> list[tuple[str, str, Mapping[str, str]]]:
    """One run as lines of a log: level, text, and what it is of. Pure."""
    what = run.code if run.argv is None else " ".join(run.argv)
    own: Mapping[str, str] = {"execution": run.id}
    said: list[tuple[str, str, Mapping[str, str]]] = [("debug", f"{run.kind} {run.status}: {what or ''}", own)]
    for name, level, text in (("stdout", "info", run.stdout), ("stderr", "warn", run.stderr)):
        of: Mapping[str, str] = {**own, "stream": name}
        said += [(level, line, of) for line in text.splitlines()]
    return said if run.error is None else [*said, ("error", run.error, own)]
