"""Keys: made, listed and revoked by operators; and who it is that asks."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from sandlot.model.access import UNBOUNDED, KeyUsage, Principal, Quota
from sandlot.model.network import NetworkMode
from sandlot.model.records import KeyRecord
from sandlot.model.repositories import Position
from sandlot.server.v1.common import PROBLEM, documented_response
from sandlot.web import pagination
from sandlot.web.dependencies import get_node, get_principal
from sandlot.web.models import QueryModel, RequestModel, ResponseModel, Text, json_response

_MOST = 2**53
"""What every reader of JSON takes for the number that it is (RFC 8259, 6)."""


class QuotaRequest(RequestModel):
    """What a key may take; null is no bound but the service's own."""

    sandboxes: int | None = Field(default=50, ge=0, le=_MOST, description="Live ones at once.")
    lifetime_s: float | None = Field(default=None, ge=0, le=_MOST, description="The longest timeout of one sandbox; it has no persistent ones then.")
    cpus: float | None = Field(default=None, ge=0, le=_MOST, description="Cores of all its live sandboxes together.")
    memory_bytes: int | None = Field(default=None, ge=0, le=_MOST, description="Memory of all its live sandboxes together.")
    disk_bytes: int | None = Field(default=None, ge=0, le=_MOST, description="Disk of all its live sandboxes together.")
    upload_bytes: int | None = Field(default=None, ge=0, le=_MOST, description="One upload.")
    executions_per_month: int | None = Field(
        default=None, ge=0, le=_MOST, description="Runs of code and commands that are begun in one calendar month (UTC)."
    )
    snapshots: int | None = Field(default=None, ge=0, le=_MOST, description="Snapshots that are kept.")
    snapshot_bytes: int | None = Field(default=None, ge=0, le=_MOST, description="What they take on the server's disk together.")
    volumes: int | None = Field(default=None, ge=0, le=_MOST, description="Volumes that it has.")
    volume_bytes: int | None = Field(default=None, ge=0, le=_MOST, description="What may be written to them together.")
    pools: int | None = Field(
        default=4, ge=0, le=_MOST, description="Pools of its own. What waits in them takes of the sums above what its live sandboxes leave."
    )
    network: Annotated[NetworkMode, Field(strict=False)] | None = Field(default=None, description="The most open network mode of its sandboxes.")
    installs: bool = Field(default=True, description="Whether installing opens the package indexes to a sandbox of network 'none' while it runs.")

    def asked(self) -> Quota:
        """It, in the model's words."""
        return Quota(**{each.name: getattr(self, each.name) for each in fields(Quota)})


class CreateKeyRequest(RequestModel):
    """A key to make."""

    name: Text = Field(
        description="What to call it: up to 63 letters, digits, '.', '_' and '-'; no two valid keys have one name.", examples=["agent-1"]
    )
    operator: bool = Field(default=False, description="Whether it sees everybody's sandboxes, and may make and revoke keys.")
    quota: QuotaRequest | None = Field(
        default=None, description="What it may take. Left out: 50 live sandboxes and 4 pools; of an operator everything."
    )

    def quota_asked(self) -> Quota:
        """What it may take, in the model's words."""
        if self.quota is None:
            return UNBOUNDED if self.operator else Quota()
        return self.quota.asked()


class QuotaResponse(ResponseModel):
    """What a key may take; null is no bound but the service's own."""

    sandboxes: int | None
    lifetime_s: float | None
    cpus: float | None
    memory_bytes: int | None
    disk_bytes: int | None
    upload_bytes: int | None
    executions_per_month: int | None
    snapshots: int | None
    snapshot_bytes: int | None
    volumes: int | None
    volume_bytes: int | None
    pools: int | None
    network: NetworkMode | None
    installs: bool

    @classmethod
    def of(cls, quota: Quota) -> QuotaResponse:
        """What is told of it."""
        return cls(**{each.name: getattr(quota, each.name) for each in fields(quota)})


