"""Routes of E2B's control plane for templates: those of the key, those of the service by the names of E2B and Sandlot, and snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response

from sandlot.builds import operations
from sandlot.compat.common import rfc3339_ms
from sandlot.compat.e2b import translate
from sandlot.compat.e2b.control.builds import split_name
from sandlot.compat.e2b.control.schemas import TeamQuery, TemplatesQuery
from sandlot.compat.e2b_conventions import ENVD_VERSION, e2b_json_response, page_response
from sandlot.model.errors import ErrorCode, ForbiddenError, InvalidRequestError, NotFoundError, UnsupportedError
from sandlot.model.records import SnapshotRecord
from sandlot.model.repositories import Position
from sandlot.model.service import TemplateInfo
from sandlot.model.specs import MIB, Limits
from sandlot.model.templates import BuildRecord, BuildStatus, TemplateRecord
from sandlot.web import pagination
from sandlot.web.dependencies import get_node, get_principal
from sandlot.web.json_body import JsonRoute

router = APIRouter(route_class=JsonRoute)

PAGE: Final = 1000
STATUSES: Final = {
    BuildStatus.WAITING: "waiting",
    BuildStatus.BUILDING: "building",
    BuildStatus.READY: "ready",
    BuildStatus.FAILED: "error",
    BuildStatus.CANCELLED: "error",
}
_EPOCH = datetime.fromtimestamp(0, UTC)
_UNKNOWN_TIME = rfc3339_ms(_EPOCH)
"""Creation time of the service's templates, which is unknown, but clients parse a time."""


@dataclass(frozen=True, slots=True)
class UserTemplate:
    """A template of a user.

    Args:
        record: The template.
        builds: Its builds, newest first.
    """

    record: TemplateRecord
    builds: Sequence[BuildRecord]

    @property
    def name(self) -> str:
        """Name of the template."""
        return self.record.name


@router.get("/templates")
async def list_templates_legacy(query: Annotated[TeamQuery, Query()], request: Request) -> Response:
    """List all templates of the key and of the service for an older client."""
    _check_team(query)
    return e2b_json_response([_listed_object(template) for template in await _list_templates(request)])


@router.get("/v2/templates")
async def list_templates(query: Annotated[TemplatesQuery, Query()], request: Request) -> Response:
    """List one page of the templates of the key and of the service, by name."""
    _check_team(query)
    after = pagination.decode_cursor(query.next_token)
    templates = [template for template in await _list_templates(request) if after is None or _key(template) > after.id]
    return page_response(templates, query.limit, _listed_object, lambda template: Position(_EPOCH, _key(template)))


@router.get("/templates/aliases/{template}")
async def get_template_alias(template: str, request: Request) -> Response:
    """Return the id of a template by one of its names."""
    found = await _find(request, template)
    if isinstance(found, SnapshotRecord):
        return e2b_json_response({"templateID": found.id, "public": False})
    if isinstance(found, UserTemplate):
        return e2b_json_response({"templateID": found.record.id, "public": False})
    return e2b_json_response({"templateID": found.name, "public": True})


@router.get("/templates/{template}")
async def get_template(template: str, request: Request) -> Response:
    """Return a template with its builds. Templates of the service and snapshots have none."""
    found = await _find(request, template)
    if isinstance(found, UserTemplate):
        return e2b_json_response({**_user_object(found), "builds": [_build_object(build) for build in found.builds]})
    template_object = _snapshot_object(found) if isinstance(found, SnapshotRecord) else _template_object(found)
    return e2b_json_response({**template_object, "builds": []})


@router.delete("/templates/{template}")
async def delete_template(template: str, request: Request) -> Response:
    """Delete a template of the key, whose open builds are cancelled, or a snapshot. Templates of the service cannot be deleted."""
    found, principal = await _find(request, template), get_principal(request)
    if isinstance(found, UserTemplate):
        await operations.delete_template(request, principal, found.record.id)
    elif isinstance(found, SnapshotRecord):
        await get_node(request).snapshots.delete(principal, found.id)
    else:
        raise ForbiddenError(
            f"Template {found.name!r} is the service's own.",
            code=ErrorCode.FORBIDDEN,
            hint="Only templates of the key and snapshots can be deleted.",
            fields={"template": found.name},
        )
    return Response(status_code=204)


