"""Templates: those of the service, by E2B's names and ours; a snapshot is one as well, for whoever has taken it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from sandlot.compat.common import rfc3339_ms
from sandlot.compat.e2b import translate
from sandlot.compat.e2b.control.schemas import TeamQuery, TemplatesQuery
from sandlot.compat.e2b_conventions import ENVD_VERSION, NEXT, e2b_json_response
from sandlot.model.errors import ErrorCode, ForbiddenError, NotFoundError, UnsupportedError
from sandlot.model.records import SnapshotRecord
from sandlot.model.repositories import Position
from sandlot.model.service import TemplateInfo
from sandlot.model.specs import MIB, Limits
from sandlot.web import pagination
from sandlot.web.dependencies import get_node, get_principal

router = APIRouter()

_EPOCH = datetime.fromtimestamp(0, UTC)
_LONG_AGO = rfc3339_ms(_EPOCH)
"""When a template came to be that is part of the service: nobody knows, and clients read a time."""


@router.get("/templates")
async def list_old(query: Annotated[TeamQuery, Query()], request: Request) -> Response:
    """List the service's templates, as older clients ask for it: all at once."""
    _check_team(query)
    return e2b_json_response([_template(each) for each in await _known(request)])


@router.get("/v2/templates")
async def list_templates(query: Annotated[TemplatesQuery, Query()], request: Request) -> Response:
    """List the service's templates, by name."""
    _check_team(query)
    after = pagination.decode_cursor(query.next_token)
    known = sorted((each for each in await _known(request) if after is None or each.name > after.id), key=lambda each: each.name)
    page = known[: query.limit]
    headers = {NEXT: pagination.encode_cursor(Position(_EPOCH, page[-1].name))} if len(known) > len(page) else {}
    return e2b_json_response([_template(each) for each in page], headers=headers)


@router.get("/templates/aliases/{template}")
async def alias(template: str, request: Request) -> Response:
    """Which template a name is."""
    found = await _find(request, template)
    if isinstance(found, SnapshotRecord):
        return e2b_json_response({"templateID": found.id, "public": False})
    return e2b_json_response({"templateID": found.name, "public": True})


@router.get("/templates/{template}")
async def get(template: str, request: Request) -> Response:
    """Look at a template; it has one build."""
    found = await _find(request, template)
    looks = _of_snapshot(found) if isinstance(found, SnapshotRecord) else _template(found)
    return e2b_json_response({**looks, "builds": []})


@router.delete("/templates/{template}")
async def delete(template: str, request: Request) -> Response:
    """Remove a snapshot. The service's templates stay."""
    node, principal = get_node(request), get_principal(request)
    found = await _find(request, template)
    if not isinstance(found, SnapshotRecord):
        raise ForbiddenError(
            f"Template {found.name!r} is the service's own.",
            code=ErrorCode.FORBIDDEN,
            hint="Only snapshots can be removed.",
            fields={"template": found.name},
        )
    await node.snapshots.delete(principal, found.id)
    return Response(status_code=204)


def _check_team(query: TeamQuery) -> None:
    """Whether nobody's templates are asked for: they are the service's."""
    if query.team_id is not None:
        raise UnsupportedError(
            "There are no teams.", code=ErrorCode.UNSUPPORTED, hint="Leave teamID out: templates are the service's.", fields={"field": "teamID"}
        )


async def _known(request: Request) -> Sequence[TemplateInfo]:
    return await get_node(request).templates.list(get_principal(request))


async def _find(request: Request, name: str) -> TemplateInfo | SnapshotRecord:
    """A template by either name, or a snapshot.

    Raises:
        NotFoundError: ``template_not_found``.
    """
    known = await _known(request)
    for each in known:
        if each.name == translate.ours(name):
            return each
    try:
        return await get_node(request).snapshots.get(get_principal(request), translate.plain(name))
    except NotFoundError:
        raise translate.no_template(name, [each.name for each in known]) from None


def _template(template: TemplateInfo) -> dict[str, Any]:
    status = "ready" if template.digest is not None else "building" if template.building else "waiting"
    return _told(template.name, translate.names_of(template.name), template.digest or "", Limits(), _LONG_AGO, status)


def _of_snapshot(record: SnapshotRecord) -> dict[str, Any]:
    names = [] if record.name is None else [record.name]
    return _told(record.id, names, record.id, record.spec.limits, rfc3339_ms(record.created_at), "ready")


def _told(id_: str, names: Sequence[str], build: str, limits: Limits, at: str, status: str) -> dict[str, Any]:
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
