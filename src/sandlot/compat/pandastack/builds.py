"""Template builds of the PandaStack API: a Dockerfile with its context, an image, or a root file system as a tar archive.

The client sends a form. Its text fields have no file name. Each file is a file of the build context, with its relative path as the name of its field,
or the archive of a root file system in the field ``rootfs``. Without files, the client sends ``application/x-www-form-urlencoded``.

Invariants:
- A context becomes a tar archive on the disk. Of a file, only one chunk is in memory.
- An archive of a root file system is a Dockerfile with one ``ADD``, so that one executor runs all builds.
"""

from __future__ import annotations

import posixpath
import re
import tarfile
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import IO, Final
from urllib.parse import parse_qsl

from pydantic import Field, ValidationError
from starlette.requests import Request

from sandlot.builds import dockerfile
from sandlot.builds.dependencies import get_build_runner, get_uploads
from sandlot.builds.operations import parse_dockerfile, request_build
from sandlot.builds.plan import BuildPlan
from sandlot.compat.common import PAGE, rfc3339_ms
from sandlot.compat.pandastack.schemas import BuildResponse
from sandlot.core.node import Node
from sandlot.model.access import Principal
from sandlot.model.errors import ErrorCode, InvalidRequestError, LimitError, UnavailableError
from sandlot.model.images import parse_reference
from sandlot.model.specs import KIB, MIB, Limits
from sandlot.model.templates import BuildLine, BuildRecord, BuildStatus
from sandlot.web.dependencies import get_principal, iter_body
from sandlot.web.models import RequestModel, Text
from sandlot.web.multipart import FormFields, is_multipart, read_form

MAX_FILES: Final = 10_000
"""Maximum number of files of a build context."""
ROOTFS: Final = "rootfs"
"""Field of the archive of a root file system, and name of the archive in the context of its build."""
ROOTFS_DOCKERFILE: Final = f"FROM scratch\nADD {ROOTFS} /\n"
END: Final = b"data: end\n\n"

STATUSES: Final = {
    BuildStatus.WAITING: "queued",
    BuildStatus.BUILDING: "building",
    BuildStatus.READY: "done",
    BuildStatus.FAILED: "failed",
    BuildStatus.CANCELLED: "failed",
}
_CHUNK_BYTES: Final = 256 * KIB
_NUMBERS: Final = frozenset({"size_mb", "cpu", "memory_mb"})
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_FIELDS: Final = ("name", "dockerfile", "image_ref", "size_mb", "cpu", "memory_mb", "kernel")


class BuildRequest(RequestModel):
    """Text fields of a build."""

    name: Text
    dockerfile: str | None = Field(default=None, max_length=dockerfile.MAX_BYTES)
    image_ref: Text | None = None
    size_mb: int = Field(default=1024, ge=1, lt=1 << 24)
    cpu: int | None = Field(default=None, ge=1, lt=1 << 24)
    memory_mb: int | None = Field(default=None, ge=1, lt=1 << 24)
    kernel: Text | None = None


class ContextFiles:
    """Files of a form as a tar archive.

    Args:
        request: Request with the form.
        fields: Receives the text fields.
        folder: Folder on a disk for the file that arrives.

    Attributes:
        names: Names of the files that were read.
    """

    def __init__(self, request: Request, fields: FormFields, folder: Path) -> None:
        self._request = request
        self._fields = fields
        self._folder = folder
        self.names: set[str] = set()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for upload in read_form(self._request, self._fields, max_parts=MAX_FILES + len(_FIELDS)):
            name = _relative(upload.field)
            self.names.add(name)
            # The header of a member has its size, which is known only when the file has arrived.
            with tempfile.TemporaryFile(dir=self._folder) as spool:
                async for chunk in upload.chunks:
                    spool.write(chunk)
                for piece in _member(name, spool):
                    yield piece
        yield b"\0" * (2 * tarfile.BLOCKSIZE)


async def start(request: Request) -> BuildResponse:
    """Read the form of a build, and start the build.

    Raises:
        InvalidRequestError: The form is invalid, or has not exactly one of a Dockerfile, an image and a root file system.
    """
    get_build_runner(request)
    principal, uploads = get_principal(request), get_uploads(request)
    context = uuid.uuid4().hex
    files: set[str] = set()
    if is_multipart(request):
        fields = FormFields(*_FIELDS, max_bytes=dockerfile.MAX_BYTES)
        content = ContextFiles(request, fields, uploads.folder)
        await uploads.write(principal, context, content)
        texts, files = fields.texts, content.names
    else:
        texts = await _urlencoded(request)
    try:
        body = parse_fields(texts)
        text = dockerfile_of(body, has_rootfs=ROOTFS in files)
        archives = await uploads.require(principal, [context]) if files else {}
        parsed = await parse_dockerfile(text)
        plan = BuildPlan(parsed.stages, contexts={"": archives[context]} if files else {}, warnings=parsed.warnings)
        build = await request_build(request, principal, body.name, plan, limits=build_limits(body))
    finally:
        await uploads.remove(principal, context)  # the build holds it
    return build_response(build, body.name)


def parse_fields(texts: Mapping[str, str]) -> BuildRequest:
    """Return the text fields of a form. Pure.

    Raises:
        InvalidRequestError: A field is missing or invalid.
    """
    values = {name: int(text) if name in _NUMBERS and _NUMBER.fullmatch(text) else text for name, text in texts.items()}
    try:
        return BuildRequest.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0]) if first["loc"] else "form"
        raise InvalidRequestError(f"{field}: {first['msg']}.", hint="Correct the field of the form.", fields={"field": field}) from None


