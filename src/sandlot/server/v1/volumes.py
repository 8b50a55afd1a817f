"""Volumes: made, listed, looked at, deleted."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from sandlot.server.v1.common import PROBLEM, documented_response, get_node, get_principal, json_response
from sandlot.server.v1.schemas.volumes import VolumeAnswer, VolumeBody, VolumesAnswer

router = APIRouter(prefix="/v1/volumes", tags=["volumes"])


@router.post("", status_code=201, responses=documented_response(VolumeAnswer, "It is there, empty.", 201))
async def create(body: VolumeBody, request: Request) -> Response:
    """Make a volume: files that outlive the sandboxes that have it."""
    return json_response(
        VolumeAnswer.of(await get_node(request).volumes.create(get_principal(request), name=body.name, size_bytes=body.size_bytes)), 201
    )


@router.get("", responses=documented_response(VolumesAnswer, "All of them, oldest first."))
async def list_volumes(request: Request) -> Response:
    """List volumes: your own; for an operator everybody's."""
    found = await get_node(request).volumes.list(get_principal(request))
    return json_response(VolumesAnswer(volumes=[VolumeAnswer.of(volume) for volume in found]))


@router.get("/{volume}", responses=documented_response(VolumeAnswer, "It."))
async def get(volume: str, request: Request) -> Response:
    """Look at a volume, by its id or its name."""
    return json_response(VolumeAnswer.of(await get_node(request).volumes.get(get_principal(request), volume)))


@router.delete("/{volume}", status_code=204, responses=PROBLEM)
async def delete(volume: str, request: Request) -> Response:
    """Delete a volume, by its id or its name, with all that is in it. One that a sandbox has is not: 409."""
    await get_node(request).volumes.delete(get_principal(request), volume)
    return Response(status_code=204)
