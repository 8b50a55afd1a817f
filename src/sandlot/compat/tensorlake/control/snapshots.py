"""Snapshots: taken, listed, looked at, deleted."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import Request, Response

from sandlot.compat.common import iter_snapshots
from sandlot.compat.tensorlake import translate
from sandlot.compat.tensorlake.addressing import CONTROL, any_sandbox, id_of
from sandlot.compat.tensorlake.control.schemas import SnapshotBody, SnapshotsAnswer, TakenAnswer
from sandlot.model.records import SnapshotRecord
from sandlot.web.dependencies import cancel_on_disconnect, get_node, get_principal
from sandlot.web.models import json_response

_ONE = "/snapshots/{snapshot}"
_MOST = 10_000


@CONTROL.route("POST", "/sandboxes/{sandbox}/snapshot")
async def take(sandbox: str, request: Request, body: SnapshotBody | None = None) -> Response:
    """Keep what a sandbox is at this moment: memory and files, unless it is files alone that are asked for. It goes on undisturbed."""
    id_ = await id_of(request, sandbox)
    kind = translate.kind((body or SnapshotBody()).snapshot_type)
    record = await cancel_on_disconnect(request, get_node(request).snapshots.create(get_principal(request), id_, kind=kind))
    return json_response(TakenAnswer(snapshot_id=record.id))


@CONTROL.route("GET", "/sandboxes/{sandbox}/snapshots")
async def list_of_sandbox(sandbox: str, request: Request) -> Response:
    """Those of one sandbox, oldest first."""
    box = await any_sandbox(request, sandbox)
    return _told([record for record in await _all(request) if record.spec.id == box.id])


@CONTROL.route("GET", "/snapshots")
async def list_snapshots(request: Request) -> Response:
    """All of them, oldest first."""
    return _told(await _all(request))


@CONTROL.route("GET", _ONE)
async def get(snapshot: str, request: Request) -> Response:
    """Look at a snapshot."""
    return json_response(translate.snapshot(await get_node(request).snapshots.get(get_principal(request), snapshot)))


@CONTROL.route("DELETE", _ONE)
async def delete(snapshot: str, request: Request) -> Response:
    """Delete a snapshot. Sandboxes that were started from it live on."""
    await get_node(request).snapshots.delete(get_principal(request), snapshot)
    return Response(status_code=204)


async def _all(request: Request) -> list[SnapshotRecord]:
    records: list[SnapshotRecord] = []
    async for record in iter_snapshots(get_node(request), get_principal(request)):
        records.append(record)
        if len(records) == _MOST:
            break
    return records


def _told(records: Sequence[SnapshotRecord]) -> Response:
    return json_response(SnapshotsAnswer(snapshots=[translate.snapshot(record) for record in records]))
