"""Templates of users and their builds, as records: names, tags, states and logs. The runner above core builds them and records its work here.

Invariants:
- A principal sees its own templates and builds; an operator sees those of all owners. By name, everybody also finds the operator's templates.
- A build ends once. A ready build gives its template its tags and limits in the same transaction.
- A line of a log is stored before a follower gets it. A follower reads pages from the store, so that a slow follower takes no memory.
- The log of a build is bounded. Lines beyond the limit are dropped, and the last line says so.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from sandlot.core.access import quotas
from sandlot.core.concurrency import GeneratorStream, Wakeups
from sandlot.core.ports import Clock
from sandlot.model.access import LOCAL, OwnerId, Principal
from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError, LimitError, NotFoundError, SandlotError, UnavailableError
from sandlot.model.ids import TEMPLATE_ID, NodeId, TemplateId, new_template_id
from sandlot.model.repositories import Position, TemplateRepository
from sandlot.model.specs import Limits
from sandlot.model.streams import Page, Stream
from sandlot.model.templates import (
    DEFAULT_TEMPLATE_TAG,
    MAX_LINE_CHARS,
    TEMPLATE_NAME,
    TEMPLATE_TAG,
    BuildLine,
    BuildRecord,
    BuildStatus,
    BuiltRoot,
    LogLevel,
    TemplateRecord,
    TemplateSettings,
)

MAX_WAITING: Final = 100
"""Number of builds of an owner that have not begun, also those that are only requested."""
MAX_TAGS: Final = 100
"""Maximum number of tags of a template."""
MAX_LINES: Final = 20_000
"""Number of lines after which the log of a build takes no more lines."""
KEPT_UNTAGGED: Final = 3
"""Number of ready builds of a template without a tag that are kept. Older ones are deleted when another build ends."""
KEPT_FAILED: Final = 5
"""Number of failed and cancelled builds of a template that are kept, each with its log."""
MAX_LISTED: Final = 1_000
"""Number of builds among which those without a tag are looked for."""
LINES_PAGE: Final = 200
"""Number of lines that a follower reads from the store at once."""
LINES_POLL_S: Final = 5.0
"""Seconds after which a follower reads the store even without a notification, because another node may run the build."""


class TemplateBuilds:
    """Templates of users and their builds, of all owners."""

    def __init__(self, *, node: NodeId, templates: TemplateRepository, builtin: frozenset[str], clock: Clock) -> None:
        self._node = node
        self._templates = templates
        self._builtin = builtin
        self._clock = clock
        self._wakeups = Wakeups()
        self._admission_lock = asyncio.Lock()
        self._lines: dict[str, int] = {}
        """Number of stored lines of each build that runs."""

    def close(self) -> None:
        """End all followers, because the service stops. Idempotent."""
        self._wakeups.close()

    # Templates -------------------------------------------------------------------------------------------------------

    async def get(self, principal: Principal, template: str) -> TemplateRecord:
        """Return a template.

        Args:
            principal: Caller.
            template: Id of the template, or its name.

        Raises:
            NotFoundError: There is no such template (``template_not_found``).
        """
        if TEMPLATE_ID.fullmatch(template):
            record = await self._templates.get(TemplateId(template))
        else:
            record = await self._templates.find(principal.owner, template) if TEMPLATE_NAME.fullmatch(template) else None
        if record is None or not principal.sees(record.owner):
            raise template_not_found(template)
        return record

    async def list(self, principal: Principal, *, before: Position | None = None, limit: int = 100) -> Page[TemplateRecord]:
        """Return templates, newest first.

        Args:
            principal: Caller.
            before: Position of the last template of the previous page. None: the first page.
            limit: Maximum number of templates.
        """
        found = await self._templates.list(owner=_owner(principal), before=before, limit=limit + 1)
        return Page(found[:limit], more=len(found) > limit)

    async def delete(self, principal: Principal, template: str) -> None:
        """Delete a template with its builds and their logs. Sandboxes and snapshots of the template stay.

        Raises:
            NotFoundError: There is no such template.
            ConflictError: A build of the template has not ended.
        """
        record = await self.get(principal, template)
        if any(build.template == record.id for build in await self._templates.list_open_builds(self._node)):
            raise ConflictError(
                f"A build of the template {record.name} has not ended.",
                hint="Cancel the build first, or wait until it has ended.",
                fields={"template": record.name},
            )
        await self._templates.remove(record.id)

    async def set_tags(self, principal: Principal, template: str, tags: Mapping[str, str | None]) -> TemplateRecord:
        """Let tags name builds, and remove tags.

        Args:
            principal: Caller.
            template: Id or name of the template.
            tags: Tag -> id of a ready build of the template; None removes the tag.

        Raises:
            NotFoundError: There is no such template or no such ready build.
            InvalidRequestError: A tag is invalid, or the template would have more than ``MAX_TAGS`` tags.
        """
        record = await self.get(principal, template)
        for tag, build in tags.items():
            _check_tag(tag)
            found = None if build is None else await self._templates.get_build(build)
            if build is not None and (found is None or found.template != record.id or found.status is not BuildStatus.READY):
                raise _build_not_found(build)
        if len(record.tags.keys() | {tag for tag, build in tags.items() if build is not None}) > MAX_TAGS:
            raise InvalidRequestError(f"A template can have {MAX_TAGS} tags.", hint="Remove tags that are no longer needed.")
        changed = await self._templates.change_tags(record.id, tags, at=self._clock.now())
        if changed is None:
            raise template_not_found(template)
        return changed

    # Builds ----------------------------------------------------------------------------------------------------------

    async def request(
        self, principal: Principal, name: str, *, limits: Limits | None = None, tags: Sequence[str] = (), alone: bool = False
    ) -> tuple[TemplateRecord, BuildRecord]:
        """Request a build. A template of this name is created if the principal has none.

        Args:
            principal: Caller.
            name: Name of the template.
            limits: Limits of sandboxes of the template once the build is ready. None: those of the existing template, or the default limits.
            tags: Tags that the build gets when it is ready. Empty: ``default``.
            alone: True to refuse the request while another build of the template has not ended.

        Returns:
            The template and the build, which waits.

        Raises:
            InvalidRequestError: The name or a tag is invalid.
            LimitError: The owner's quota of templates is used up, or the owner has ``MAX_WAITING`` builds that have not begun.
            ConflictError: Another build of the template has not ended; the field ``build`` has its id. Or the template is part of Sandlot.
        """
        check_name(name)
        for tag in tags:
            _check_tag(tag)
        if principal.owner == LOCAL and name in self._builtin:
            raise ConflictError(
                f"The template {name} is part of Sandlot.", hint="Choose another name.", code=ErrorCode.CONFLICT, fields={"template": name}
            )
        now = self._clock.now()
        async with self._admission_lock:  # otherwise two concurrent requests could both pass the checks
            record = await self._templates.find(principal.owner, name)
            number, size_bytes = await self._templates.totals(principal.owner)
            quota = principal.quota if record is None else replace(principal.quota, templates=None)
            quotas.check_stored(quota, "template", number, size_bytes)
            unfinished = [build for build in await self._templates.list_open_builds(self._node) if build.owner == principal.owner]
            _check_unfinished(unfinished, None if record is None or not alone else record.id)
            if record is None:
                record = TemplateRecord(new_template_id(), principal.owner, name, limits or Limits(), now, now)
                await self._templates.add(record)
            build = BuildRecord(
                id=str(uuid.uuid4()),
                template=record.id,
                owner=record.owner,
                node=self._node,
                status=BuildStatus.WAITING,
                limits=limits or record.limits,
                created_at=now,
                tags=tuple(dict.fromkeys(tags)) or (DEFAULT_TEMPLATE_TAG,),
            )
            if not await self._templates.add_build(build):
                raise template_not_found(name)
        return record, build

    async def get_build(self, principal: Principal, build: str, template: str | None = None) -> BuildRecord:
        """Return a build.

        Args:
            principal: Caller.
            build: Id of the build.
            template: Id or name of its template. None: any template.

        Raises:
            NotFoundError: There is no such build (``build_not_found``), or no such template.
        """
        record = await self._templates.get_build(build[:64])
        if record is None or not principal.sees(record.owner):
            raise _build_not_found(build)
        if template is not None and (await self.get(principal, template)).id != record.template:
            raise _build_not_found(build)
        return record

    async def list_builds(
        self, principal: Principal, *, template: str | None = None, before: Position | None = None, limit: int = 100
    ) -> Page[BuildRecord]:
        """Return builds, newest first.

        Args:
            principal: Caller.
            template: Id or name of the template of the builds. None: all templates.
            before: Position of the last build of the previous page. None: the first page.
            limit: Maximum number of builds.

        Raises:
            NotFoundError: There is no such template.
        """
        of = None if template is None else (await self.get(principal, template)).id
        found = await self._templates.list_builds(owner=_owner(principal), template=of, before=before, limit=limit + 1)
        return Page(found[:limit], more=len(found) > limit)

    async def lines(self, principal: Principal, build: str, *, after: int = 0, limit: int = 100) -> Page[BuildLine]:
        """Return lines of the log of a build, oldest first.

        Args:
            principal: Caller.
            build: Id of the build.
            after: Return only lines with a larger number.
            limit: Maximum number of lines.

        Raises:
            NotFoundError: There is no such build.
        """
        record = await self.get_build(principal, build)
        found = await self._templates.list_lines(record.id, after=after, limit=limit + 1)
        return Page(found[:limit], more=len(found) > limit)

    async def follow_lines(self, principal: Principal, build: str, *, after: int = 0) -> Stream[BuildLine]:
        """Follow the lines of the log of a build as they are stored. The stream ends with the build.

        The stream raises ``UnavailableError`` when the service stops.

        Args:
            principal: Caller.
            build: Id of the build.
            after: Follow the lines with a larger number, stored lines first.

        Raises:
            NotFoundError: There is no such build.
        """
        record = await self.get_build(principal, build)
        return GeneratorStream(self._follow(record.id, after))

    async def _follow(self, build: str, last: int) -> AsyncGenerator[BuildLine]:
        with self._wakeups.follower(build) as wakeup:
            while not self._wakeups.is_closed:
                wakeup.clear()  # before the read, so that a line that is stored during the read sets the event again
                record = await self._templates.get_build(build)
                page = await self._templates.list_lines(build, after=last, limit=LINES_PAGE)
                for line in page:
                    yield line
                    last = line.number
                if len(page) < LINES_PAGE:
                    if record is None or record.status.has_ended:
                        return
                    with suppress(TimeoutError):
                        async with asyncio.timeout(LINES_POLL_S):
                            await wakeup.wait()
        raise UnavailableError(
            "The service is stopping.",
            hint=f"Continue with after={last} when the service has restarted.",
            fields={"after": last, "retry_after_s": 1},
        )

    # Work of the runner ----------------------------------------------------------------------------------------------

    async def open_builds(self) -> Sequence[BuildRecord]:
        """Return the builds of this node that have not ended. After a start of the service, those that were running are lost."""
        return await self._templates.list_open_builds(self._node)

    async def ready_builds(self) -> Sequence[BuildRecord]:
        """Return the builds of this node that are ready."""
        return await self._templates.list_ready_builds(self._node)

    async def begin(self, build: BuildRecord) -> BuildRecord | None:
        """Record that a build has begun. Return the changed build; None if it has ended or was deleted."""
        return await self._save(replace(build, status=BuildStatus.BUILDING, started_at=self._clock.now()))

    async def step(self, build: BuildRecord, step: str) -> BuildRecord | None:
        """Record the step that runs: its number, ``base`` or ``finalize``. Return the changed build; None if it has ended or was deleted."""
        return await self._save(replace(build, step=step))

    async def log(self, build: BuildRecord, lines: Sequence[BuildLine]) -> None:
        """Store lines of the log of a build. Lines beyond ``MAX_LINES`` are dropped."""
        stored = self._lines.get(build.id)
        if stored is None:
            last = await self._templates.list_lines(build.id, after=0, limit=MAX_LINES + 1)
            stored = len(last)
        room = MAX_LINES - stored
        kept = [replace(line, text=line.text[:MAX_LINE_CHARS]) for line in lines[: max(0, room)]]
        if 0 <= room < len(lines):
            kept.append(BuildLine(self._clock.now(), LogLevel.WARNING, f"The log has {MAX_LINES} lines. Further lines are dropped.", build.step))
        self._lines[build.id] = stored + len(kept)
        if kept:
            await self._templates.add_lines(build.id, kept)
            self._wakeups.wake(build.id)

    async def finish(self, build: BuildRecord, root: BuiltRoot, settings: TemplateSettings, snapshot_bytes: int = 0) -> BuildRecord | None:
        """Record that a build is ready. Its template gets its tags and limits. Return the changed build; None if it has ended or was deleted.

        Args:
            build: The build.
            root: Root file system.
            settings: Settings of sandboxes.
            snapshot_bytes: Size of the snapshot of the template; 0 if none was made.
        """
        ended_at = self._clock.now()
        ready = replace(build, status=BuildStatus.READY, ended_at=ended_at, step="", root=root, settings=settings, snapshot_bytes=snapshot_bytes)
        return await self._end(ready)

    async def fail(self, build: BuildRecord, error: SandlotError, step: str = "") -> BuildRecord | None:
        """Record that a build has failed. Return the changed build; None if it has ended or was deleted.

        Args:
            build: The build.
            error: Reason.
            step: Step that failed; empty: the one that runs.
        """
        return await self._end(replace(build, status=BuildStatus.FAILED, ended_at=self._clock.now(), step=step or build.step, error=str(error)))

    async def cancel(self, build: BuildRecord) -> BuildRecord | None:
        """Record that a build was cancelled. Return the changed build; None if it has ended or was deleted."""
        return await self._end(replace(build, status=BuildStatus.CANCELLED, ended_at=self._clock.now()))

    async def _remove_old(self, template: TemplateId, *, kept: str) -> None:
        """Delete old builds of a template that no tag names.

        The newest ``KEPT_UNTAGGED`` ready ones and ``KEPT_FAILED`` others stay, and ``kept``, which has just ended and whose caller reads it.
        """
        record = await self._templates.get(template)
        tagged = set() if record is None else set(record.tags.values())
        builds = await self._templates.list_builds(owner=None, template=template, limit=MAX_LISTED)
        ended = [build for build in builds if build.status.has_ended and build.id not in tagged]
        ready = [build for build in ended if build.status is BuildStatus.READY]
        failed = [build for build in ended if build.status is not BuildStatus.READY]
        for build in (*ready[KEPT_UNTAGGED:], *failed[KEPT_FAILED:]):
            if build.id != kept:
                await self._templates.remove_build(build.id)

    async def _end(self, record: BuildRecord) -> BuildRecord | None:
        self._lines.pop(record.id, None)
        saved = await self._save(record)
        if saved is not None:
            await self._remove_old(record.template, kept=record.id)
        return saved

    async def _save(self, record: BuildRecord) -> BuildRecord | None:
        saved = await self._templates.save_build(record)
        self._wakeups.wake(record.id)
        return record if saved else None


def check_name(name: str) -> None:
    """Refuse a name that a template cannot have.

    Raises:
        InvalidRequestError: The name is invalid.
    """
    if not TEMPLATE_NAME.fullmatch(name) or TEMPLATE_ID.fullmatch(name):
        raise InvalidRequestError(
            f"{name[:64]!r} is not the name of a template.",
            hint="Use 1 to 128 characters of a-z, 0-9, '-' and '_'; the first and the last one are a letter or a digit.",
            fields={"field": "name"},
        )


def template_not_found(template: str) -> NotFoundError:
    """Return the error for a template that does not exist or is not visible."""
    return NotFoundError(
        f"There is no template {template[:64]!r} of this key.",
        code=ErrorCode.TEMPLATE_NOT_FOUND,
        hint="List the templates to find their names.",
        fields={"template": template[:64]},
    )


def _check_unfinished(unfinished: Sequence[BuildRecord], alone: TemplateId | None) -> None:
    """Check that an owner with these unfinished builds can request another one; of the template ``alone``, no build may be unfinished."""
    waiting = sum(build.status is BuildStatus.WAITING for build in unfinished)
    if waiting >= MAX_WAITING:
        raise LimitError(f"This key has {waiting} builds that have not begun, the maximum.", hint="Start or cancel them, or delete their templates.")
    for build in unfinished:
        if build.template == alone:
            raise ConflictError("A build of the template has not ended.", hint="Cancel the build first.", fields={"build": build.id})


def _check_tag(tag: str) -> None:
    if not TEMPLATE_TAG.fullmatch(tag):
        raise InvalidRequestError(
            f"{tag[:64]!r} is not a tag.", hint="Use 1 to 128 characters of A-Z, a-z, 0-9, '.', '-' and '_'.", fields={"field": "tags"}
        )


def _owner(principal: Principal) -> OwnerId | None:
    return None if principal.operator else principal.owner


def _build_not_found(build: str) -> NotFoundError:
    return NotFoundError(
        f"There is no build {build[:64]!r}.",
        code=ErrorCode.BUILD_NOT_FOUND,
        hint="List the builds of the template to find their ids.",
        fields={"build": build[:64]},
    )