def dockerfile_of(body: BuildRequest, *, has_rootfs: bool) -> str:
    """Return the Dockerfile of a build. Pure.

    Raises:
        InvalidRequestError: The request has not exactly one of a Dockerfile, an image and a root file system, or names a kernel.
    """
    if body.kernel is not None:
        raise InvalidRequestError("`kernel` cannot be chosen.", hint="Omit kernel: the operator configures the kernel.", fields={"field": "kernel"})
    if body.dockerfile is not None and body.image_ref is None:
        return body.dockerfile
    if body.image_ref is not None and body.dockerfile is None and not has_rootfs:
        return f"FROM {parse_reference(body.image_ref)}\n"
    if has_rootfs and body.image_ref is None:
        return ROOTFS_DOCKERFILE
    raise InvalidRequestError(
        "A build needs one of `dockerfile`, `image_ref` and the file `rootfs`.", hint="Pass exactly one.", fields={"field": "dockerfile"}
    )


def build_limits(body: BuildRequest) -> Limits:
    """Return the limits of sandboxes of a build. Pure.

    ``size_mb`` is the size of the root file system at PandaStack. Sandboxes write on top of it here, so the limit of their disk is at least as large.
    """
    default = Limits()
    return Limits(
        cpus=default.cpus if body.cpu is None else float(body.cpu),
        memory_bytes=default.memory_bytes if body.memory_mb is None else body.memory_mb * MIB,
        disk_bytes=max(default.disk_bytes, body.size_mb * MIB),
    )


def build_response(build: BuildRecord, name: str) -> BuildResponse:
    """Return the response for a build. Pure."""
    return BuildResponse(
        id=build.id,
        name=name,
        status=STATUSES[build.status],
        error=build.error or ("The build was cancelled." if build.status is BuildStatus.CANCELLED else None),
        started_at=None if build.started_at is None else rfc3339_ms(build.started_at),
        ended_at=None if build.ended_at is None else rfc3339_ms(build.ended_at),
        created_at=rfc3339_ms(build.created_at),
        bytes=None if build.root is None else build.root.size_bytes,
    )


async def names_of(node: Node, principal: Principal, builds: list[BuildRecord]) -> dict[str, str]:
    """Return the names of the templates of builds by their ids."""
    return {template: (await node.template_builds.get(principal, template)).name for template in {build.template for build in builds}}


async def stored_events(node: Node, principal: Principal, build: str) -> bytes:
    """Return the stored lines of the log of a build as events.

    Raises:
        NotFoundError: There is no such build.
    """
    content, after, more = bytearray(), 0, True
    while more:
        page = await node.template_builds.lines(principal, build, after=after, limit=PAGE)
        for line in page.items:
            content += log_event(line)
            after = line.number
        more = page.more
    return bytes(content) + END


async def follow_events(lines: AsyncIterator[BuildLine]) -> AsyncIterator[bytes]:
    """Yield the lines of a log as events, and the event by which the client knows the end. A log that is cut has no such event."""
    try:
        async for line in lines:
            yield log_event(line)
    except UnavailableError:
        return
    yield END


def log_event(line: BuildLine) -> bytes:
    """Return a line of a log as one event, in one line for every reader. Pure.

    The client takes the line ``end`` for the end of the log.
    """
    text = " ".join(line.text.splitlines()).strip()
    return f"data: {'end.' if text == 'end' else text}\n\n".encode("utf-8", "replace")


async def _urlencoded(request: Request) -> dict[str, str]:
    content = bytearray()
    async for chunk in iter_body(request):
        content += chunk
        if len(content) > 4 * dockerfile.MAX_BYTES:  # each character can be encoded as three
            raise LimitError("The form is too large.", code=ErrorCode.TOO_LARGE, hint="Send files as multipart/form-data.")
    try:
        pairs = parse_qsl(content.decode(), keep_blank_values=True, errors="strict", max_num_fields=100)
    except ValueError:
        raise InvalidRequestError("The body is not a form in UTF-8.", hint="Send multipart/form-data.") from None
    return dict(pairs)


def _relative(name: str) -> str:
    """Return the path of a file in the context.

    Raises:
        InvalidRequestError: The path is absolute, leads out of the context, or is too long.
    """
    path = posixpath.normpath(name)
    if not name or name.startswith("/") or path in {".", ".."} or path.startswith("../") or "\0" in name or len(name) > 4096:  # noqa: PLR2004 - PATH_MAX
        raise InvalidRequestError(
            f"{name[:64]!r} is not a path in the build context.",
            hint="Name each file by its path relative to the context.",
            fields={"field": name[:64]},
        )
    return path


def _member(name: str, spool: IO[bytes]) -> Iterator[bytes]:
    """Yield a file as a member of a tar archive, which everybody may run: a form has no modes."""
    header = tarfile.TarInfo(name)
    header.size, header.mode = spool.tell(), 0o755
    yield header.tobuf(tarfile.PAX_FORMAT)
    spool.seek(0)
    while chunk := spool.read(_CHUNK_BYTES):
        yield chunk
    yield b"\0" * (-header.size % tarfile.BLOCKSIZE)
