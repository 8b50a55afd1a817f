"""Routes of E2B's control plane for templates: those of the service by the names of E2B and Sandlot, and the snapshots of the key."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from sandlot.compat.common import rfc3339_ms
from sandlot.compat.e2b import translate
from sandlot.compat.e2b.control.schemas import TeamQuery, TemplatesQuery
from sandlot.compat.e2b_conventions import ENVD_VERSION, e2b_json_response, page_response
from sandlot.model.errors import ErrorCode, ForbiddenError, NotFoundError, UnsupportedError
from sandlot.model.records import SnapshotRecord
from sandlot.model.repositories import Position
from sandlot.model.service import TemplateInfo
from sandlot.model.specs import MIB, Limits
from sandlot.web import pagination
from sandlot.web.dependencies import get_node, get_principal
from sandlot.web.json_body import JsonRoute

router = APIRouter(route_class=JsonRoute)

_EPOCH = datetime.fromtimestamp(0, UTC)
_UNKNOWN_TIME = rfc3339_ms(_EPOCH)
"""Creation time of the service's templates, which is unknown, but clients parse a time."""


@router.get("/templates")
async def list_templates_legacy(query: Annotated[TeamQuery, Query()], request: Request) -> Response:
    """List all templates of the service for an older client."""
    _check_team(query)
    return e2b_json_response([_template_object(template) for template in await _list_templates(request)])


@router.get("/v2/templates")
async def list_templates(query: Annotated[TemplatesQuery, Query()], request: Request) -> Response:
    """List one page of the service's templates, by name."""
    _check_team(query)
    after = pagination.decode_cursor(query.next_token)
    templates = sorted(
        (template for template in await _list_templates(request) if after is None or template.name > after.id),
        key=lambda template: template.name,
    )
    return page_response(templates, query.limit, _template_object, lambda template: Position(_EPOCH, template.name))


@router.get("/templates/aliases/{template}")
async def get_template_alias(template: str, request: Request) -> Response:
    """Return the id of a template by one of its names."""
    found = await _find(request, template)
    if isinstance(found, SnapshotRecord):
        return e2b_json_response({"templateID": found.id, "public": False})
    return e2b_json_response({"templateID": found.name, "public": True})


@router.get("/templates/{template}")
async def get_template(template: str, request: Request) -> Response:
    """Return a template, without builds."""
    found = await _find(request, template)
    template_object = _snapshot_object(found) if isinstance(found, SnapshotRecord) else _template_object(found)
    return e2b_json_response({**template_object, "builds": []})


@router.delete("/templates/{template}")
async def delete_template(template: str, request: Request) -> Response:
    """Delete a snapshot. Templates of the service cannot be deleted."""
    found = await _find(request, template)
    if not isinstance(found, SnapshotRecord):
        raise ForbiddenError(
            f"Template {found.name!r} is the service's own.",
            code=ErrorCode.FORBIDDEN,
            hint="Only snapshots can be deleted.",
            fields={"template": found.name},
        )
    await get_node(request).snapshots.delete(get_principal(request), found.id)
    return Response(status_code=204)


def _check_team(query: TeamQuery) -> None:
    if query.team_id is not None:
        raise UnsupportedError(
            "There are no teams.", code=ErrorCode.UNSUPPORTED, hint="Omit teamID: all templates belong to the service.", fields={"field": "teamID"}
        )


async def _list_templates(request: Request) -> Sequence[TemplateInfo]:
    return await get_node(request).templates.list(get_principal(request))


async def _find(request: Request, name: str) -> TemplateInfo | SnapshotRecord:
    """Return a template by the name of E2B or Sandlot, or a snapshot.

    Raises:
        NotFoundError: There is neither (code ``template_not_found``).
    """
    templates = await _list_templates(request)
    for template in templates:
        if template.name == translate.template_name(name):
            return template
    try:
        return await get_node(request).snapshots.get(get_principal(request), translate.without_tag(name))
    except NotFoundError:
        raise translate.template_not_found(name, [template.name for template in templates]) from None


def _template_object(template: TemplateInfo) -> dict[str, Any]:
    status = "ready" if template.digest is not None else "building" if template.building else "waiting"
    return _object(template.name, translate.names_of(template.name), template.digest or "", Limits(), _UNKNOWN_TIME, status)


def _snapshot_object(record: SnapshotRecord) -> dict[str, Any]:
    names = [] if record.name is None else [record.name]
    return _object(record.id, names, record.id, record.spec.limits, rfc3339_ms(record.created_at), "ready")


def _object(id_: str, names: Sequence[str], build: str, limits: Limits, at: str, status: str) -> dict[str, Any]:
    return {
        "templateID": id_,
        "buildID": build,
        "cpuCount": max(1, round(limits.cpus)),
        "memoryMB": limits.memory_bytes // MIB,
        "diskSizeMB": limits.disk_bytes // MIB,
        "public": True,
        "aliases": list(names),
        "names": list(names),
        "createdAt": at,
        "updatedAt": at,
        "createdBy": None,
        "lastSpawnedAt": None,
        "spawnCount": 0,
        "buildCount": 1,
        "envdVersion": ENVD_VERSION,
        "buildStatus": status,
    }
