"""Templates of the service: the built-in recipes, whose root filesystem images an image store builds.

A template has two root file systems with the same content: a folder, from which each driver can start sandboxes, and an EROFS image, from which
gVisor starts them faster. The folder is built at the first use. The image is a cache: it is made in the background, and used from the next start of
the service on.

Invariants:
- Builds take no thread that short work of the service needs, and a template that is built does not wait for the builds of others.
- A service uses the folder or the image of a template from its start to its end, so that its warm sandboxes and template snapshots stay usable. If
  the image is removed meanwhile, the service uses the folder.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from typing import Final

import structlog

from sandlot.core.ports import ResolvedTemplate
from sandlot.host.blocking import run_in_own_thread
from sandlot.images.recipe import Recipe
from sandlot.images.store import BUILDER, WITH_BASE, ImageStore
from sandlot.model.access import INTERNAL, LOCAL, Principal
from sandlot.model.errors import SandlotError
from sandlot.model.service import TemplateInfo
from sandlot.model.specs import Limits, RootFs, TemplateRef
from sandlot.model.templates import TemplateDefaults

MAX_BUILDS: Final = 2
"""Maximum number of templates that are built at the same time. A build takes one processor for minutes."""

_log = structlog.get_logger("sandlot.server")


class ImageTemplates:
    """Implements the template store of core with the recipes of an image store. All of them are built-in templates, which every principal can name.

    Args:
        store: Builds and keeps the root filesystem images.
    """

    def __init__(self, store: ImageStore) -> None:
        self._store = store
        self._build_slots = asyncio.Semaphore(MAX_BUILDS)
        self._steps: dict[str, str] = {}
        self._uses_image: dict[str, bool] = {}
        """Name of a template -> True if its image existed when the template was first used."""
        self._making: set[asyncio.Task[None]] = set()

    async def list(self, _principal: Principal) -> Sequence[TemplateInfo]:
        """Return all templates and the state of their builds."""
        return await asyncio.to_thread(self._list)

    async def find(self, principal: Principal, name: str) -> TemplateRef | None:
        """Return the built-in template of a name, or None if there is none. Only the service itself finds internal images."""
        known = self._store.all_recipes if principal == INTERNAL else self._store.recipes
        return TemplateRef(LOCAL, name) if _recipe(name) in known and (principal == INTERNAL or _recipe(name) == name) else None

    async def defaults(self, ref: TemplateRef) -> TemplateDefaults:
        """Return the defaults of a recipe."""
        name = _recipe(ref.name)
        return TemplateDefaults(limits=self._limits(name), languages=self._store.languages(name))

    async def build(self, ref: TemplateRef, *, images: bool) -> ResolvedTemplate:
        """Return the current build of a template. A template without a build is built first; :meth:`list` shows the progress."""
        if ref.name != _recipe(ref.name):
            base = ref.name.removeprefix(WITH_BASE)
            return self._resolved(ref, await run_in_own_thread(self._store.builder_image, base, self._log_step))
        root = await asyncio.to_thread(self._store.find_current_root, ref.name)
        if root is None:
            async with self._build_slots:
                root = await run_in_own_thread(self._build, ref.name)
        image = await self._image(ref.name) if images else None
        return self._resolved(ref, image or root)

    async def at(self, ref: TemplateRef) -> ResolvedTemplate | None:
        """Return the build of a template with the digest of ``ref``. None: the build has been removed. An evicted image is made again."""
        root = await asyncio.to_thread(self._store.find_root, ref.digest)
        if root is None:
            root = await run_in_own_thread(self._store.restore_root_image, ref.digest, self._log_step)
        return None if root is None else self._resolved(ref, root)

    async def aclose(self) -> None:
        """End running builds, so that the stop of the service does not wait for a whole build, which takes minutes. Idempotent."""
        self._store.stop.set()
        if self._making:
            await asyncio.wait(self._making)

    async def _image(self, name: str) -> RootFs | None:
        """Return the EROFS image of a template, or None if the service uses its folder. At the first use, make an image that does not exist."""
        if not self._uses_image.get(name, True):
            return None
        image = await asyncio.to_thread(self._store.find_current_root_image, name)
        if name not in self._uses_image:
            self._uses_image[name] = image is not None
            if image is None and BUILDER in self._store.all_recipes:
                making = asyncio.create_task(self._make_image(name))
                self._making.add(making)
                making.add_done_callback(self._making.discard)
        return image if self._uses_image[name] else None

    async def _make_image(self, name: str) -> None:
        """Make the image of a template for the next start of the service. A failure is logged: the folder has the same content."""
        try:
            async with self._build_slots:
                await run_in_own_thread(self._store.root_image, name, self._log_step)
        except (SandlotError, OSError) as error:
            if not self._store.stop.is_set:
                _log.info("template.image_not_made", template=name, error=str(error))

    def _list(self) -> Sequence[TemplateInfo]:
        return [self._info(name, recipe) for name, recipe in sorted(self._store.recipes.items())]

    def _info(self, name: str, recipe: Recipe) -> TemplateInfo:
        image, languages = self._store.find(name), self._store.languages(name) or frozenset()
        versions = {} if image is None else image.languages
        return TemplateInfo(
            name=name,
            description=recipe.description,
            digest=None if image is None else image.digest,
            building=self._steps.get(name),
            languages={language: versions.get(language) for language in sorted(languages)},
            limits=self._limits(name),
        )

    def _limits(self, name: str) -> Limits:
        memory_bytes = self._store.memory_bytes(name)
        return Limits() if memory_bytes is None else Limits(memory_bytes=memory_bytes)

    def _build(self, name: str) -> RootFs:
        try:
            return self._store.root(name, functools.partial(self._progress, name))
        finally:
            self._steps.pop(name, None)

    def _resolved(self, ref: TemplateRef, root: RootFs) -> ResolvedTemplate:
        return ResolvedTemplate(root=root, env=self._store.environment(_recipe(ref.name)))

    def _progress(self, name: str, line: str) -> None:
        self._log_step(line)
        self._steps[name] = line.removeprefix(f"{name}: ")

    def _log_step(self, line: str) -> None:
        self._store.stop.check()
        _log.info("template.build", step=line)


def _recipe(name: str) -> str:
    """Return the recipe of a template: that of the builder also for the builder with the archive of another image."""
    return BUILDER if name.startswith(WITH_BASE) else name
