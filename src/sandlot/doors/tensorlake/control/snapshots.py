"""Snapshots: taken, listed, looked at, deleted."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import Request, Response

from sandlot.doors.tensorlake import translate
from sandlot.doors.tensorlake.control.wire import SnapshotBody, SnapshotsAnswer, TakenAnswer
from sandlot.doors.tensorlake.ways import CONTROL, any_sandbox, id_of
from sandlot.model.records import SnapshotRecord
from sandlot.model.repositories import Position
from sandlot.web.asking import node_of, principal_of, unless_gone
from sandlot.web.bodies import reply

_ONE = "/snapshots/{snapshot}"
_PAGE, _MOST = 500, 10_000


@CONTROL.route("POST", "/sandboxes/{sandbox}/snapshot")
async def take(sandbox: str, request: Request, body: SnapshotBody | None = None) -> Response:
    """Keep what a sandbox is at this moment: memory and files, unless it is files alone that are asked for. It goes on undisturbed."""
    id_ = await id_of(request, sandbox)
    kind = translate.kind((body or SnapshotBody()).snapshot_type)
    record = await unless_gone(request, node_of(request).snapshots.create(principal_of(request), id_, kind=kind))
    return reply(TakenAnswer(snapshot_id=record.id))


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
    return reply(translate.snapshot(await node_of(request).snapshots.get(principal_of(request), snapshot)))


@CONTROL.route("DELETE", _ONE)
async def delete(snapshot: str, request: Request) -> Response:
    """Delete a snapshot. Sandboxes that were started from it live on."""
    await node_of(request).snapshots.delete(principal_of(request), snapshot)
    return Response(status_code=204)


async def _all(request: Request) -> list[SnapshotRecord]:
    snapshots, principal = node_of(request).snapshots, principal_of(request)
    found: list[SnapshotRecord] = []
    more = True
    while more and len(found) < _MOST:
        after = Position(found[-1].created_at, found[-1].id) if found else None
        page = await snapshots.list(principal, after=after, limit=_PAGE)
        more = page.more
        found += page.items
    return found


def _told(records: Sequence[SnapshotRecord]) -> Response:
    return reply(SnapshotsAnswer(snapshots=[translate.snapshot(record) for record in records]))
