"""Routes of E2B's control plane for snapshots, which are templates to E2B's clients, and for forks."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from sandlot.compat.common import iter_snapshots
from sandlot.compat.e2b import translate
from sandlot.compat.e2b.control.sandboxes import LEGACY_TIMEOUT_S, as_control_error, find, with_token
from sandlot.compat.e2b.control.schemas import CreateSnapshotRequest, ForkRequest, SnapshotsQuery
from sandlot.compat.e2b_conventions import e2b_json_response, page_response
from sandlot.model.records import SnapshotRecord
from sandlot.model.repositories import Position
from sandlot.model.sandboxes import ForkParams
from sandlot.model.specs import SnapshotKind
from sandlot.web import pagination
from sandlot.web.dependencies import cancel_on_disconnect, get_node, get_principal
from sandlot.web.json_body import JsonRoute

router = APIRouter(route_class=JsonRoute)


@router.post("/sandboxes/{sandbox}/snapshots")
async def create_snapshot(sandbox: str, request: Request, body: CreateSnapshotRequest | None = None) -> Response:
    """Take a snapshot of a running sandbox. If the client disconnects before the response, the snapshot is removed."""
    node, principal, options = get_node(request), get_principal(request), body or CreateSnapshotRequest()
    found = await find(node, principal, sandbox)
    kind = SnapshotKind.MEMORY if options.memory else SnapshotKind.FILES
    with as_control_error(sandbox):
        record = await cancel_on_disconnect(request, node.snapshots.create(principal, found.id, name=options.name, kind=kind))
    return e2b_json_response(_snapshot_object(record), 201)


@router.get("/snapshots")
async def list_snapshots(query: Annotated[SnapshotsQuery, Query()], request: Request) -> Response:
    """List one page of the snapshots, oldest first."""
    records: list[SnapshotRecord] = []
    async for record in iter_snapshots(get_node(request), get_principal(request), pagination.decode_cursor(query.next_token)):
        if query.sandbox_id in {None, record.spec.id} and query.name in {None, record.name, record.id}:
            records.append(record)
            if len(records) > query.limit:
                break
    return page_response(records, query.limit, _snapshot_object, lambda record: Position(record.created_at, record.id))


@router.post("/sandboxes/{sandbox}/fork")
async def fork_sandbox(sandbox: str, request: Request, body: ForkRequest | None = None) -> Response:
    """Fork a sandbox into one or more children, or none."""
    node, principal, options = get_node(request), get_principal(request), body or ForkRequest()
    found = await find(node, principal, sandbox)
    timeout_s = LEGACY_TIMEOUT_S if options.timeout is None else translate.timeout_s(options.timeout)
    params = ForkParams(count=options.count, metadata=dict(found.metadata), timeout_s=timeout_s)
    with as_control_error(sandbox):
        children = await cancel_on_disconnect(request, node.sandboxes.fork(principal, found.id, params))
    return e2b_json_response([{"sandbox": await with_token(request, child)} for child in children], 201)


def _snapshot_object(record: SnapshotRecord) -> dict[str, object]:
    return {"snapshotID": record.id, "names": [] if record.name is None else [record.name]}
