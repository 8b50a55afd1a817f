"""Snapshots: schemas and routes."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import Field

from sandlot.model.records import SnapshotRecord
from sandlot.model.specs import SnapshotKind
from sandlot.server.v1.common import PROBLEM, Cursor, documented_response
from sandlot.server.v1.sandboxes import LimitsResponse, NetworkResponse
from sandlot.web import pagination
from sandlot.web.dependencies import SandboxNameRoute, cancel_on_disconnect, get_node, get_principal
from sandlot.web.models import QueryModel, RequestModel, ResponseModel, Text, json_response


class CreateSnapshotRequest(RequestModel):
    """Options of a new snapshot."""

    name: Text | None = Field(
        default=None,
        description="Name, unique among the snapshots of the key: up to 63 letters, digits, `.`, `_` and `-`.",
        examples=["before-migration"],
    )
    kind: Literal["memory", "files"] = Field(
        default="memory",
        description="`memory`: memory and files; sandboxes that start from the snapshot continue with its processes. `files`: only files; they boot.",
    )

    def snapshot_kind(self) -> SnapshotKind:
        """Return the kind of the operation."""
        return SnapshotKind(self.kind)


class SnapshotResponse(ResponseModel):
    """A snapshot of a sandbox."""

    id: str
    name: str | None
    kind: Literal["memory", "files"]
    sandbox: str = Field(description="Id of the saved sandbox, which may have ended.")
    template: str
    isolation: str
    network: NetworkResponse
    limits: LimitsResponse
    size_bytes: int = Field(description="Size on disk.")
    problem: str | None = Field(description="Reason why its memory can no longer be restored; null if no reason is known.")
    created_at: datetime
    node: str

    @classmethod
    def of(cls, record: SnapshotRecord) -> SnapshotResponse:
        """Return the response for a snapshot."""
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
    next_cursor: str | None = Field(description="Cursor of the next page; null on the last page.")


class SnapshotsQuery(QueryModel):
    """Page of a list of snapshots."""

    cursor: Cursor | None = Field(default=None, description="`next_cursor` of the previous page.")
    limit: int = Field(default=100, ge=1, le=1000, description="Maximum number of snapshots of the page.")


router = APIRouter(tags=["snapshots"], route_class=SandboxNameRoute)


@router.post("/v1/sandboxes/{sandbox}/snapshots", status_code=201, responses=documented_response(SnapshotResponse, "The snapshot.", 201))
async def create(
    sandbox: str,
    body: CreateSnapshotRequest,
    request: Request,
    idempotency_key: Annotated[str | None, Header(description="Key of this request. A request with the same key returns the same snapshot.")] = None,
) -> Response:
    """Save a sandbox's memory and files, or its files only. The sandbox keeps running. If the client disconnects, no snapshot remains."""
    work = get_node(request).snapshots.create(
        get_principal(request), sandbox, name=body.name, kind=body.snapshot_kind(), idempotency_key=idempotency_key
    )
    return json_response(SnapshotResponse.of(await cancel_on_disconnect(request, work)), 201)


@router.get("/v1/snapshots", responses=documented_response(SnapshotsResponse, "A page of snapshots, oldest first."))
async def list_snapshots(query: Annotated[SnapshotsQuery, Query()], request: Request) -> Response:
    """List snapshots of the caller; operators get those of all keys."""
    after = pagination.decode_cursor(query.cursor)
    page = await get_node(request).snapshots.list(get_principal(request), after=after, limit=query.limit)
    return json_response(
        SnapshotsResponse(snapshots=[SnapshotResponse.of(record) for record in page.items], next_cursor=pagination.next_cursor(page))
    )


@router.get("/v1/snapshots/{snapshot}", responses=documented_response(SnapshotResponse, "The snapshot."))
async def get(snapshot: str, request: Request) -> Response:
    """Get a snapshot."""
    return json_response(SnapshotResponse.of(await get_node(request).snapshots.get(get_principal(request), snapshot)))


@router.delete("/v1/snapshots/{snapshot}", status_code=204, responses=PROBLEM)
async def delete(snapshot: str, request: Request) -> Response:
    """Delete a snapshot. Sandboxes that started from it keep running."""
    await get_node(request).snapshots.delete(get_principal(request), snapshot)
    return Response(status_code=204)
