"""Snapshots: taken, listed, looked at, removed."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response

from sandlot.model.repositories import Position
from sandlot.server.v1.common import PROBLEM, cancel_on_disconnect, documented_response, get_node, get_principal, json_response
from sandlot.server.v1.schemas.saved import SnapshotAnswer, SnapshotBody, SnapshotsAnswer, SnapshotsQuery
from sandlot.web import pagination

router = APIRouter(tags=["snapshots"])


@router.post("/v1/sandboxes/{sandbox}/snapshot", status_code=201, responses=documented_response(SnapshotAnswer, "It is whole and on the disk.", 201))
async def take(
    sandbox: str,
    body: SnapshotBody,
    request: Request,
    idempotency_key: Annotated[
        str | None, Header(description="Your own name for this request: sent again, it gives the snapshot that it gave.")
    ] = None,
) -> Response:
    """Keep what a sandbox is at this moment. It goes on undisturbed; a client that goes away meanwhile leaves no snapshot behind."""
    work = get_node(request).snapshots.create(get_principal(request), sandbox, name=body.name, kind=body.what(), idempotency_key=idempotency_key)
    return json_response(SnapshotAnswer.of(await cancel_on_disconnect(request, work)), 201)


@router.get("/v1/snapshots", responses=documented_response(SnapshotsAnswer, "A page of them, oldest first."))
async def list_snapshots(query: Annotated[SnapshotsQuery, Query()], request: Request) -> Response:
    """List snapshots: your own; for an operator everybody's."""
    after = pagination.decode_cursor(query.cursor)
    page = await get_node(request).snapshots.list(get_principal(request), after=after, limit=query.limit)
    following = pagination.encode_cursor(Position(page.items[-1].created_at, page.items[-1].id)) if page.more else None
    return json_response(SnapshotsAnswer(snapshots=[SnapshotAnswer.of(record) for record in page.items], next_cursor=following))


@router.get("/v1/snapshots/{snapshot}", responses=documented_response(SnapshotAnswer, "It."))
async def get(snapshot: str, request: Request) -> Response:
    """Look at a snapshot, by its id or its name."""
    return json_response(SnapshotAnswer.of(await get_node(request).snapshots.get(get_principal(request), snapshot)))


@router.delete("/v1/snapshots/{snapshot}", status_code=204, responses=PROBLEM)
async def delete(snapshot: str, request: Request) -> Response:
    """Remove a snapshot, by its id or its name. Sandboxes that were started from it live on."""
    await get_node(request).snapshots.delete(get_principal(request), snapshot)
    return Response(status_code=204)
