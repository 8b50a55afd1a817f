"""Snapshots: taken, listed, looked at, removed."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response

from sandlot.model.repositories import Position
from sandlot.server.native.common import PROBLEM, also, node_of, principal_of, reply, unless_gone
from sandlot.server.native.saved.schemas import SnapshotAnswer, SnapshotBody, SnapshotsAnswer, SnapshotsQuery
from sandlot.web import cursors

router = APIRouter(tags=["snapshots"])


@router.post("/v1/sandboxes/{sandbox}/snapshot", status_code=201, responses=also(SnapshotAnswer, "It is whole and on the disk.", 201))
async def take(
    sandbox: str,
    body: SnapshotBody,
    request: Request,
    idempotency_key: Annotated[
        str | None, Header(description="Your own name for this request: sent again, it gives the snapshot that it gave.")
    ] = None,
) -> Response:
    """Keep what a sandbox is at this moment. It goes on undisturbed; a client that goes away meanwhile leaves no snapshot behind."""
    work = node_of(request).snapshots.create(principal_of(request), sandbox, name=body.name, kind=body.what(), idempotency_key=idempotency_key)
    return reply(SnapshotAnswer.of(await unless_gone(request, work)), 201)


@router.get("/v1/snapshots", responses=also(SnapshotsAnswer, "A page of them, oldest first."))
async def list_snapshots(query: Annotated[SnapshotsQuery, Query()], request: Request) -> Response:
    """List snapshots: your own; for an operator everybody's."""
    after = cursors.understood(query.cursor)
    page = await node_of(request).snapshots.list(principal_of(request), after=after, limit=query.limit)
    following = cursors.told(Position(page.items[-1].created_at, page.items[-1].id)) if page.more else None
    return reply(SnapshotsAnswer(snapshots=[SnapshotAnswer.of(record) for record in page.items], next_cursor=following))


@router.get("/v1/snapshots/{snapshot}", responses=also(SnapshotAnswer, "It."))
async def get(snapshot: str, request: Request) -> Response:
    """Look at a snapshot, by its id or its name."""
    return reply(SnapshotAnswer.of(await node_of(request).snapshots.get(principal_of(request), snapshot)))


@router.delete("/v1/snapshots/{snapshot}", status_code=204, responses=PROBLEM)
async def delete(snapshot: str, request: Request) -> Response:
    """Remove a snapshot, by its id or its name. Sandboxes that were started from it live on."""
    await node_of(request).snapshots.delete(principal_of(request), snapshot)
    return Response(status_code=204)
