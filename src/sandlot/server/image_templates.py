"""Templates of the service: the built-in recipes, whose root filesystem images an image store builds.

Invariant: builds take no thread that short work of the service needs, and a template that is built does not wait for the builds of others.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Sequence
from typing import Final

import structlog

from sandlot.core.ports import ResolvedTemplate, TemplateDefaults
from sandlot.host.blocking import run_in_own_thread
from sandlot.images.store import ImageStore
from sandlot.model.access import INTERNAL, LOCAL, Principal
from sandlot.model.errors import ErrorCode, UnavailableError
from sandlot.model.service import TemplateInfo
from sandlot.model.specs import RootFs, TemplateRef

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
        self._stopping = threading.Event()
        self._steps: dict[str, str] = {}

    async def list(self, _principal: Principal) -> Sequence[TemplateInfo]:
        """Return all templates and the state of their builds."""
        return await asyncio.to_thread(self._list)

    async def find(self, principal: Principal, name: str) -> TemplateRef | None:
        """Return the built-in template of a name, or None if there is none. Only the service itself finds internal images."""
        known = self._store.all_recipes if principal == INTERNAL else self._store.recipes
        return TemplateRef(LOCAL, name) if name in known else None

    async def defaults(self, _ref: TemplateRef) -> TemplateDefaults:
        """Return the defaults of all recipes."""
        return TemplateDefaults()

    async def build(self, ref: TemplateRef) -> ResolvedTemplate:
        """Return the current build of a template. A template without a build is built first; :meth:`list` shows the progress."""
        root = await asyncio.to_thread(self._store.find_current_root, ref.name)
        if root is None:
            async with self._build_slots:
                root = await run_in_own_thread(self._build, ref.name)
        return self._resolved(ref, root)

    async def at(self, ref: TemplateRef) -> ResolvedTemplate | None:
        """Return the build of a template with the digest of ``ref``. None: the build has been removed."""
        root = await asyncio.to_thread(self._store.find_root, ref.digest)
        return None if root is None else self._resolved(ref, root)

    def stop(self) -> None:
        """End a running build at its next step, so that the stop of the service does not wait for the whole build, which takes minutes."""
        self._stopping.set()

    def _list(self) -> Sequence[TemplateInfo]:
        return [
            TemplateInfo(
                name=name,
                description=recipe.description,
                digest=None if (image := self._store.find(name)) is None else image.digest,
                building=self._steps.get(name),
            )
            for name, recipe in sorted(self._store.recipes.items())
        ]

    def _build(self, name: str) -> RootFs:
        try:
            return self._store.root(name, functools.partial(self._progress, name))
        finally:
            self._steps.pop(name, None)

    def _resolved(self, ref: TemplateRef, root: RootFs) -> ResolvedTemplate:
        return ResolvedTemplate(root=root, env=self._store.environment(ref.name))

    def _progress(self, name: str, line: str) -> None:
        if self._stopping.is_set():
            raise UnavailableError(
                "The service is stopping.",
                code=ErrorCode.SERVICE_UNAVAILABLE,
                hint="Retry when the service has restarted.",
                fields={"retry_after_s": 1},
            )
        self._steps[name] = line.removeprefix(f"{name}: ")
        _log.info("template.build", step=line)