def _check_team(query: TeamQuery) -> None:
    if query.team_id is not None:
        raise UnsupportedError(
            "There are no teams.", code=ErrorCode.UNSUPPORTED, hint="Omit teamID: all templates belong to the service.", fields={"field": "teamID"}
        )


async def _list_templates(request: Request) -> list[TemplateInfo | UserTemplate]:
    """Return the templates of users that the key sees, and the templates of the service whose names the key does not use itself. By name."""
    node, principal = get_node(request), get_principal(request)
    own: list[TemplateRecord] = []
    before = None
    while True:
        page = await node.template_builds.list(principal, before=before, limit=PAGE)
        own += page.items
        if not page.more:
            break
        before = Position(page.items[-1].created_at, page.items[-1].id)
    names = {record.name for record in own if record.owner == principal.owner}
    others = [template for template in await node.templates.list(principal) if template.name not in names]
    return sorted([*[await _user_template(request, record) for record in own], *others], key=_key)


async def _user_template(request: Request, record: TemplateRecord) -> UserTemplate:
    builds = await get_node(request).template_builds.list_builds(get_principal(request), template=record.id, limit=PAGE)
    return UserTemplate(record, builds.items)


async def _find(request: Request, name: str) -> TemplateInfo | UserTemplate | SnapshotRecord:
    """Return a template by its id, by its name and the name of a tag, by the name of E2B or Sandlot, or a snapshot.

    Raises:
        NotFoundError: There is none (code ``template_not_found``).
    """
    node, principal = get_node(request), get_principal(request)
    try:
        plain, tag = split_name(name)
        record = await node.template_builds.get(principal, plain)
        if tag is None or tag == "latest" or tag in record.tags:
            return await _user_template(request, record)
    except (NotFoundError, InvalidRequestError):
        pass
    templates = await node.templates.list(principal)
    for template in templates:
        if template.name == translate.template_name(name):
            return template
    try:
        return await node.snapshots.get(principal, translate.without_tag(name))
    except NotFoundError:
        raise translate.template_not_found(name, [template.name for template in templates]) from None


def _key(template: TemplateInfo | UserTemplate) -> str:
    return f"{template.name}/{template.record.id}" if isinstance(template, UserTemplate) else template.name


def _listed_object(template: TemplateInfo | UserTemplate) -> dict[str, Any]:
    return _user_object(template) if isinstance(template, UserTemplate) else _template_object(template)


def _user_object(template: UserTemplate) -> dict[str, Any]:
    record, newest = template.record, template.builds[0] if template.builds else None
    ready = next((build for build in template.builds if build.status is BuildStatus.READY), newest)
    status = "waiting" if newest is None else STATUSES[newest.status]
    content = _object(record.id, [record.name], "" if ready is None else ready.id, record.limits, rfc3339_ms(record.created_at), status)
    return {**content, "public": False, "updatedAt": rfc3339_ms(record.updated_at), "buildCount": len(template.builds)}


def _build_object(build: BuildRecord) -> dict[str, Any]:
    ended = {} if build.ended_at is None else {"finishedAt": rfc3339_ms(build.ended_at)}
    return {
        "buildID": build.id,
        "status": STATUSES[build.status],
        "createdAt": rfc3339_ms(build.created_at),
        "updatedAt": rfc3339_ms(build.ended_at or build.started_at or build.created_at),
        "cpuCount": max(1, round(build.limits.cpus)),
        "memoryMB": build.limits.memory_bytes // MIB,
        "diskSizeMB": build.limits.disk_bytes // MIB,
        "envdVersion": ENVD_VERSION,
        **ended,
    }


def _template_object(template: TemplateInfo) -> dict[str, Any]:
    status = "ready" if template.digest is not None else "building" if template.building else "waiting"
    return _object(template.name, translate.names_of(template.name), template.digest or "", template.limits, _UNKNOWN_TIME, status)


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
