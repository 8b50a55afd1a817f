"""Volumes: made, listed, looked at, deleted."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from sandlot.server.native.common import PROBLEM, also, node_of, principal_of, reply
from sandlot.server.native.volumes.schemas import VolumeAnswer, VolumeBody, VolumesAnswer

router = APIRouter(prefix="/v1/volumes", tags=["volumes"])


@router.post("", status_code=201, responses=also(VolumeAnswer, "It is there, empty.", 201))
async def create(body: VolumeBody, request: Request) -> Response:
    """Make a volume: files that outlive the sandboxes that have it."""
    return reply(VolumeAnswer.of(await node_of(request).volumes.create(principal_of(request), name=body.name, size_bytes=body.size_bytes)), 201)


@router.get("", responses=also(VolumesAnswer, "All of them, oldest first."))
async def list_volumes(request: Request) -> Response:
    """List volumes: your own; for an operator everybody's."""
    found = await node_of(request).volumes.list(principal_of(request))
    return reply(VolumesAnswer(volumes=[VolumeAnswer.of(volume) for volume in found]))


@router.get("/{volume}", responses=also(VolumeAnswer, "It."))
async def get(volume: str, request: Request) -> Response:
    """Look at a volume, by its id or its name."""
    return reply(VolumeAnswer.of(await node_of(request).volumes.get(principal_of(request), volume)))


@router.delete("/{volume}", status_code=204, responses=PROBLEM)
async def delete(volume: str, request: Request) -> Response:
    """Delete a volume, by its id or its name, with all that is in it. One that a sandbox has is not: 409."""
    await node_of(request).volumes.delete(principal_of(request), volume)
    return Response(status_code=204)
