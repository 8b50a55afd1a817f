"""Snapshots of sandboxes, which are templates to E2B, and forks."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from sandlot.compat.common import iter_snapshots
from sandlot.compat.e2b import translate
from sandlot.compat.e2b.control.sandboxes import OLD_TIMEOUT_S, find, made, unless_ended
from sandlot.compat.e2b.control.schemas import ForkBody, SnapshotBody, SnapshotsQuery
from sandlot.compat.e2b_conventions import NEXT, e2b_json_response
from sandlot.model.records import SnapshotRecord
from sandlot.model.repositories import Position
from sandlot.model.sandboxes import ForkParams
from sandlot.model.specs import SnapshotKind
from sandlot.web import pagination
from sandlot.web.dependencies import cancel_on_disconnect, get_node, get_principal

router = APIRouter()


@router.post("/sandboxes/{sandbox}/snapshots")
async def take(sandbox: str, request: Request, body: SnapshotBody | None = None) -> Response:
    """Keep what a sandbox is at this moment; it goes on. A client that goes away meanwhile leaves no snapshot behind."""
    node, principal, asked = get_node(request), get_principal(request), body or SnapshotBody()
    found = await find(node, principal, sandbox)
    kind = SnapshotKind.MEMORY if asked.memory else SnapshotKind.FILES
    with unless_ended(sandbox):
        record = await cancel_on_disconnect(request, node.snapshots.create(principal, found.id, name=asked.name, kind=kind))
    return e2b_json_response(_snapshot(record), 201)


@router.get("/snapshots")
async def list_snapshots(query: Annotated[SnapshotsQuery, Query()], request: Request) -> Response:
    """List snapshots, oldest first."""
    found = []
    async for record in iter_snapshots(get_node(request), get_principal(request), pagination.decode_cursor(query.next_token)):
        if query.sandbox_id in {None, record.spec.id} and query.name in {None, record.name, record.id}:
            found.append(record)
            if len(found) > query.limit:
                break
    page = found[: query.limit]
    headers = {NEXT: pagination.encode_cursor(Position(page[-1].created_at, page[-1].id))} if len(found) > len(page) else {}
    return e2b_json_response([_snapshot(record) for record in page], headers=headers)


@router.post("/sandboxes/{sandbox}/fork")
async def fork(sandbox: str, request: Request, body: ForkBody | None = None) -> Response:
    """Make sandboxes that are what one is at this moment: all of them, or none."""
    node, principal, asked = get_node(request), get_principal(request), body or ForkBody()
    found = await find(node, principal, sandbox)
    timeout_s = OLD_TIMEOUT_S if asked.timeout is None else translate.timeout(asked.timeout)
    wanted = ForkParams(count=asked.count, metadata=dict(found.metadata), timeout_s=timeout_s)
    with unless_ended(sandbox):
        children = await cancel_on_disconnect(request, node.sandboxes.fork(principal, found.id, wanted))
    return e2b_json_response([{"sandbox": made(node, child)} for child in children], 201)


def _snapshot(record: SnapshotRecord) -> dict[str, object]:
    return {"snapshotID": record.id, "names": [] if record.name is None else [record.name]}
