"""Builds of templates: schemas and routes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from sandlot.builds import operations
from sandlot.builds.dependencies import get_uploads
from sandlot.builds.plan import ArchiveBase, BuildPlan, FixedSteps, Stage
from sandlot.model.access import Principal
from sandlot.model.errors import InvalidRequestError
from sandlot.model.sandboxes import LimitsChange
from sandlot.model.specs import Limits
from sandlot.model.templates import BuildLine, BuildRecord, TemplateRecord
from sandlot.server.v1.common import PROBLEM, Cursor, EventTable, LastEventId, Problem, documented_response, raw_body, stream_start
from sandlot.server.v1.sandboxes import LimitsRequest
from sandlot.web import pagination, streaming
from sandlot.web.body_limits import stores_request_body
from sandlot.web.dependencies import get_node, get_principal, iter_body
from sandlot.web.json_body import JsonRoute
from sandlot.web.models import QueryModel, RequestModel, ResponseModel, Text, json_response

_LOG_END = "end"


class BuildContextResponse(ResponseModel):
    """A stored archive with the files of a build."""

    name: str
    size_bytes: int
    sha256: str


class BuildTemplateRequest(RequestModel):
    """A build of a template."""

    dockerfile: Text | None = Field(
        default=None,
        description="Text of the Dockerfile. `FROM` names a template of this service, such as `base`, or an image of a registry.",
        examples=["FROM base\nRUN pip install flask\nCOPY . /app\n"],
    )
    archive: Text | None = Field(
        default=None,
        description=(
            "Name of an uploaded archive that becomes the template, instead of `dockerfile`: an OCI layout, `docker save`, or a root filesystem."
        ),
    )
    image: Text = Field(default="", description="Name of the image in `archive`. Default: the only image.")
    context: Text | None = Field(default=None, description="Name of the archive with the files that `COPY` and `ADD` read. Default: no files.")
    args: dict[str, str] = Field(default_factory=dict, description="Values of `ARG` instructions.")
    target: Text = Field(default="", description="Last stage to build. Default: the last stage of the Dockerfile.")
    tags: list[Text] = Field(default_factory=list, max_length=100, description="Tags that the build gets when it is ready. Default: `default`.")
    limits: LimitsRequest = Field(default_factory=LimitsRequest, description="Limits of sandboxes of the template whose request names none.")
    start_command: Text = Field(default="", description="Command that runs in every sandbox. Default: `ENTRYPOINT` and `CMD` of the Dockerfile.")
    ready_command: Text = Field(default="", description="Command that succeeds once the start command is ready.", examples=["test -e /run/ready"])
    no_cache: bool = Field(default=False, description="True to run all steps again.")


class TemplateBuildResponse(ResponseModel):
    """A build of a template."""

    id: str = Field(examples=["2f0c1e34-7c1d-4d6e-9a53-5b8c21a4b0aa"])
    template: str = Field(description="Id of the template.")
    owner: str = Field(description="Id of the key that owns the template, or `local`.")
    status: str = Field(description="`waiting`, `building`, `ready`, `failed` or `cancelled`.")
    tags: list[str]
    step: str = Field(description="Number of the step that runs or failed, `base` or `finalize`; empty before the first step and after the last one.")
    error: str = Field(description="Reason of a failure, for people; empty if there is none.")
    size_bytes: int | None = Field(description="Size of the root file system and of the snapshot; null until the build is ready.")
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None

    @classmethod
    def of(cls, record: BuildRecord) -> TemplateBuildResponse:
        """Return the response for a build."""
        return cls(
            id=record.id,
            template=record.template,
            owner=record.owner,
            status=record.status,
            tags=list(record.tags),
            step=record.step,
            error=record.error,
            size_bytes=None if record.root is None else record.size_bytes,
            created_at=record.created_at,
            started_at=record.started_at,
            ended_at=record.ended_at,
        )


class TemplateBuildsResponse(ResponseModel):
    """A page of builds."""

    builds: list[TemplateBuildResponse]
    next_cursor: str | None = Field(description="Cursor of the next page; null on the last page.")


class TemplateBuildsQuery(QueryModel):
    """Page of a list of builds."""

    cursor: Cursor | None = Field(default=None, description="`next_cursor` of the previous page.")
    limit: int = Field(default=50, ge=1, le=1000, description="Maximum number of builds of the page.")


class BuildLineResponse(ResponseModel):
    """A line of the log of a build."""

    number: int = Field(description="Number of the line, from 1 without gaps.")
    at: datetime
    level: str = Field(description="`info`, `warn` or `error`.")
    text: str
    step: str = Field(description="Step that printed the line, as in the build.")

    @classmethod
    def of(cls, line: BuildLine) -> BuildLineResponse:
        """Return the response for a line."""
        return cls(number=line.number, at=line.at, level=line.level, text=line.text, step=line.step)


class BuildLogResponse(ResponseModel):
    """A page of the log of a build, oldest line first."""

    lines: list[BuildLineResponse]
    more: bool = Field(description="True if later lines exist; pass the last `number` as `after`.")


class BuildLogQuery(QueryModel):
    """Lines to list or to follow."""

    after: int = Field(default=0, ge=0, lt=2**31, description="Only lines with a larger number.")
    limit: int = Field(default=100, ge=1, le=1000, description="Maximum number of lines of a list.")


class SetTemplateTagRequest(RequestModel):
    """Build that a tag names."""

    build: Text = Field(description="Id of a ready build of the template.")


class TemplateTagsResponse(ResponseModel):
    """Tags of a template."""

    id: str = Field(examples=["tmpl-x2m4c7qpl5tnbdwy"])
    name: str
    tags: dict[str, str] = Field(description="Tag -> id of the build that it names.")

    @classmethod
    def of(cls, record: TemplateRecord) -> TemplateTagsResponse:
        """Return the response for a template."""
        return cls(id=record.id, name=record.name, tags=dict(record.tags))


BUILD_LOG_EVENTS: EventTable = {"line": BuildLineResponse, _LOG_END: TemplateBuildResponse, "failure": Problem}

router = APIRouter(prefix="/v1", tags=["templates"], route_class=JsonRoute)


@router.put(
    "/build-contexts/{archive}",
    responses=documented_response(BuildContextResponse, "The stored archive."),
    openapi_extra=raw_body("Tar archive, plain or compressed with gzip, with paths relative to the context."),
)
@stores_request_body
async def upload_context(archive: str, request: Request) -> Response:
    """Upload the files of a build. An archive that no build has used for a day is removed; an interrupted upload stores nothing."""
    stored = await get_uploads(request).write(get_principal(request), archive, iter_body(request))
    return json_response(BuildContextResponse(name=archive, size_bytes=stored.size_bytes, sha256=stored.sha256))


@router.post("/templates/{template}/builds", status_code=201, responses=documented_response(TemplateBuildResponse, "The build, which waits.", 201))
async def build(template: str, body: BuildTemplateRequest, request: Request) -> Response:
    """Build a template from a Dockerfile or an archive with an image. The build goes on if the client disconnects.

    A template of this name is created if there is none.
    """
    principal = get_principal(request)
    plan = await _plan(request, principal, body)
    change = body.limits.change()
    limits = None if change == LimitsChange() else change.over(Limits())
    record = await operations.request_build(request, principal, template, plan, limits=limits, tags=body.tags)
    return json_response(TemplateBuildResponse.of(record), 201)


async def _plan(request: Request, principal: Principal, body: BuildTemplateRequest) -> BuildPlan:
    names = [name for name in (body.archive, body.context) if name is not None]
    if body.archive is not None:
        if body.dockerfile is not None or body.context is not None or body.args or body.target:
            raise InvalidRequestError(
                "`archive` is built without a Dockerfile.", hint="Pass either `archive` or `dockerfile`.", fields={"field": "archive"}
            )
        found = await get_uploads(request).require(principal, names)
        stages: tuple[Stage, ...] = (Stage(ArchiveBase(found[body.archive], body.image), FixedSteps()),)
        warnings: tuple[str, ...] = ()
    elif body.image:
        raise InvalidRequestError("`image` names an image in `archive`.", hint="Pass `archive`, or omit `image`.", fields={"field": "image"})
    elif body.dockerfile is None:
        raise InvalidRequestError("There is nothing to build.", hint="Pass `dockerfile` or `archive`.", fields={"field": "dockerfile"})
    else:
        parsed = await operations.parse_dockerfile(body.dockerfile, args=body.args, target=body.target)
        found = await get_uploads(request).require(principal, names)
        stages, warnings = parsed.stages, parsed.warnings
    return BuildPlan(
        stages,
        contexts={} if body.context is None else {"": found[body.context]},
        start_command=body.start_command,
        ready_command=body.ready_command,
        ignores_cache=body.no_cache,
        warnings=warnings,
    )


@router.get("/templates/{template}/builds", responses=documented_response(TemplateBuildsResponse, "A page of builds, newest first."))
async def list_builds(template: str, query: Annotated[TemplateBuildsQuery, Query()], request: Request) -> Response:
    """List the builds of a template, newest first."""
    page = await get_node(request).template_builds.list_builds(
        get_principal(request), template=template, before=pagination.decode_cursor(query.cursor), limit=query.limit
    )
    builds = [TemplateBuildResponse.of(record) for record in page.items]
    return json_response(TemplateBuildsResponse(builds=builds, next_cursor=pagination.next_cursor(page)))


@router.delete("/templates/{template}", status_code=204, responses=PROBLEM)
async def delete(template: str, request: Request) -> Response:
    """Delete a template that was built, with its builds. Running builds are cancelled. Sandboxes and snapshots of the template stay."""
    await operations.delete_template(request, get_principal(request), template)
    return Response(status_code=204)


@router.put("/templates/{template}/tags/{tag}", responses=documented_response(TemplateTagsResponse, "The template with its tags."))
async def set_tag(template: str, tag: str, body: SetTemplateTagRequest, request: Request) -> Response:
    """Let a tag name a build. Sandboxes start from `NAME:TAG`; the tag of `NAME` alone is `default`."""
    changed = await get_node(request).template_builds.set_tags(get_principal(request), template, {tag: body.build})
    return json_response(TemplateTagsResponse.of(changed))


@router.delete("/templates/{template}/tags/{tag}", status_code=204, responses=PROBLEM)
async def remove_tag(template: str, tag: str, request: Request) -> Response:
    """Remove a tag from a template. The build stays."""
    await get_node(request).template_builds.set_tags(get_principal(request), template, {tag: None})
    return Response(status_code=204)


@router.get("/template-builds/{build}", responses=documented_response(TemplateBuildResponse, "The build."))
async def get_build(build: str, request: Request) -> Response:
    """Get a build of a template."""
    return json_response(TemplateBuildResponse.of(await get_node(request).template_builds.get_build(get_principal(request), build)))


@router.post("/template-builds/{build}/cancel", responses=documented_response(TemplateBuildResponse, "The build, which has ended."))
async def cancel_build(build: str, request: Request) -> Response:
    """Cancel a build, and wait until its sandboxes are removed. A build that has ended stays as it is."""
    principal = get_principal(request)
    found = await get_node(request).template_builds.get_build(principal, build)
    return json_response(TemplateBuildResponse.of(await operations.cancel_build(request, principal, found)))


@router.get(
    "/template-builds/{build}/log",
    responses=documented_response(
        BuildLogResponse, "A page of the log, or stored and new lines with `Accept: text/event-stream`.", events=BUILD_LOG_EVENTS
    ),
)
async def get_log(
    build: str,
    query: Annotated[BuildLogQuery, Query()],
    request: Request,
    last_event_id: LastEventId = None,
) -> Response:
    """List or follow the log of a build. A stream ends with the build: its last event is `end`, with the build."""
    principal, builds = get_principal(request), get_node(request).template_builds
    if streaming.accepts_events(request):
        stream = await builds.follow_lines(principal, build, after=stream_start(query.after, last_event_id, max_digits=9))

        async def feed() -> AsyncIterator[streaming.StreamEvent]:
            async for line in stream:
                yield streaming.StreamEvent("line", BuildLineResponse.of(line).model_dump(mode="json"), line.number)
            ended = TemplateBuildResponse.of(await builds.get_build(principal, build))
            yield streaming.StreamEvent(_LOG_END, ended.model_dump(mode="json"))

        return streaming.event_response(request, feed(), stream.aclose)
    page = await builds.lines(principal, build, after=query.after, limit=query.limit)
    return json_response(BuildLogResponse(lines=[BuildLineResponse.of(line) for line in page.items], more=page.more))
