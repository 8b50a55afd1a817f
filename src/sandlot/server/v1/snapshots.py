"""Snapshots: taken, listed, looked at, removed."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import Field

from sandlot.model.records import SnapshotRecord
from sandlot.model.repositories import Position
from sandlot.model.specs import SnapshotKind
from sandlot.server.v1.common import PROBLEM, documented_response
from sandlot.server.v1.sandboxes import LimitsResponse, NetworkResponse
from sandlot.web import pagination
from sandlot.web.dependencies import SandboxRoute, cancel_on_disconnect, get_node, get_principal
from sandlot.web.models import QueryModel, RequestModel, ResponseModel, Text, json_response


class CreateSnapshotRequest(RequestModel):
    """A snapshot to take."""

    name: Text | None = Field(
        default=None,
        description="What to call it: up to 63 letters, digits, '.', '_' and '-'; no two of one key's have one name.",
        examples=["before-migration"],
    )
    kind: Literal["memory", "files"] = Field(
        default="memory",
        description="memory: memory and files; what is started from it goes on in the middle of everything. files: files alone; what is started "
        "from it boots.",
    )

    def what(self) -> SnapshotKind:
        """What it is to hold."""
        return SnapshotKind(self.kind)


class SnapshotResponse(ResponseModel):
    """A snapshot of a sandbox."""

    id: str
    name: str | None
    kind: Literal["memory", "files"]
    sandbox: str = Field(description="What it was taken of, which may be gone.")
    template: str
    isolation: str
    network: NetworkResponse
    limits: LimitsResponse
    size_bytes: int = Field(description="What it takes on the disk.")
    problem: str | None = Field(description="Why nothing can be started from its memory any more; null where nothing is known against it.")
    created_at: datetime
    node: str

    @classmethod
    def of(cls, record: SnapshotRecord) -> SnapshotResponse:
        """What is told of it."""
        spec = record.spec
        return cls(
            id=record.id,
            name=record.name,
            kind=record.kind.value,
            sandbox=spec.id,
            template=spec.template.name,
            isolation=spec.isolation,
            network=NetworkResponse.of(spec.network),
            limits=LimitsResponse.of(spec.limits),
            size_bytes=record.size_bytes,
            problem=record.problem or None,
            created_at=record.created_at,
            node=record.node,
        )


class SnapshotsResponse(ResponseModel):
    """A page of snapshots, oldest first."""

    snapshots: list[SnapshotResponse]
    next_cursor: str | None = Field(description="For the next page; null where this is the last.")


class SnapshotsQuery(QueryModel):
    """Which snapshots to list."""

    cursor: Text | None = Field(default=None, description="The next_cursor of the page before.")
    limit: int = Field(default=100, ge=1, le=1000, description="Snapshots on one page, at most.")


router = APIRouter(tags=["snapshots"], route_class=SandboxRoute)


@router.post(
    "/v1/sandboxes/{sandbox}/snapshots", status_code=201, responses=documented_response(SnapshotResponse, "It is whole and on the disk.", 201)
)
async def create(
    sandbox: str,
    body: CreateSnapshotRequest,
    request: Request,
    idempotency_key: Annotated[
        str | None, Header(description="Your own name for this request: sent again, it gives the snapshot that it gave.")
    ] = None,
) -> Response:
    """Keep what a sandbox is at this moment. It goes on undisturbed; a client that goes away meanwhile leaves no snapshot behind."""
    work = get_node(request).snapshots.create(get_principal(request), sandbox, name=body.name, kind=body.what(), idempotency_key=idempotency_key)
    return json_response(SnapshotResponse.of(await cancel_on_disconnect(request, work)), 201)


@router.get("/v1/snapshots", responses=documented_response(SnapshotsResponse, "A page of them, oldest first."))
async def list_snapshots(query: Annotated[SnapshotsQuery, Query()], request: Request) -> Response:
    """List snapshots: your own; for an operator everybody's."""
    after = pagination.decode_cursor(query.cursor)
    page = await get_node(request).snapshots.list(get_principal(request), after=after, limit=query.limit)
    following = pagination.encode_cursor(Position(page.items[-1].created_at, page.items[-1].id)) if page.more else None
    return json_response(SnapshotsResponse(snapshots=[SnapshotResponse.of(record) for record in page.items], next_cursor=following))


@router.get("/v1/snapshots/{snapshot}", responses=documented_response(SnapshotResponse, "It."))
async def get(snapshot: str, request: Request) -> Response:
    """Look at a snapshot, by its id or its name."""
    return json_response(SnapshotResponse.of(await get_node(request).snapshots.get(get_principal(request), snapshot)))


@router.delete("/v1/snapshots/{snapshot}", status_code=204, responses=PROBLEM)
async def delete(snapshot: str, request: Request) -> Response:
    """Remove a snapshot, by its id or its name. Sandboxes that were started from it live on."""
    await get_node(request).snapshots.delete(get_principal(request), snapshot)
    return Response(status_code=204)
