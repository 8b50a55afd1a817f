"""Templates of the service: the built-in recipes, whose root filesystem images an image store builds."""

from __future__ import annotations

import functools
import threading
from collections.abc import Collection, Sequence

import structlog

from sandlot.core.ports import ResolvedTemplate
from sandlot.images.recipe import builtin
from sandlot.images.store import ImageStore
from sandlot.model.errors import ErrorCode, UnavailableError
from sandlot.model.service import TemplateInfo

_log = structlog.get_logger("sandlot.server")


class ImageTemplates:
    """Implements the template store of core with the built-in recipes and their images.

    Args:
        store: Builds and keeps the root filesystem images.
    """

    def __init__(self, store: ImageStore) -> None:
        self._store = store
        self._recipes = builtin()
        self._stopping = threading.Event()
        self._steps: dict[str, str] = {}

    def names(self) -> Collection[str]:
        """Return the names of all templates."""
        return self._recipes

    def all(self) -> Sequence[TemplateInfo]:
        """Return all templates and the state of their builds."""
        return [
            TemplateInfo(
                name=name,
                description=recipe.description,
                digest=None if (image := self._store.find(name)) is None else image.digest,
                building=self._steps.get(name),
            )
            for name, recipe in sorted(self._recipes.items())
        ]

    def find(self, name: str) -> ResolvedTemplate | None:
        """Return the current build of a template. None: the template, or its layer of the guest, is not built."""
        root = self._store.find_current_root(name)
        return None if root is None else ResolvedTemplate(root=root, env=self._store.environment(name))

    def base(self, name: str) -> ResolvedTemplate:
        """Return the current build of a template. A template without a build is built first; :meth:`all` shows the progress."""
        try:
            root = self._store.root(name, functools.partial(self._progress, name))
        finally:
            self._steps.pop(name, None)
        return ResolvedTemplate(root=root, env=self._store.ensure(name).env)

    def at(self, name: str, digest: str) -> ResolvedTemplate | None:
        """Return the build of a template with the given digest. None: the build has been removed."""
        root = self._store.find_root(digest)
        return None if root is None else ResolvedTemplate(root=root, env=self._store.environment(name))

    def stop(self) -> None:
        """End a running build at its next step, so that the stop of the service does not wait for the whole build, which takes minutes."""
        self._stopping.set()

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
