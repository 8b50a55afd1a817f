"""The routes of PandaStack's API, below ``/pandastack``: sandboxes as wholes, snapshots, volumes, templates.

Those that reach inside a sandbox are in ``within.py``.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from sandlot.compat.common import find_live_sandbox
from sandlot.compat.pandastack import operations, translate, within
from sandlot.compat.pandastack.schemas import (
    BuildsAnswer,
    CreateBody,
    ForkBody,
    ForkTreeBody,
    LifecycleBody,
    MeAnswer,
    PromoteBody,
    SandboxesAnswer,
    SnapshotsAnswer,
    SnapshotsQuery,
    StatusAnswer,
    TemplateAnswer,
    TemplatesAnswer,
    VolumeBody,
    VolumesAnswer,
)
from sandlot.compat.vendor import not_supported
from sandlot.model.errors import ErrorCode, ForbiddenError, NotFoundError
from sandlot.model.specs import MIB
from sandlot.web.dependencies import cancel_on_disconnect, get_node, get_principal
from sandlot.web.models import json_response

router = APIRouter()
router.routes.extend(within.router.routes)


@router.post("/v1/sandboxes")
async def create(body: CreateBody, request: Request) -> Response:
    """Make a sandbox. A client that goes away meanwhile leaves none behind."""
    return json_response(await cancel_on_disconnect(request, operations.create(get_node(request), get_principal(request), body)), 201)


@router.get("/v1/sandboxes")
async def list_sandboxes(request: Request) -> Response:
    """All sandboxes, oldest first."""
    return json_response(SandboxesAnswer(items=await operations.listing(get_node(request), get_principal(request))))


@router.get("/v1/sandboxes/{sandbox}")
async def get(sandbox: str, request: Request) -> Response:
    """One sandbox; looking at it does not wake it."""
    return json_response(translate.sandbox(await find_live_sandbox(get_node(request), get_principal(request), sandbox)))


@router.delete("/v1/sandboxes/{sandbox}")
async def delete(sandbox: str, request: Request) -> Response:
    """End a sandbox; again and again the same."""
    await get_node(request).sandboxes.kill(get_principal(request), sandbox)
    return Response(status_code=204)


@router.get("/v1/sandboxes/{sandbox}/lifecycle")
async def lifecycle(sandbox: str, request: Request) -> Response:
    """How long it lives."""
    return json_response(translate.lifecycle(await find_live_sandbox(get_node(request), get_principal(request), sandbox)))


@router.patch("/v1/sandboxes/{sandbox}/lifecycle")
async def change_lifecycle(sandbox: str, body: LifecycleBody, request: Request) -> Response:
    """Change how long it lives."""
    return json_response(await operations.change(get_node(request), get_principal(request), sandbox, body))


@router.post("/v1/sandboxes/{sandbox}/pause")
async def pause(sandbox: str, request: Request) -> Response:
    """Freeze it where it is; the next request thaws it."""
    await get_node(request).sandboxes.pause(get_principal(request), sandbox)
    return Response(status_code=204)


@router.post("/v1/sandboxes/{sandbox}/resume")
async def resume(sandbox: str, request: Request) -> Response:
    """Let it go on where it was; one that runs is left as it is."""
    await get_node(request).sandboxes.resume(get_principal(request), sandbox)
    return Response(status_code=204)


@router.post("/v1/sandboxes/{sandbox}/hibernate")
async def hibernate(sandbox: str, request: Request) -> Response:
    """Write it to the disk and give its memory back; the next request wakes it."""
    return json_response(StatusAnswer(status=translate.status(await get_node(request).sandboxes.hibernate(get_principal(request), sandbox))))


@router.post("/v1/sandboxes/{sandbox}/wake")
async def wake(sandbox: str, request: Request) -> Response:
    """Let it go on where it was; one that runs is left as it is."""
    return json_response(StatusAnswer(status=translate.status(await get_node(request).sandboxes.resume(get_principal(request), sandbox))))


@router.post("/v1/sandboxes/{sandbox}/fork")
async def fork(sandbox: str, request: Request, body: ForkBody | None = None) -> Response:
    """Make another one that is what it is at this moment. A client that goes away meanwhile leaves none behind."""
    asked = body or ForkBody()
    made = await cancel_on_disconnect(request, operations.fork(get_node(request), get_principal(request), sandbox, 1, asked.metadata))
    return json_response(made.children[0], 201)


@router.post("/v1/sandboxes/{sandbox}/fork-tree")
async def fork_tree(sandbox: str, request: Request, body: ForkTreeBody | None = None) -> Response:
    """Make several, all or none."""
    asked = body or ForkTreeBody()
    return json_response(
        await cancel_on_disconnect(request, operations.fork(get_node(request), get_principal(request), sandbox, asked.count, asked.metadata)), 201
    )


@router.post("/v1/sandboxes/{sandbox}/promote")
async def promote(sandbox: str, request: Request, body: PromoteBody | None = None) -> Response:
    """Keep one fork, and end the others of its tree where that is asked."""
    return json_response(await operations.promote(get_node(request), get_principal(request), sandbox, body or PromoteBody()))


@router.post("/v1/sandboxes/{sandbox}/snapshots")
async def take_snapshot(sandbox: str, request: Request) -> Response:
    """Keep what it is at this moment, memory and files. A client that goes away meanwhile leaves no snapshot behind."""
    made = await cancel_on_disconnect(request, get_node(request).snapshots.create(get_principal(request), sandbox))
    return json_response(translate.snapshot(made), 201)


@router.get("/v1/snapshots")
async def list_snapshots(query: Annotated[SnapshotsQuery, Query()], request: Request) -> Response:
    """All snapshots, newest first."""
    return json_response(SnapshotsAnswer(snapshots=await operations.snapshots(get_node(request), get_principal(request), query.sandbox_id)))


@router.get("/v1/snapshots/{snapshot}")
async def get_snapshot(snapshot: str, request: Request) -> Response:
    """One snapshot."""
    return json_response(translate.snapshot(await get_node(request).snapshots.get(get_principal(request), snapshot)))


@router.delete("/v1/snapshots/{snapshot}")
async def delete_snapshot(snapshot: str, request: Request) -> Response:
    """Remove a snapshot; what was made from it lives on."""
    await get_node(request).snapshots.delete(get_principal(request), snapshot)
    return Response(status_code=204)


@router.post("/v1/volumes")
async def create_volume(body: VolumeBody, request: Request) -> Response:
    """Make a volume."""
    made = await get_node(request).volumes.create(get_principal(request), name=body.name, size_bytes=body.size_mb * MIB)
    return json_response(translate.volume(made), 201)


@router.get("/v1/volumes")
async def list_volumes(request: Request) -> Response:
    """All volumes."""
    found = await get_node(request).volumes.list(get_principal(request))
    return json_response(VolumesAnswer(items=[translate.volume(each) for each in found]))


@router.get("/v1/volumes/{volume}")
async def get_volume(volume: str, request: Request) -> Response:
    """One volume, by its name."""
    return json_response(translate.volume(await get_node(request).volumes.get(get_principal(request), volume)))


@router.delete("/v1/volumes/{volume}")
async def delete_volume(volume: str, request: Request) -> Response:
    """Remove a volume that no sandbox has."""
    await get_node(request).volumes.delete(get_principal(request), volume)
    return Response(status_code=204)


@router.get("/v1/templates")
async def list_templates(request: Request) -> Response:
    """What a sandbox can be started from."""
    found = await get_node(request).templates.list(get_principal(request))
    return json_response(TemplatesAnswer(items=[translate.template(each) for each in found]))


@router.get("/v1/templates/builds")
async def list_builds() -> Response:
    """Nobody asks for builds here, so there are none."""
    return json_response(BuildsAnswer())


@router.get("/v1/templates/builds/{build}")
async def get_build(build: str) -> Response:
    """There is none."""
    raise NotFoundError(f"There is no build {build[:64]!r}.", code=ErrorCode.NOT_FOUND, hint="Templates are the operator's.")


@router.get("/v1/templates/{template}")
async def get_template(template: str, request: Request) -> Response:
    """One template."""
    return json_response(await _template(request, template))


@router.delete("/v1/templates/{template}")
async def delete_template(template: str, request: Request) -> Response:
    """Templates are the operator's: nobody else's are there to be removed."""
    found = await _template(request, template)
    raise ForbiddenError(f"Template {found.name!r} is the service's own.", code=ErrorCode.FORBIDDEN, hint="It cannot be removed.")


@router.get("/v1/me")
async def me(request: Request) -> Response:
    """Whose key it is."""
    principal = get_principal(request)
    return json_response(MeAnswer(id=principal.owner, user_id=principal.owner, name=principal.name))


async def _template(request: Request, name: str) -> TemplateAnswer:
    templates, principal = get_node(request).templates, get_principal(request)
    await templates.find(principal, name)
    return next(translate.template(each) for each in await templates.list(principal) if each.name == name)


_APPS = "Run what you would deploy in a persistent sandbox."
_KEYS = "Make keys where the service runs: sandlot keys create --name NAME."
_BUILDS = "Templates are made by the operator of the service; install what is missing in a sandbox and take a snapshot of it."
for _path, _why in (
    ("/v1/apps", _APPS),
    ("/v1/preview-repos", _APPS),
    ("/v1/functions", _APPS),
    ("/v1/databases", _APPS),
    ("/v1/schedules", "Call this API by a scheduler of your own."),
    ("/v1/me/tokens", _KEYS),
):
    not_supported(router, "GET", _path, _why)
    not_supported(router, "POST", _path, _why)
not_supported(router, "POST", "/v1/templates/build", _BUILDS)
