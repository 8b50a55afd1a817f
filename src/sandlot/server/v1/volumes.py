"""Volumes: made, listed, looked at, deleted."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from sandlot.model.volumes import DEFAULT_SIZE_BYTES, MAX_SIZE_BYTES, MIN_SIZE_BYTES, VolumeInfo
from sandlot.server.v1.common import PROBLEM, documented_response
from sandlot.server.v1.sandboxes import AttachVolumeRequest, SandboxResponse
from sandlot.web.dependencies import SandboxRoute, get_node, get_principal
from sandlot.web.models import QueryModel, RequestModel, ResponseModel, Text, json_response


class CreateVolumeRequest(RequestModel):
    """A volume to make."""

    name: Text = Field(
        description="What to call it: up to 63 lower-case letters, digits, '_' and '-'; no two of one key's have one name.", examples=["datasets"]
    )
    size_bytes: int = Field(default=DEFAULT_SIZE_BYTES, ge=MIN_SIZE_BYTES, le=MAX_SIZE_BYTES, description="What may be written to it.")


class DetachQuery(QueryModel):
    """A volume that a sandbox is to have no more."""

    path: Text = Field(description="The folder that it is in the sandbox; or the volume's name or id.", examples=["/data"])


class VolumeResponse(ResponseModel):
    """A volume."""

    id: str
    name: str
    size_bytes: int = Field(description="What may be written to it.")
    used_bytes: int = Field(description="What is in it; of one that no sandbox has, what was when the last one let go of it.")
    attached: list[str] = Field(description="The ids of the sandboxes that have it, hibernated ones included.")
    created_at: datetime

    @classmethod
    def of(cls, volume: VolumeInfo) -> VolumeResponse:
        """What is told of it."""
        return cls(
            id=volume.id,
            name=volume.name,
            size_bytes=volume.size_bytes,
            used_bytes=volume.used_bytes,
            attached=list(volume.attached),
            created_at=volume.created_at,
        )


class VolumesResponse(ResponseModel):
    """All volumes, oldest first."""

    volumes: list[VolumeResponse]


router = APIRouter(tags=["volumes"], route_class=SandboxRoute)


@router.post("/v1/volumes", status_code=201, responses=documented_response(VolumeResponse, "It is there, empty.", 201))
async def create(body: CreateVolumeRequest, request: Request) -> Response:
    """Make a volume: files that outlive the sandboxes that have it."""
    return json_response(
        VolumeResponse.of(await get_node(request).volumes.create(get_principal(request), name=body.name, size_bytes=body.size_bytes)), 201
    )


@router.get("/v1/volumes", responses=documented_response(VolumesResponse, "All of them, oldest first."))
async def list_volumes(request: Request) -> Response:
    """List volumes: your own; for an operator everybody's."""
    found = await get_node(request).volumes.list(get_principal(request))
    return json_response(VolumesResponse(volumes=[VolumeResponse.of(volume) for volume in found]))


@router.get("/v1/volumes/{volume}", responses=documented_response(VolumeResponse, "It."))
async def get(volume: str, request: Request) -> Response:
    """Look at a volume, by its id or its name."""
    return json_response(VolumeResponse.of(await get_node(request).volumes.get(get_principal(request), volume)))


@router.delete("/v1/volumes/{volume}", status_code=204, responses=PROBLEM)
async def delete(volume: str, request: Request) -> Response:
    """Delete a volume, by its id or its name, with all that is in it. One that a sandbox has is not: 409."""
    await get_node(request).volumes.delete(get_principal(request), volume)
    return Response(status_code=204)


@router.post("/v1/sandboxes/{sandbox}/volumes", responses=documented_response(SandboxResponse, "It has it."))
async def attach(sandbox: str, body: AttachVolumeRequest, request: Request) -> Response:
    """Attach a volume to a sandbox that runs; one that rests is resumed for it. Again and again the same. Where its isolation cannot: 501."""
    return json_response(SandboxResponse.of(await get_node(request).sandboxes.attach_volume(get_principal(request), sandbox, body.asked())))


@router.delete("/v1/sandboxes/{sandbox}/volumes", responses=documented_response(SandboxResponse, "It has it no more."))
async def detach(sandbox: str, query: Annotated[DetachQuery, Query()], request: Request) -> Response:
    """Detach a volume from a sandbox; what is in it stays. While anything inside has a file of it open, or works in it: 409."""
    return json_response(SandboxResponse.of(await get_node(request).sandboxes.detach_volume(get_principal(request), sandbox, query.path)))
