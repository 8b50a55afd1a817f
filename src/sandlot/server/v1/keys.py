"""API keys: create, list, get, update and delete keys, and report the current key with its usage. Only the last is not for operators alone."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import AwareDatetime, Field

from sandlot.model.access import UNBOUNDED, KeyFormat, KeyUsage, Principal, Quota
from sandlot.model.network import NetworkMode
from sandlot.model.records import KeyChange, KeyRecord
from sandlot.model.specs import GIB, MIB
from sandlot.server.v1.common import PROBLEM, Cursor, documented_response
from sandlot.web import pagination
from sandlot.web.dependencies import get_node, get_principal
from sandlot.web.json_body import JsonRoute
from sandlot.web.models import QueryModel, RequestModel, ResponseModel, Text, json_response

_MOST = 2**53
"""Largest number that every JSON reader reads exactly (RFC 8259, 6)."""

_NAME = "Up to 63 letters, digits, '.', '_' and '-', beginning with a letter or a digit. Unique among the keys that are not revoked. Not 'current'."


class QuotaRequest(RequestModel):
    """Quota of a key. Null: only the limits of the node apply."""

    sandboxes: int | None = Field(default=50, ge=0, le=_MOST, description="Largest number of live sandboxes.")
    lifetime_s: float | None = Field(
        default=None, ge=0, le=_MOST, description="Longest timeout of a sandbox, in seconds. With this limit, persistent sandboxes are refused."
    )
    cpus: float | None = Field(default=None, ge=0, le=_MOST, description="Largest sum of the CPU limits of all live sandboxes, in cores.")
    memory_bytes: int | None = Field(default=None, ge=0, le=_MOST, description="Largest sum of the memory limits of all live sandboxes.")
    disk_bytes: int | None = Field(default=None, ge=0, le=_MOST, description="Largest sum of the disk limits of all live sandboxes.")
    upload_bytes: int | None = Field(default=None, ge=0, le=_MOST, description="Largest size of an uploaded file.")
    executions_per_month: int | None = Field(
        default=None, ge=0, le=_MOST, description="Largest number of runs of code and commands that begin in one calendar month (UTC)."
    )
    stored_executions: int | None = Field(
        default=10_000,
        ge=0,
        le=_MOST,
        description="Largest number of entries of the execution log. Beyond it, the oldest entries of the key are removed.",
    )
    stored_execution_bytes: int | None = Field(
        default=256 * MIB, ge=0, le=_MOST, description="Largest size of these entries together. Beyond it, the oldest entries are removed."
    )
    stored_files: int | None = Field(default=10_000, ge=0, le=_MOST, description="Largest number of files in the file store.")
    stored_file_bytes: int | None = Field(default=10 * GIB, ge=0, le=_MOST, description="Largest size of these files together.")
    hibernated_sandboxes: int | None = Field(default=100, ge=0, le=_MOST, description="Largest number of hibernated sandboxes.")
    snapshots: int | None = Field(default=None, ge=0, le=_MOST, description="Largest number of snapshots.")
    snapshot_bytes: int | None = Field(default=None, ge=0, le=_MOST, description="Largest disk space of all snapshots together.")
    volumes: int | None = Field(default=None, ge=0, le=_MOST, description="Largest number of volumes.")
    volume_bytes: int | None = Field(default=None, ge=0, le=_MOST, description="Largest sum of the sizes of all volumes.")
    templates: int | None = Field(default=50, ge=0, le=_MOST, description="Largest number of templates.")
    template_bytes: int | None = Field(
        default=50 * GIB, ge=0, le=_MOST, description="Largest size of the root file systems and snapshots of all builds of templates together."
    )
    pools: int | None = Field(
        default=4,
        ge=0,
        le=_MOST,
        description="Largest number of private pools. Their warm sandboxes use only what live sandboxes leave of the limits above.",
    )
    network: Annotated[NetworkMode, Field(strict=False)] | None = Field(default=None, description="Most open network mode of a sandbox.")
    installs: bool = Field(default=True, description="True if sandboxes of network mode 'none' may use the package indexes during an install.")
    public_ports: bool = Field(default=False, description="True if sandboxes may have public ports. Operators may in any case.")

    def to_quota(self) -> Quota:
        """Return the quota of the model."""
        return Quota(**{each.name: getattr(self, each.name) for each in fields(Quota)})


class CreateKeyRequest(RequestModel):
    """A new key."""

    name: Text = Field(description=_NAME, examples=["agent-1"])
    operator: bool = Field(default=False, description="True if the key sees the objects of all owners and may manage keys.")
    quota: QuotaRequest | None = Field(default=None, description="Without it: the defaults of its fields; no limit for an operator.")
    expires_at: Annotated[AwareDatetime, Field(strict=False)] | None = Field(
        default=None, description="Time from which requests with the key are refused. Null: never.", examples=["2027-01-01T00:00:00Z"]
    )
    format: Annotated[KeyFormat, Field(strict=False)] = Field(
        default=KeyFormat.SANDLOT, description="Form of the key: 'e2b' is `e2b_` and 64 hexadecimal digits, which old clients of E2B require."
    )

    def effective_quota(self) -> Quota:
        """Return the quota of the request, or the default quota."""
        if self.quota is None:
            return UNBOUNDED if self.operator else Quota()
        return self.quota.to_quota()


class UpdateKeyRequest(RequestModel):
    """Changes of a key. Fields that are left out keep their value."""

    name: Text | None = Field(default=None, description=_NAME)
    quota: QuotaRequest | None = Field(default=None, description="Replaces the whole quota. It applies to requests from now on.")
    expires_at: Annotated[AwareDatetime, Field(strict=False)] | None = Field(
        default=None,
        description="Time from which requests with the key are refused. Null: never. A time that has passed ends the open requests of the key.",
    )

    def to_change(self) -> KeyChange:
        """Return the change of the model."""
        return KeyChange(
            name=self.name,
            quota=None if self.quota is None else self.quota.to_quota(),
            expires_at=self.expires_at,
            removes_expiry="expires_at" in self.model_fields_set and self.expires_at is None,
        )


class QuotaResponse(ResponseModel):
    """Quota of a key. Null: only the limits of the node apply."""

    sandboxes: int | None
    lifetime_s: float | None
    cpus: float | None
    memory_bytes: int | None
    disk_bytes: int | None
    upload_bytes: int | None
    executions_per_month: int | None
    stored_executions: int | None
    stored_execution_bytes: int | None
    stored_files: int | None
    stored_file_bytes: int | None
    hibernated_sandboxes: int | None
    snapshots: int | None
    snapshot_bytes: int | None
    volumes: int | None
    volume_bytes: int | None
    templates: int | None
    template_bytes: int | None
    pools: int | None
    network: NetworkMode | None
    installs: bool
    public_ports: bool

    @classmethod
    def of(cls, quota: Quota) -> QuotaResponse:
        """Return the response for a quota."""
        return cls(**{each.name: getattr(quota, each.name) for each in fields(quota)})


class KeyResponse(ResponseModel):
    """A key without its secret."""

    id: str = Field(description="12 hexadecimal digits: the owner of everything that is created with the key.")
    name: str
    operator: bool = Field(description="True if the key sees the objects of all owners and may manage keys.")
    quota: QuotaResponse
    created_at: datetime
    expires_at: datetime | None = Field(description="Time from which requests with the key are refused. Null: never.")

    @classmethod
    def of(cls, record: KeyRecord) -> KeyResponse:
        """Return the response for a key."""
        return cls(
            id=record.id,
            name=record.name,
            operator=record.operator,
            quota=QuotaResponse.of(record.quota),
            created_at=record.created_at,
            expires_at=record.expires_at,
        )


class NewKeyResponse(KeyResponse):
    """A new key with its secret."""

    key: str = Field(description="The secret to send with requests. No other response has it: the service stores only its digest.")

    @classmethod
    def with_secret(cls, record: KeyRecord, secret: str) -> NewKeyResponse:
        """Return the response for a new key."""
        return cls(**KeyResponse.of(record).__dict__, key=secret)


class KeysResponse(ResponseModel):
    """A page of keys, oldest first."""

    keys: list[KeyResponse]
    next_cursor: str | None = Field(description="Cursor of the next page; null on the last page.")


class KeysQuery(QueryModel):
    """Page of the list of keys."""

    cursor: Cursor | None = Field(default=None, description="`next_cursor` of the previous page.")
    limit: int = Field(default=100, ge=1, le=1000, description="Largest number of keys.")


class QuotaUsageResponse(ResponseModel):
    """Part of a quota that is in use."""

    sandboxes: int
    cpus: float
    memory_bytes: int
    disk_bytes: int
    executions_per_month: int = Field(description="Runs that began in the current calendar month (UTC).")
    stored_executions: int
    stored_execution_bytes: int
    stored_files: int
    stored_file_bytes: int
    hibernated_sandboxes: int
    snapshots: int
    snapshot_bytes: int
    volumes: int
    volume_bytes: int = Field(description="Sum of the sizes of the volumes.")
    templates: int
    template_bytes: int = Field(description="Size of the root file systems and snapshots of all builds of templates.")
    pools: int


class CurrentKeyResponse(ResponseModel):
    """The key of the request, with its quota and usage."""

    id: str = Field(description="Id of the key; 'local' for clients of the unix socket.")
    name: str
    operator: bool
    quota: QuotaResponse
    used: QuotaUsageResponse
    expires_at: datetime | None = Field(description="Time from which requests with the key are refused. Null: never.")

    @classmethod
    def of(cls, principal: Principal, usage: KeyUsage) -> CurrentKeyResponse:
        """Return the response for a principal."""
        return cls(
            id=principal.owner,
            name=principal.name,
            operator=principal.operator,
            quota=QuotaResponse.of(principal.quota),
            used=QuotaUsageResponse(**{each.name: getattr(usage, each.name) for each in fields(usage)}),
            expires_at=principal.expires_at,
        )


router = APIRouter(prefix="/v1/keys", tags=["keys"], route_class=JsonRoute)


@router.post("", status_code=201, responses=documented_response(NewKeyResponse, "The new key with its secret.", 201))
async def create(body: CreateKeyRequest, request: Request) -> Response:
    """Create a key. Operators only. No other response has the secret."""
    record, secret = await get_node(request).keys.create(
        get_principal(request), body.name, operator=body.operator, quota=body.effective_quota(), expires_at=body.expires_at, format=body.format
    )
    return json_response(NewKeyResponse.with_secret(record, secret), 201)


@router.get("", responses=documented_response(KeysResponse, "A page of keys, oldest first."))
async def list_keys(query: Annotated[KeysQuery, Query()], request: Request) -> Response:
    """List the keys that are not revoked, expired keys included, without their secrets. Operators only."""
    page = await get_node(request).keys.list(get_principal(request), after=pagination.decode_cursor(query.cursor), limit=query.limit)
    return json_response(KeysResponse(keys=[KeyResponse.of(record) for record in page.items], next_cursor=pagination.next_cursor(page)))


@router.get("/current", responses=documented_response(CurrentKeyResponse, "The current key."))
async def get_current(request: Request) -> Response:
    """Get the current key with its quota and usage."""
    principal = get_principal(request)
    return json_response(CurrentKeyResponse.of(principal, await get_node(request).keys.usage(principal)))


@router.get("/{key}", responses=documented_response(KeyResponse, "The key."))
async def get(key: str, request: Request) -> Response:
    """Get a key by its id or name, without its secret. Operators only."""
    return json_response(KeyResponse.of(await get_node(request).keys.get(get_principal(request), key)))


@router.patch("/{key}", responses=documented_response(KeyResponse, "The key with its new values."))
async def update(key: str, body: UpdateKeyRequest, request: Request) -> Response:
    """Change a key's name, quota or expiry. Operators only. When a key expires, its open requests end, and its sandboxes and pools stay."""
    return json_response(KeyResponse.of(await get_node(request).keys.update(get_principal(request), key, body.to_change())))


@router.delete("/{key}", status_code=204, responses=PROBLEM)
async def delete(key: str, request: Request) -> Response:
    """Revoke a key and close its open connections. Operators only. The sandboxes of the key continue; its pools are deleted."""
    await get_node(request).keys.revoke(get_principal(request), key)
    return Response(status_code=204)
