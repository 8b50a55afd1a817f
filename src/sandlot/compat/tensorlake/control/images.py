"""Routes of images: builds on the server, their contexts, and images by name.

A client admits a build, uploads the context as a plain tar archive, seals it with its digest, which starts the build, and polls the state. The import
of an image has no context. An image is a template of the key. Images of the older client, which it builds in a sandbox that it drives, do not exist.

Invariants:
- Builds, contexts and images of other keys are not found.
- A context is used only if its digest is the one that the client has sealed.
- An admission is found again by the idempotency key of its request.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import posixpath
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import Header, Query, Request, Response
from starlette.responses import JSONResponse

from sandlot.builds import dockerfile, operations
from sandlot.builds.dependencies import get_build_runner, get_uploads
from sandlot.builds.plan import Base, BuildPlan, ImageBase, TemplateBase
from sandlot.compat.common import rfc3339_ms
from sandlot.compat.tensorlake import translate
from sandlot.compat.tensorlake.addressing import PREFIX, router
from sandlot.compat.tensorlake.control.schemas import (
    BuildImageRequest,
    CancelBuildRequest,
    ImagesQuery,
    LegacyImagesQuery,
    SealRequest,
)
from sandlot.compat.tensorlake.translate import milliseconds, not_possible
from sandlot.core.node import Node
from sandlot.model.access import Principal
from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError, NotFoundError
from sandlot.model.images import parse_reference
from sandlot.model.repositories import Position
from sandlot.model.specs import MIB, Limits
from sandlot.model.templates import DEFAULT_TEMPLATE_TAG, BuildRecord, BuildStatus, TemplateRecord
from sandlot.web import pagination
from sandlot.web.body_limits import stores_request_body
from sandlot.web.dependencies import cancel_on_hangup, get_node, get_principal, iter_body

UPLOADS: Final = "/images/v4/uploads"
"""Path of contexts, below the prefix. A request has a signed query in place of an API key."""
LINK_S: Final = 3600.0
DEADLINE: Final = timedelta(hours=24)
"""Time after the request of a build at which the client stops to wait for it. The service ends builds earlier."""
_DOCKERFILE: Final = "dockerfile"
_STATUSES: Final = {
    BuildStatus.WAITING: "pending",
    BuildStatus.BUILDING: "running",
    BuildStatus.READY: "succeeded",
    BuildStatus.FAILED: "failed",
    BuildStatus.CANCELLED: "cancelled",
}


@router.post("/images/v4/builds")
async def admit_build(body: BuildImageRequest, request: Request, idempotency_key: Annotated[str | None, Header()] = None) -> Response:
    """Admit a build, and return a link for its context. The import of an image starts at once."""
    node, principal = get_node(request), get_principal(request)
    builds = get_build_runner(request)
    check_supported(body)
    request_id = idempotency_key or ""
    if request_id and (admitted := await _load(request, _request_name(request_id))) is not None:
        return await _build_response(request, await node.template_builds.get_build(principal, admitted["build"]), 201)
    builds.check_room(principal)
    limits = Limits(disk_bytes=body.disk_mb * MIB) if body.disk_mb else None
    try:
        _, build = await node.template_builds.request(principal, body.name.lower(), limits=limits, alone=True)
    except ConflictError as error:
        if "build" not in error.fields:
            raise
        content = {"error": f"The image {body.name} has an unfinished build.", "code": "image_build_in_progress", "image_name": body.name}
        active = await node.template_builds.get_build(principal, str(error.fields["build"]))
        content |= {"active_build_id": active.id, "active_kind": _DOCKERFILE, "active_status": _STATUSES[active.status]}
        return JSONResponse(content, 409)
    async with operations.cancelled_on_failure(request, principal, build):
        stored = {**body.model_dump(), "client_request_id": request_id, "build": build.id}
        await _store(request, _build_name(build.id), stored)
        if request_id:
            await _store(request, _request_name(request_id), stored)
        if body.kind == "import":
            plan = await _plan(request, f"FROM {parse_reference(body.image_ref or '')}\n", {}, {})
            await builds.start(principal, build, plan)
    return await _build_response(request, build, 201)


@router.put(UPLOADS)
@stores_request_body
async def upload_context(request: Request) -> Response:
    """Store the context of a build. The link is the credential."""
    principal, name = get_node(request).tokens.principal_of_upload(request.scope["query_string"])
    await cancel_on_hangup(request, get_uploads(request).write(principal, name, iter_body(request)))
    return Response(status_code=200)


@router.post("/images/v4/builds/cancel")
async def cancel_build(body: CancelBuildRequest, request: Request) -> Response:
    """Cancel a build, by its id or by the idempotency key of its request."""
    node, principal, id_ = get_node(request), get_principal(request), body.build_id
    if id_ is None:
        admitted = await _load(request, _request_name(body.client_request_id or ""))
        if admitted is None:
            return JSONResponse({"outcome": "not_admitted", "build": None})
        id_ = str(admitted["build"])
    before = await node.template_builds.get_build(principal, id_)
    after = await operations.cancel_build(request, principal, before)
    outcome = _outcome(before, after)
    return JSONResponse({"outcome": outcome, "build": await _build_info(request, after)})


@router.post("/images/v4/builds/{build}/context/seal")
async def seal_context(build: str, body: SealRequest, request: Request) -> Response:
    """Check the digest of an uploaded context, and start the build. The build continues if the client disconnects."""
    node, principal = get_node(request), get_principal(request)
    record = await node.template_builds.get_build(principal, build)
    if record.status is not BuildStatus.WAITING:
        raise ConflictError(f"The build {record.id} was started already.", hint="Start another build.", fields={"build": record.id})
    name = _context_name(record.id)
    path = await get_uploads(request).find(principal, name)
    if path is None:
        raise ConflictError("The context was not uploaded.", hint="Upload the context to the link of the build.", fields={"build": record.id})
    if await asyncio.to_thread(_sha256, path) != body.digest.lower():
        await get_uploads(request).remove(principal, name)
        raise InvalidRequestError("The uploaded context has another digest.", hint="Upload the context again.", fields={"field": "digest"})
    stored = await _load(request, _build_name(record.id)) or {}
    async with operations.failed_on_error(request, record):
        text = await asyncio.to_thread(read_dockerfile, path, str(stored.get("dockerfile_path") or "Dockerfile"))
        plan = await _plan(request, text, stored.get("build_args") or {}, {"": path})
    await get_build_runner(request).start(principal, record, plan)
    return await _build_response(request, record, 200)


@router.get("/images/v4/builds/{build}")
async def get_build(build: str, request: Request) -> Response:
    """Return the state of a build, with its image once it has succeeded."""
    return await _build_response(request, await get_node(request).template_builds.get_build(get_principal(request), build), 200)


@router.get("/images/v4/images")
async def list_images(query: Annotated[ImagesQuery, Query()], request: Request) -> Response:
    """List one page of the images of the key, newest first."""
    node, principal = get_node(request), get_principal(request)
    page = await node.template_builds.list(principal, before=pagination.decode_cursor(query.cursor), limit=query.page_size)
    items = [image for record in page.items if (image := await _image(node, principal, record)) is not None]
    cursor = pagination.encode_cursor(Position(page.items[-1].created_at, page.items[-1].id)) if page.more else None
    return JSONResponse({"items": items, "pagination": {"next": cursor}})


@router.get("/images/v4/images/name/{image:path}")
async def get_image(image: str, request: Request) -> Response:
    """Return an image by its name."""
    return JSONResponse(await _find_image(request, image))


@router.delete("/images/v4/images/name/{image:path}")
async def delete_image(image: str, request: Request) -> Response:
    """Delete an image with its builds. Sandboxes that were started from it stay."""
    found = await _find_image(request, image)
    await operations.delete_template(request, get_principal(request), found["id"])
    return Response(status_code=204)


@router.get("/platform/v1/sandbox-templates")
async def list_legacy_images(query: Annotated[LegacyImagesQuery, Query()]) -> Response:
    """Return an empty list: there are no images of the older client."""
    del query
    return JSONResponse({"items": [], "pagination": {"next": None, "prev": None, "total": 0}})


@router.get("/platform/v1/sandbox-templates/by-name/{image:path}")
async def get_legacy_image(image: str) -> Response:
    """Return 404: there are no images of the older client."""
    raise _image_not_found(image)


async def authenticate(scope: Mapping[str, Any], node: Node) -> Principal | None:
    """Return the principal of the upload of a context; None for other requests.

    Raises:
        ForbiddenError: The link is invalid or has expired.
    """
    return node.tokens.principal_of_upload(scope["query_string"])[0] if scope["path"] == PREFIX + UPLOADS else None


def check_supported(body: BuildImageRequest) -> None:
    """Refuse what a build cannot have. Pure.

    Raises:
        InvalidRequestError: An option is not supported, or an import names no image.
    """
    if body.image_scope not in {None, "project"}:
        raise not_possible("image_scope", "Omit is_public: an image belongs to its key.")
    if body.registry_credentials_json is not None:
        raise not_possible("registry_credentials_json", "Ask the operator to add the registry with its credentials, and unset DOCKER_CONFIG.")
    if (body.kind == "import") != (body.image_ref is not None):
        raise InvalidRequestError("An import needs `image_ref`, and a build has none.", hint="Update the client.", fields={"field": "image_ref"})


def read_dockerfile(context: Path, name: str) -> str:
    """Return a file of a context as text. Blocks.

    Raises:
        InvalidRequestError: The context is not a tar archive, or has no such text file.
    """
    wanted = posixpath.normpath(name)
    try:
        with tarfile.open(context, "r:") as archive:
            for member in archive:
                if posixpath.normpath(member.name) == wanted and member.isreg():
                    content = archive.extractfile(member)
                    if content is not None and member.size <= dockerfile.MAX_BYTES:
                        return content.read().decode()
    except (tarfile.TarError, ValueError, OSError, RecursionError):  # tarfile calls itself for each long name in a row
        raise InvalidRequestError("The context is not a tar archive.", hint="Upload the context again.", fields={"field": "context"}) from None
    raise InvalidRequestError(
        f"The context has no file {name[:64]!r} of at most {dockerfile.MAX_BYTES} bytes.",
        hint="Update the client.",
        fields={"field": "dockerfile_path"},
    )


async def _plan(request: Request, text: str, args: Mapping[str, str], contexts: Mapping[str, Path]) -> BuildPlan:
    node, principal = get_node(request), get_principal(request)
    parsed = await operations.parse_dockerfile(text, args=args)
    stages = [replace(stage, base=await _base(node, principal, stage.base)) for stage in parsed.stages]
    return BuildPlan(tuple(stages), contexts=contexts, warnings=parsed.warnings)


async def _base(node: Node, principal: Principal, base: Base) -> Base:
    """Return a template instead of an image of its name: images of Tensorlake are templates."""
    if not isinstance(base, ImageBase):
        return base
    name = translate.template(base.reference)
    try:
        await node.templates.find(principal, name)
    except NotFoundError:
        return base
    return TemplateBase(name)


async def _build_response(request: Request, build: BuildRecord, status: int) -> Response:
    content = await _build_info(request, build)
    if status == 201 and content["kind"] == _DOCKERFILE and build.status is BuildStatus.WAITING:  # noqa: PLR2004 - of an admission
        node, principal = get_node(request), get_principal(request)
        address = f"{request.url.scheme}://{request.headers.get('host') or 'localhost'}{PREFIX}{UPLOADS}"
        url = f"{address}?{node.tokens.sign_upload(principal, _context_name(build.id), LINK_S)}"
        content["context_upload"] = {"url": url, "headers": {}, "max_bytes": get_uploads(request).max_bytes}
    return JSONResponse(content, status)


async def _build_info(request: Request, build: BuildRecord) -> dict[str, Any]:
    node, principal = get_node(request), get_principal(request)
    stored = await _load(request, _build_name(build.id)) or {}
    template = await node.template_builds.get(principal, build.template)
    is_waiting = build.status is BuildStatus.WAITING
    phase = "finished" if build.status.has_ended else "awaiting_context" if is_waiting else "publishing" if build.step == "finalize" else "executing"
    return {
        "build_id": build.id,
        "name": template.name,
        "kind": stored.get("kind") or _DOCKERFILE,
        "status": _STATUSES[build.status],
        "phase": phase,
        "attempt_no": 1,
        "client_request_id": stored.get("client_request_id") or None,
        "builder_sandbox_id": None,
        "operation_deadline_ms": milliseconds(build.created_at + DEADLINE),
        "created_at_ms": milliseconds(build.created_at),
        "updated_at_ms": milliseconds(build.ended_at or build.started_at or build.created_at),
        "error": build.error or None,
        "result": _image_of(template, build) if build.status is BuildStatus.READY else None,
    }


async def _find_image(request: Request, name: str) -> dict[str, Any]:
    node, principal = get_node(request), get_principal(request)
    try:
        image = await _image(node, principal, await node.template_builds.get(principal, name.lower()))
    except NotFoundError:
        image = None
    if image is None:
        raise _image_not_found(name)
    return image


async def _image(node: Node, principal: Principal, record: TemplateRecord) -> dict[str, Any] | None:
    """Return the image of a template; None if the template has no ready build."""
    build = record.tags.get(DEFAULT_TEMPLATE_TAG)
    return None if build is None else _image_of(record, await node.template_builds.get_build(principal, build))


def _image_of(record: TemplateRecord, build: BuildRecord) -> dict[str, Any]:
    size_bytes = 0 if build.root is None else build.root.size_bytes
    return {
        "id": record.id,
        "name": record.name,
        "snapshot_id": build.id,
        "global": False,
        "physical_size_bytes": size_bytes,
        "logical_size_bytes": size_bytes,
        "created_at": rfc3339_ms(record.created_at),
        "updated_at": rfc3339_ms(record.updated_at),
    }


def _outcome(before: BuildRecord, after: BuildRecord) -> str:
    """Return what came of the cancellation of a build. Pure."""
    if before.status is BuildStatus.CANCELLED:
        return "already_cancelled"
    outcomes = {BuildStatus.READY: "already_completed", BuildStatus.FAILED: "already_failed", BuildStatus.CANCELLED: "cancelled"}
    return outcomes.get(after.status, "unconfirmed")


def _image_not_found(name: str) -> NotFoundError:
    return NotFoundError(
        f"There is no image {name[:64]!r} of this key.", code=ErrorCode.NOT_FOUND, hint="List the images.", fields={"image": name[:64]}
    )


def _context_name(build: str) -> str:
    return f"context-{build}"


def _build_name(build: str) -> str:
    return f"build-{build}"


def _request_name(request_id: str) -> str:
    return f"request-{hashlib.sha256(request_id.encode()).hexdigest()}"


async def _store(request: Request, name: str, content: Mapping[str, Any]) -> None:
    """Keep values between the requests of one build."""
    await get_uploads(request).write_value(get_principal(request), name, json.dumps(content).encode())


async def _load(request: Request, name: str) -> dict[str, Any] | None:
    content = await get_uploads(request).read_value(get_principal(request), name)
    found: dict[str, Any] | None = None if content is None else await asyncio.to_thread(json.loads, content)
    return found


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