class KeyResponse(ResponseModel):
    """A key, without its secret."""

    id: str = Field(description="12 hexadecimal digits: the owner of all that is made with it.")
    name: str
    operator: bool = Field(description="Whether it sees everybody's sandboxes, and may make and revoke keys.")
    quota: QuotaResponse
    created_at: datetime

    @classmethod
    def of(cls, record: KeyRecord) -> KeyResponse:
        """What is told of it."""
        return cls(id=record.id, name=record.name, operator=record.operator, quota=QuotaResponse.of(record.quota), created_at=record.created_at)


class NewKeyResponse(KeyResponse):
    """A key that was just made."""

    key: str = Field(description="The secret to send with requests. It is told here and nowhere else: the service keeps a digest only.")

    @classmethod
    def made(cls, record: KeyRecord, secret: str) -> NewKeyResponse:
        """What is told of it, once."""
        return cls(**KeyResponse.of(record).__dict__, key=secret)


class KeysResponse(ResponseModel):
    """A page of keys, oldest first."""

    keys: list[KeyResponse]
    next_cursor: str | None = Field(description="For the next page; null where this is the last.")


class KeysQuery(QueryModel):
    """Which keys to list."""

    cursor: Text | None = Field(default=None, description="The next_cursor of the page before.")
    limit: int = Field(default=100, ge=1, le=1000, description="Keys on one page, at most.")


class QuotaUsageResponse(ResponseModel):
    """What of a quota is taken now."""

    sandboxes: int
    cpus: float
    memory_bytes: int
    disk_bytes: int
    executions_per_month: int = Field(description="Begun this month (UTC).")
    snapshots: int
    snapshot_bytes: int
    volumes: int
    volume_bytes: int = Field(description="Their sizes together.")
    pools: int


class CurrentKeyResponse(ResponseModel):
    """Who sends the request."""

    id: str = Field(description="The key's id; 'local' for whoever reaches the unix socket.")
    name: str
    operator: bool
    quota: QuotaResponse
    used: QuotaUsageResponse

    @classmethod
    def of(cls, principal: Principal, usage: KeyUsage) -> CurrentKeyResponse:
        """What is told of somebody."""
        return cls(
            id=principal.owner,
            name=principal.name,
            operator=principal.operator,
            quota=QuotaResponse.of(principal.quota),
            used=QuotaUsageResponse(**{each.name: getattr(usage, each.name) for each in fields(usage)}),
        )


router = APIRouter(prefix="/v1/keys", tags=["keys"])


@router.post("", status_code=201, responses=documented_response(NewKeyResponse, "It is valid from now on.", 201))
async def create(body: CreateKeyRequest, request: Request) -> Response:
    """Make a key. Operators only; its secret is in this answer and nowhere else."""
    record, secret = await get_node(request).keys.create(get_principal(request), body.name, operator=body.operator, quota=body.quota_asked())
    return json_response(NewKeyResponse.made(record, secret), 201)


@router.get("", responses=documented_response(KeysResponse, "A page of them, oldest first."))
async def list_keys(query: Annotated[KeysQuery, Query()], request: Request) -> Response:
    """List the keys that are valid, without their secrets. Operators only."""
    page = await get_node(request).keys.list(get_principal(request), after=pagination.decode_cursor(query.cursor), limit=query.limit)
    following = pagination.encode_cursor(Position(page.items[-1].created_at, page.items[-1].id)) if page.more else None
    return json_response(KeysResponse(keys=[KeyResponse.of(record) for record in page.items], next_cursor=following))


@router.get("/current", responses=documented_response(CurrentKeyResponse, "You."))
async def get_current(request: Request) -> Response:
    """Tell who sends this request, what they may take, and what of it is taken."""
    principal = get_principal(request)
    return json_response(CurrentKeyResponse.of(principal, await get_node(request).keys.usage(principal)))


@router.delete("/{key}", status_code=204, responses=PROBLEM)
async def delete(key: str, request: Request) -> Response:
    """Take a key away, by its name or its id: requests with it are refused from now on. Operators only; its sandboxes live on, its pools go."""
    await get_node(request).keys.revoke(get_principal(request), key)
    return Response(status_code=204)
