"""Routes of E2B's control plane that build templates: requests, files of steps, states with logs, and tags.

A client requests a build, uploads an archive for each COPY whose files are unknown, starts the build with its steps, and polls the state.

Invariants:
- Templates, builds, tags and files of other keys are not found.
- A build is started once, and only when all of its files are here.
- An upload link needs no API key, works for one archive and ends after ``LINK_S``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response

from sandlot.builds import e2b, operations
from sandlot.builds.dependencies import get_build_runner, get_uploads
from sandlot.builds.plan import Base, BuildPlan, ImageBase, TemplateBase
from sandlot.compat.common import rfc3339_ms
from sandlot.compat.e2b import access, translate
from sandlot.compat.e2b.control.schemas import (
    AssignTagsRequest,
    BuildStatusQuery,
    DeleteTagsRequest,
    RequestBuildRequest,
    StartBuildRequest,
)
from sandlot.compat.e2b_conventions import e2b_json_response
from sandlot.core.node import Node
from sandlot.model.access import Principal
from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError, UnsupportedError
from sandlot.model.specs import MIB, Limits
from sandlot.model.templates import DEFAULT_TEMPLATE_TAG, BuildLine, BuildRecord, BuildStatus
from sandlot.web.body_limits import stores_request_body
from sandlot.web.dependencies import cancel_on_hangup, get_node, get_principal, iter_body
from sandlot.web.json_body import JsonRoute

LINK_S: Final = 3600.0
"""Seconds for which an upload link is valid, the timeout of E2B's client for an upload."""
REASON_LINES: Final = 20
"""Maximum number of log lines that the reason of a failure has."""

STATUSES: Final = {
    BuildStatus.WAITING: "building",  # a client asks once the build is started; E2B's queue is not visible either
    BuildStatus.BUILDING: "building",
    BuildStatus.READY: "ready",
    BuildStatus.FAILED: "error",
    BuildStatus.CANCELLED: "error",
}
_HASH = re.compile(r"[0-9a-f]{64}")
_LEVELS: Final = ("debug", "info", "warn", "error")

router = APIRouter(route_class=JsonRoute)


@router.post("/v3/templates")
async def request_build(body: RequestBuildRequest, request: Request) -> Response:
    """Request a build. A template of this name is created if the key has none."""
    name, tags = build_names(body)
    found, build = await get_node(request).template_builds.request(get_principal(request), name, limits=build_limits(body), tags=tags)
    content = {"templateID": found.id, "buildID": build.id, "public": False, "names": [found.name], "tags": [*build.tags], "aliases": [found.name]}
    return e2b_json_response(content, 202)


@router.post("/v2/templates")
async def request_build_legacy(body: RequestBuildRequest, request: Request) -> Response:
    """Request a build for an older client, which calls the name an alias."""
    return await request_build(body, request)


@router.get("/templates/{template}/files/{digest}")
async def get_upload_link(template: str, digest: str, request: Request) -> Response:
    """Return whether the files of a step are here, and a link to upload them. A client may upload them again."""
    node, principal = get_node(request), get_principal(request)
    await node.template_builds.get(principal, template)
    if not _HASH.fullmatch(digest):
        raise InvalidRequestError(f"{digest[:64]!r} is not a hash of files.", hint="Use a SHA-256 in hexadecimal.", fields={"field": "hash"})
    is_present = await get_uploads(request).find(principal, digest) is not None
    address = f"{request.url.scheme}://{request.headers.get('host') or 'localhost'}{access.PREFIX}{access.UPLOADS}"
    url = f"{address}?{node.tokens.sign_upload(principal, digest, LINK_S)}"
    return e2b_json_response({"present": is_present, "url": url, "headers": {"Content-Type": "application/octet-stream"}}, 201)


@router.put(access.UPLOADS)
@stores_request_body
async def upload(request: Request) -> Response:
    """Store an archive with the files of a step. The link is the credential."""
    principal, name = get_node(request).tokens.principal_of_upload(request.scope["query_string"])
    await cancel_on_hangup(request, get_uploads(request).write(principal, name, iter_body(request)))
    return Response(status_code=200)


@router.post("/v2/templates/{template}/builds/{build}")
async def start_build(template: str, build: str, body: StartBuildRequest, request: Request) -> Response:
    """Start a build. It continues if the client disconnects."""
    node, principal = get_node(request), get_principal(request)
    record = await node.template_builds.get_build(principal, build, template)
    if record.status is not BuildStatus.WAITING:
        raise ConflictError(f"The build {record.id} was started already.", hint="Request another build.", fields={"build": record.id})
    names = dict.fromkeys(step.files_hash for step in body.steps if step.files_hash)
    builds, contexts = get_build_runner(request), await get_uploads(request).require(principal, [*names])
    async with operations.failed_on_error(request, record):
        plan = build_plan(body, contexts)
    await builds.start(principal, record, plan)
    return Response(status_code=202)


@router.get("/templates/{template}/builds/{build}/status")
async def get_build_status(template: str, build: str, query: Annotated[BuildStatusQuery, Query()], request: Request) -> Response:
    """Return the state of a build and a page of its log."""
    node, principal = get_node(request), get_principal(request)
    record = await node.template_builds.get_build(principal, build, template)
    lines = (await node.template_builds.lines(principal, record.id, after=query.logs_offset, limit=query.limit)).items
    content: dict[str, Any] = {
        "templateID": record.template,
        "buildID": record.id,
        "status": STATUSES[record.status],
        "logs": [],
        "logEntries": [log_entry(line) for line in lines if _LEVELS.index(line.level) >= _LEVELS.index(query.level)],
    }
    if record.status in {BuildStatus.FAILED, BuildStatus.CANCELLED}:
        content["reason"] = await _reason(node, principal, record)
    return e2b_json_response(content)


