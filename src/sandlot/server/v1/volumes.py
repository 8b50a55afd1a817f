"""Volumes: schemas and routes, and their mounts in running sandboxes.

Invariant: A started attach or detach completes if the client disconnects.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from sandlot.model.volumes import DEFAULT_SIZE_BYTES, MAX_SIZE_BYTES, MIN_SIZE_BYTES, VolumeInfo
from sandlot.server.v1.common import PROBLEM, documented_response
from sandlot.server.v1.sandboxes import AttachVolumeRequest, SandboxResponse
from sandlot.web.dependencies import SandboxNameRoute, get_node, get_principal
from sandlot.web.models import QueryModel, RequestModel, ResponseModel, Text, json_response


class CreateVolumeRequest(RequestModel):
    """Options of a new volume."""

    name: Text = Field(
        description="Name, unique among the volumes of the key: up to 63 lower-case letters, digits, `_` and `-`.", examples=["datasets"]
    )
    size_bytes: int = Field(default=DEFAULT_SIZE_BYTES, ge=MIN_SIZE_BYTES, le=MAX_SIZE_BYTES, description="Size of the volume.")


class DetachQuery(QueryModel):
    """Volume to unmount."""

    path: Text = Field(description="Mount point in the sandbox, or name or id of the volume.", examples=["/data"])


class VolumeResponse(ResponseModel):
    """A volume."""

    id: str
    name: str
    size_bytes: int = Field(description="Size of the volume.")
    used_bytes: int = Field(description="Used space. Of a volume that is not mounted: as of its last unmount.")
    attached: list[str] = Field(description="Ids of the sandboxes that mount the volume, including hibernated ones.")
    created_at: datetime

    @classmethod
    def of(cls, volume: VolumeInfo) -> VolumeResponse:
        """Return the response for a volume."""
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


router = APIRouter(tags=["volumes"], route_class=SandboxNameRoute)


@router.post("/v1/volumes", status_code=201, responses=documented_response(VolumeResponse, "The new, empty volume.", 201))
async def create(body: CreateVolumeRequest, request: Request) -> Response:
    """Create a volume of a given size."""
    return json_response(
        VolumeResponse.of(await get_node(request).volumes.create(get_principal(request), name=body.name, size_bytes=body.size_bytes)), 201
    )


@router.get("/v1/volumes", responses=documented_response(VolumesResponse, "All volumes, oldest first."))
async def list_volumes(request: Request) -> Response:
    """List volumes of the caller and the space they use; operators get those of all keys."""
    found = await get_node(request).volumes.list(get_principal(request))
    return json_response(VolumesResponse(volumes=[VolumeResponse.of(volume) for volume in found]))


@router.get("/v1/volumes/{volume}", responses=documented_response(VolumeResponse, "The volume."))
async def get(volume: str, request: Request) -> Response:
    """Get a volume."""
    return json_response(VolumeResponse.of(await get_node(request).volumes.get(get_principal(request), volume)))


@router.delete("/v1/volumes/{volume}", status_code=204, responses=PROBLEM)
async def delete(volume: str, request: Request) -> Response:
    """Delete a volume and its content. The request is refused with 409 while a sandbox mounts the volume."""
    await get_node(request).volumes.delete(get_principal(request), volume)
    return Response(status_code=204)


@router.post("/v1/sandboxes/{sandbox}/volumes", responses=documented_response(SandboxResponse, "The sandbox."))
async def attach(sandbox: str, body: AttachVolumeRequest, request: Request) -> Response:
    """Mount a volume in a sandbox. A suspended sandbox is resumed. A second call has no effect. Isolations without support respond with 501."""
    return json_response(SandboxResponse.of(await get_node(request).sandboxes.attach_volume(get_principal(request), sandbox, body.mount())))


@router.delete("/v1/sandboxes/{sandbox}/volumes", responses=documented_response(SandboxResponse, "The sandbox."))
async def detach(sandbox: str, query: Annotated[DetachQuery, Query()], request: Request) -> Response:
    """Unmount a volume from a sandbox; its content stays. The request is refused with 409 while a process in the sandbox uses the volume."""
    return json_response(SandboxResponse.of(await get_node(request).sandboxes.detach_volume(get_principal(request), sandbox, query.path)))
