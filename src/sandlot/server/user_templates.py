"""The template store of the service: built-in templates, and templates that users have built.

Invariants:
- A build of a user is a list of layers in the database; its root image is a cache that is made again when it is needed.
- A reference names a build by its id, because builds with other settings can have the same root image. The digest finds the root image of a build
  that was deleted, or that was made with the guest of another version.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sandlot.builds.merged_root_images import MergedRootImages
from sandlot.core.pools.models import content_of
from sandlot.core.ports import ResolvedTemplate, TemplateStore
from sandlot.model.access import INTERNAL, LOCAL, OwnerId, Principal
from sandlot.model.errors import ErrorCode, NotFoundError
from sandlot.model.ids import TEMPLATE_ID, TemplateId
from sandlot.model.images import Layer
from sandlot.model.repositories import TemplateRepository
from sandlot.model.service import TemplateInfo
from sandlot.model.specs import RootKind, TemplateRef
from sandlot.model.templates import DEFAULT_TEMPLATE_TAG, TEMPLATE_NAME, BuildRecord, TemplateDefaults, TemplateRecord

MAX_LENT: Final = 1_000
"""Maximum number of root images that are lent at a time."""
MAX_LISTED: Final = 1_000
"""Maximum number of templates of one owner that :meth:`UserTemplates.list` returns."""
_LENT: Final = "root."
"""Beginning of the names of lent root images, which no template can have."""


@dataclass(frozen=True, slots=True)
class _Lent:
    """A root image from which builds start sandboxes."""

    digest: str
    env: Mapping[str, str]


class UserTemplates:
    """Implements the template store of core. A name means the template of the principal, else that of the operator, else the built-in template.

    Args:
        builtin: Store of the built-in templates.
        records: Templates and builds of users.
        roots: Makes root images.
        open_layer: Function that yields a stored layer.
    """

    def __init__(
        self, builtin: TemplateStore, records: TemplateRepository, roots: MergedRootImages, open_layer: Callable[[Layer], AsyncIterator[bytes]]
    ) -> None:
        self._builtin = builtin
        self._records = records
        self._roots = roots
        self._open_layer = open_layer
        self._digests: dict[str, str] = {}
        """Id of a build -> digest of its root image, which depends on the guest layer and so does not change while the service runs."""
        self._lent: OrderedDict[tuple[OwnerId, str], _Lent] = OrderedDict()
        """Owner and name -> root image that builds start sandboxes from without a template of their own."""

    async def list(self, principal: Principal) -> Sequence[TemplateInfo]:
        """Return the built-in templates, those of the operator and those of a principal that have a ready build or one that runs, by name."""
        found = {each.name: each for each in await self._builtin.list(principal)}
        for owner in dict.fromkeys((LOCAL, principal.owner)):
            for record in await self._records.list(owner=owner, before=None, limit=MAX_LISTED):
                if record.name not in found or (record.tags and owner != LOCAL):  # a template that `find` does not mean hides no other one
                    found[record.name] = await self._info(record)
        return [found[name] for name in sorted(found)]

    def lend(self, principal: Principal, digest: str, env: Mapping[str, str]) -> str:
        """Let a principal start sandboxes from a root image that belongs to no template, and return the name for it.

        The name is valid until the service stops, or until :data:`MAX_LENT` other root images were lent.
        """
        name = _LENT + hashlib.sha256(json.dumps([digest, dict(env)], sort_keys=True).encode()).hexdigest()
        self._lent[principal.owner, name] = _Lent(digest, env)
        self._lent.move_to_end((principal.owner, name))
        if len(self._lent) > MAX_LENT:
            self._lent.popitem(last=False)
        return name

    async def current_build(self, ref: TemplateRef) -> BuildRecord | None:
        """Return the build of a user's template that a reference means; None for a built-in template.

        Raises:
            NotFoundError: The template has no current build.
        """
        found = await self._find_build(ref)
        return None if found is None else found[1]

    async def snapshot_contents(self, builds: Collection[BuildRecord]) -> Collection[str]:
        """Return ``models.content_of`` the snapshots from which sandboxes of builds are restored. Their limits are those of the template."""
        found = set()
        for build in builds:
            record = await self._records.get(build.template)
            if record is not None and build.root is not None:
                defaults = build.defaults(record.limits, await self._digest(build))
                found.add(content_of(build.owner, build.settings.env, defaults))
        return found

    async def find(self, principal: Principal, name: str) -> TemplateRef | None:
        """Return the template that a name, a name with a tag (``web:v1``) or the id of a template means; None if there is none."""
        if principal == INTERNAL:
            return await self._builtin.find(principal, name)
        if name.startswith(_LENT):
            lent = self._lent.get((principal.owner, name))
            return None if lent is None else TemplateRef(principal.owner, name, lent.digest)
        base, _, tag = name.partition(":")
        record = await self._find(principal, base)
        if record is None:
            return None if tag else await self._builtin.find(principal, name)
        if not tag or tag == DEFAULT_TEMPLATE_TAG:
            return TemplateRef(record.owner, record.name)
        return None if await self._tagged(record, tag) is None else TemplateRef(record.owner, record.name, tag=tag)

    async def defaults(self, ref: TemplateRef) -> TemplateDefaults:
        """Return what sandboxes of a template get if their request does not say otherwise."""
        if ref.name.startswith(_LENT):
            return TemplateDefaults(root_kind=RootKind.IMAGE)
        found = await self._find_build(ref)
        if found is not None:
            record, build = found
            return build.defaults(record.limits, await self._digest(build))
        if ref.digest and not await self._is_builtin(ref.owner, ref.name):  # of a deleted build that a snapshot uses
            return TemplateDefaults(root_kind=RootKind.IMAGE)
        return await self._builtin.defaults(ref)

    async def build(self, ref: TemplateRef, *, images: bool) -> ResolvedTemplate:
        """Return the current build of a template. The root image of a user's template is made first if it is not in the cache, in seconds."""
        found = await self._find_build(ref)
        return await self._builtin.build(ref, images=images) if found is None else await self._resolve(found[1])

    async def at(self, ref: TemplateRef) -> ResolvedTemplate | None:
        """Return the build that ``ref`` names; None if it was removed. A root image that was evicted is made again."""
        found = await self._find_build(ref)
        if found is not None and await self._digest(found[1]) == ref.digest:
            return await self._resolve(found[1])
        root = await self._roots.find(ref.digest)
        if root is None:
            return await self._builtin.at(ref)
        if found is not None:
            return ResolvedTemplate(root, found[1].settings.env, ref.build)
        lent = self._lent.get((ref.owner, ref.name))
        return ResolvedTemplate(root, {} if lent is None else lent.env, ref.build)  # or of a deleted build that a sandbox or a snapshot uses

    async def _find(self, principal: Principal, name: str) -> TemplateRecord | None:
        if TEMPLATE_ID.fullmatch(name):
            record = await self._records.get(TemplateId(name))
            return record if record is not None and (principal.sees(record.owner) or record.owner == LOCAL) else None
        if not TEMPLATE_NAME.fullmatch(name):
            return None
        for owner in dict.fromkeys((principal.owner, LOCAL)):
            if not await self._is_builtin(owner, name) and (record := await self._records.find(owner, name)) is not None and record.tags:
                return record
        return None

    async def _is_builtin(self, owner: OwnerId, name: str) -> bool:
        """Return whether only a built-in or internal template can have a name, so that no record has to be read."""
        return owner == LOCAL and await self._builtin.find(INTERNAL, name) is not None

    async def _find_build(self, ref: TemplateRef) -> tuple[TemplateRecord, BuildRecord] | None:
        """Return the template and the build that a reference means; None for a built-in template, a lent root image and a deleted build.

        Raises:
            NotFoundError: The template or the build was deleted, or no build has the tag of the reference.
        """
        if ref.build:
            build = await self._records.get_build(ref.build)
            record = None if build is None else await self._records.get(build.template)
            if build is not None and build.root is not None and record is not None:
                return record, build
            if ref.digest:  # the root image of a deleted build, which a sandbox or a snapshot uses
                return None
            raise NotFoundError(
                f"The build {ref.build} of the template {ref.name} was deleted.", code=ErrorCode.BUILD_NOT_FOUND, fields={"build": ref.build}
            )
        if ref.digest or await self._is_builtin(ref.owner, ref.name):
            return None
        record = await self._records.find(ref.owner, ref.name)
        if record is None:
            if ref.owner != LOCAL and await self._builtin.find(INTERNAL, ref.name) is not None:  # a deleted template is no built-in one of its name
                raise NotFoundError(
                    f"The template {ref.name} was deleted.", code=ErrorCode.TEMPLATE_NOT_FOUND, hint="Build it again.", fields={"template": ref.name}
                )
            return None
        tag = ref.tag or DEFAULT_TEMPLATE_TAG
        build = await self._tagged(record, tag)
        if build is None:
            raise NotFoundError(
                f"The template {ref.name} has no build with the tag `{tag}`.",
                code=ErrorCode.TEMPLATE_NOT_FOUND,
                hint="Build it, or name a tag: `NAME:TAG`.",
                fields={"template": ref.name},
            )
        return record, build

    async def _tagged(self, record: TemplateRecord, tag: str) -> BuildRecord | None:
        build = record.tags.get(tag)
        found = None if build is None else await self._records.get_build(build)
        return found if found is not None and found.root is not None else None

    async def _resolve(self, build: BuildRecord) -> ResolvedTemplate:
        if build.root is None:
            raise NotFoundError(f"The build {build.id} is not ready.", code=ErrorCode.BUILD_NOT_FOUND, fields={"build": build.id})
        return ResolvedTemplate(await self._roots.ensure(build.root, self._open_layer), build.settings.env, build.id)

    async def _digest(self, build: BuildRecord) -> str:
        if build.id not in self._digests and build.root is not None:
            self._digests[build.id] = await self._roots.digest(build.root)
        return self._digests.get(build.id, "")

    async def _info(self, record: TemplateRecord) -> TemplateInfo:
        build = await self._tagged(record, DEFAULT_TEMPLATE_TAG)
        digest = None if build is None else await self._digest(build)
        return TemplateInfo(record.name, "", digest, id=record.id, owner=record.owner, limits=record.limits)