@router.post("/templates/tags")
async def assign_tags(body: AssignTagsRequest, request: Request) -> Response:
    """Let further tags name the build that a tag of a template names."""
    records, principal = get_node(request).template_builds, get_principal(request)
    name, tag = split_name(body.target)
    record = await records.get(principal, name)
    build = record.tags.get(tag or DEFAULT_TEMPLATE_TAG)
    if build is None:
        raise translate.template_not_found(body.target, [record.name])
    await records.set_tags(principal, record.id, dict.fromkeys(body.tags, build))
    return e2b_json_response({"buildID": build, "tags": body.tags}, 201)


@router.delete("/templates/tags")
async def delete_tags(body: DeleteTagsRequest, request: Request) -> Response:
    """Remove tags of a template. Their builds stay."""
    records, principal = get_node(request).template_builds, get_principal(request)
    name, _ = split_name(body.name)
    await records.set_tags(principal, name, dict.fromkeys(body.tags))
    return Response(status_code=204)


@router.get("/templates/{template}/tags")
async def list_tags(template: str, request: Request) -> Response:
    """Return the tags of a template by name. The time is the one at which the build ended."""
    records, principal = get_node(request).template_builds, get_principal(request)
    record = await records.get(principal, template)
    tags = []
    for tag, build in sorted(record.tags.items()):
        found = await records.get_build(principal, build)
        tags.append({"tag": tag, "buildID": build, "createdAt": rfc3339_ms(found.ended_at or found.created_at)})
    return e2b_json_response(tags)


async def _reason(node: Node, principal: Principal, build: BuildRecord) -> dict[str, Any]:
    """Return why a build has failed, with the last lines of its log."""
    after, last = 0, list[BuildLine]()
    while (page := await node.template_builds.lines(principal, build.id, after=after, limit=1000)).items:
        last, after = [*last, *page.items][-REASON_LINES:], page.items[-1].number
        if not page.more:
            break
    lines = [line for line in last if line.step == build.step]
    return {
        "message": translate.build_failure(build.error or "The build was cancelled."),
        "logEntries": [log_entry(line) for line in lines],
        **({"step": build.step} if build.step else {}),
    }


def log_entry(line: BuildLine) -> dict[str, Any]:
    """Return the object of a line of a log. Pure."""
    step = {"step": line.step} if line.step else {}
    return {"timestamp": rfc3339_ms(line.at), "level": line.level.value, "message": line.text, **step}


def split_name(text: str) -> tuple[str, str | None]:
    """Return the name and the tag of ``NAME`` or ``NAME:TAG``; None if there is no tag. Pure.

    Raises:
        InvalidRequestError: The name or the tag is empty.
    """
    name, colon, tag = text.partition(":")
    if not name or (colon and not tag):
        raise InvalidRequestError(f"{text[:64]!r} is not a name of a template.", hint="Use NAME or NAME:TAG.", fields={"field": "name"})
    return name, tag or None


def build_names(body: RequestBuildRequest) -> tuple[str, Sequence[str]]:
    """Return the name of the template and the tags of a requested build. Pure.

    Raises:
        InvalidRequestError: The request has no name, or one without name or tag.
        UnsupportedError: The request names a team.
    """
    if body.team_id is not None:
        raise UnsupportedError(
            "There are no teams.", code=ErrorCode.UNSUPPORTED, hint="Omit teamID: a template belongs to the API key.", fields={"field": "teamID"}
        )
    name, tag = split_name(body.name or body.alias or "")
    return name, [*([tag] if tag else []), *(body.tags or [])]


def build_limits(body: RequestBuildRequest) -> Limits | None:
    """Return the limits of sandboxes of a requested build; None if the request names none. Pure.

    Sandboxes write on top of the template, so the minimum of free space is the limit of the disk.
    """
    if body.cpu_count is None and body.memory_mb is None and not body.min_free_disk_mb:
        return None
    default = Limits()
    return Limits(
        cpus=default.cpus if body.cpu_count is None else float(body.cpu_count),
        memory_bytes=default.memory_bytes if body.memory_mb is None else body.memory_mb * MIB,
        disk_bytes=max(default.disk_bytes, (body.min_free_disk_mb or 0) * MIB),
    )


def build_plan(body: StartBuildRequest, contexts: Mapping[str, Path]) -> BuildPlan:
    """Return the plan of a build. Pure.

    Args:
        body: Request of the client.
        contexts: Hash of the files of a step -> archive.

    Raises:
        InvalidRequestError: The request has no base or two, or a step is invalid.
        UnsupportedError: The request has credentials of a registry.
    """
    steps = [e2b.TemplateStep(step.type, step.args or [], step.files_hash or "", step.force) for step in body.steps]
    return e2b.plan_of(
        _base(body),
        steps,
        contexts=contexts,
        start_command=body.start_command or "",
        ready_command=body.ready_command or "",
        ignores_cache=body.force or any(step.force for step in steps),
    )


def _base(body: StartBuildRequest) -> Base:
    if body.registry is not None:
        raise UnsupportedError(
            "Credentials of registries are not accepted.",
            code=ErrorCode.UNSUPPORTED,
            hint="Ask the operator to add the registry with its credentials, and omit fromImageRegistry.",
            fields={"field": "fromImageRegistry"},
        )
    if bool(body.image) == bool(body.template):
        raise InvalidRequestError("A build needs fromImage or fromTemplate.", hint="Pass exactly one.", fields={"field": "fromImage"})
    return ImageBase(body.image) if body.image else TemplateBase(translate.template_name(body.template or ""))
