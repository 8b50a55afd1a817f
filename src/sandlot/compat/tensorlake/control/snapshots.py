"""Routes for snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fastapi import Request, Response

from sandlot.compat.common import iter_snapshots
from sandlot.compat.tensorlake import translate
from sandlot.compat.tensorlake.addressing import CONTROL, resolve_id, resolve_sandbox
from sandlot.compat.tensorlake.control.schemas import CreatedSnapshotResponse, CreateSnapshotRequest, SnapshotListResponse
from sandlot.model.records import SnapshotRecord
from sandlot.web.dependencies import cancel_on_disconnect, get_node, get_principal
from sandlot.web.models import json_response

_SNAPSHOT: Final = "/snapshots/{snapshot}"
_MAX_LISTED: Final = 10_000


@CONTROL.route("POST", "/sandboxes/{sandbox}/snapshot")
async def create_snapshot(sandbox: str, request: Request, body: CreateSnapshotRequest | None = None) -> Response:
    """Take a snapshot of memory and files, or of the files only. The sandbox keeps running."""
    id_ = await resolve_id(request, sandbox)
    kind = translate.snapshot_kind((body or CreateSnapshotRequest()).snapshot_type)
    record = await cancel_on_disconnect(request, get_node(request).snapshots.create(get_principal(request), id_, kind=kind))
    return json_response(CreatedSnapshotResponse(snapshot_id=record.id))


@CONTROL.route("GET", "/sandboxes/{sandbox}/snapshots")
async def list_sandbox_snapshots(sandbox: str, request: Request) -> Response:
    """List the snapshots of one sandbox, oldest first."""
    found = await resolve_sandbox(request, sandbox)
    return _list_response([record for record in await _find_all(request) if record.spec.id == found.id])


@CONTROL.route("GET", "/snapshots")
async def list_snapshots(request: Request) -> Response:
    """List all snapshots, oldest first."""
    return _list_response(await _find_all(request))


@CONTROL.route("GET", _SNAPSHOT)
async def get_snapshot(snapshot: str, request: Request) -> Response:
    """Return a snapshot."""
    return json_response(translate.snapshot_response(await get_node(request).snapshots.get(get_principal(request), snapshot)))


@CONTROL.route("DELETE", _SNAPSHOT)
async def delete_snapshot(snapshot: str, request: Request) -> Response:
    """Delete a snapshot. Sandboxes that were started from it stay."""
    await get_node(request).snapshots.delete(get_principal(request), snapshot)
    return Response(status_code=204)


async def _find_all(request: Request) -> list[SnapshotRecord]:
    records: list[SnapshotRecord] = []
    async for record in iter_snapshots(get_node(request), get_principal(request)):
        records.append(record)
        if len(records) == _MAX_LISTED:
            break
    return records


def _list_response(records: Sequence[SnapshotRecord]) -> Response:
    return json_response(SnapshotListResponse(snapshots=[translate.snapshot_response(record) for record in records]))
