"""Routes of E2B's control plane for metrics and logs.

Invariants:
- Metrics are measured when they are requested. Processor usage is the average since the creation of the sandbox.
- Logs are made from the execution log: a run is one line that names the program, and one line for each line of output. All have the time at which the
  run began.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response

from sandlot.compat.common import rfc3339_ms
from sandlot.compat.e2b.control.sandboxes import as_control_error, find
from sandlot.compat.e2b.control.schemas import LogsQuery, LogsV2Query, ManyMetricsQuery, MetricsQuery
from sandlot.compat.e2b_conventions import e2b_json_response, is_in_period, metrics_object
from sandlot.core.node import Node
from sandlot.model.access import Principal
from sandlot.model.errors import InvalidRequestError, SandlotError
from sandlot.model.records import ExecutionRecord
from sandlot.model.sandboxes import SandboxInfo
from sandlot.web.dependencies import get_node, get_principal
from sandlot.web.json_body import JsonRoute

MAX_SANDBOXES: Final = 100
"""Maximum number of sandboxes in one request for metrics, as at E2B."""
MAX_RUNS: Final = 100
"""Number of newest runs whose output is in the logs; the log has up to 128 KiB of each."""
LEVELS: Final = ("debug", "info", "warn", "error")

router = APIRouter(route_class=JsonRoute)


@router.get("/sandboxes/metrics")
async def list_metrics(query: Annotated[ManyMetricsQuery, Query()], request: Request) -> Response:
    """Return the current metrics of several sandboxes. Unknown sandboxes are omitted."""
    node, principal = get_node(request), get_principal(request)
    ids = [id_ for id_ in query.sandbox_ids.split(",") if id_]
    if not 0 < len(ids) <= MAX_SANDBOXES:
        raise InvalidRequestError(f"`sandbox_ids` has {len(ids)} ids; 1 to {MAX_SANDBOXES} are allowed.", fields={"field": "sandbox_ids"})

    async def measure(id_: str) -> dict[str, Any] | None:
        try:
            return await _measure(node, principal, await find(node, principal, id_))
        except SandlotError:
            return None

    metrics = await asyncio.gather(*(measure(id_) for id_ in ids))
    return e2b_json_response({"sandboxes": {id_: each for id_, each in zip(ids, metrics, strict=True) if each is not None}})


@router.get("/sandboxes/{sandbox}/metrics")
async def get_metrics(sandbox: str, query: Annotated[MetricsQuery, Query()], request: Request) -> Response:
    """Return the current metrics of a sandbox; none if the requested period does not include the present."""
    node, principal = get_node(request), get_principal(request)
    found = await find(node, principal, sandbox)
    with as_control_error(sandbox):
        return e2b_json_response([await _measure(node, principal, found)] if is_in_period(found, query.start, query.end) else [])


@router.get("/sandboxes/{sandbox}/logs")
async def list_logs_legacy(sandbox: str, query: Annotated[LogsQuery, Query()], request: Request) -> Response:
    """Return the logs of a sandbox for an older client, oldest line first."""
    entries = await _read_logs(request, sandbox, LogsV2Query(cursor=query.start, limit=query.limit))
    lines = [{"timestamp": entry["timestamp"], "line": entry["message"]} for entry in entries]
    return e2b_json_response({"logs": lines, "logEntries": entries})


@router.get("/v2/sandboxes/{sandbox}/logs")
async def list_logs(sandbox: str, query: Annotated[LogsV2Query, Query()], request: Request) -> Response:
    """Return the logs of a sandbox, forward or backward from the cursor."""
    return e2b_json_response({"logs": await _read_logs(request, sandbox, query)})


async def _read_logs(request: Request, sandbox: str, query: LogsV2Query) -> list[dict[str, Any]]:
    node, principal = get_node(request), get_principal(request)
    found = await find(node, principal, sandbox)
    return select_entries((await node.history.executions(principal, sandbox=found.id, limit=MAX_RUNS)).items, query)


async def _measure(node: Node, principal: Principal, sandbox: SandboxInfo) -> dict[str, Any]:
    return metrics_object(await node.sandboxes.usage(principal, sandbox.id), sandbox)


def select_entries(runs: Sequence[ExecutionRecord], query: LogsV2Query) -> list[dict[str, Any]]:
    """Return the log entries that match a query. Pure.

    Args:
        runs: Runs of the sandbox, newest first.
        query: Filter, direction and number of entries.
    """
    backward, min_level = query.direction == "backward", 0 if query.level is None else LEVELS.index(query.level)
    entries: list[dict[str, Any]] = []
    for run in runs if backward else reversed(runs):
        at_ms = int(run.created_at.timestamp() * 1000)
        if query.cursor is not None and (at_ms > query.cursor if backward else at_ms < query.cursor):
            continue
        lines = log_lines(run)
        for level, message, fields in reversed(lines) if backward else lines:
            if LEVELS.index(level) >= min_level and (query.search or "") in message:
                entries.append({"timestamp": rfc3339_ms(run.created_at), "message": message, "level": level, "fields": fields})
                if len(entries) == query.limit:
                    return entries
    return entries


def log_lines(run: ExecutionRecord) -> list[tuple[str, str, Mapping[str, str]]]:
    """Return a run as log lines: level, text and fields of each. Pure."""
    program = run.code if run.argv is None else " ".join(run.argv)
    of_run: Mapping[str, str] = {"execution": run.id}
    lines: list[tuple[str, str, Mapping[str, str]]] = [("debug", f"{run.kind} {run.status}: {program or ''}", of_run)]
    for name, level, text in (("stdout", "info", run.stdout), ("stderr", "warn", run.stderr)):
        of_stream: Mapping[str, str] = {**of_run, "stream": name}
        lines += [(level, line, of_stream) for line in text.replace("\r\n", "\n").removesuffix("\n").split("\n") if text]
    return lines if run.error is None else [*lines, ("error", run.error, of_run)]
