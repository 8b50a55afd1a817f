"""Cache of steps: snapshots of build sandboxes, and the results of whole builds, found by what was done.

Invariants:
- A key contains everything on which a step depends: the step before, type and arguments, user, environment and folder, and the contents of files.
- The cache of an owner is never used for another one: the owner is a part of each key, and snapshots belong to their owner.
- A snapshot that cannot be made or used costs time, and never fails a build.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import structlog

from sandlot.builds.layers import LayerStore
from sandlot.builds.limits import BuildLimits
from sandlot.core.node import Node
from sandlot.core.ports import Clock
from sandlot.host.blocking import run_blocking
from sandlot.model.access import Principal
from sandlot.model.errors import NotFoundError, SandlotError
from sandlot.model.images import Layer
from sandlot.model.records import SnapshotRecord
from sandlot.model.repositories import Position
from sandlot.model.specs import SnapshotKind

PREFIX: Final = "sandlot-build-"
"""First characters of the names of the snapshots of the cache."""
GENERATION: Final = 1
"""Part of every key. Raise this number when a change makes other files from the same steps."""
_KEY_CHARS: Final = 40
_PAGE: Final = 100

_log = structlog.get_logger("sandlot.builds")


def step_key(before: str, values: Mapping[str, Any]) -> str:
    """Return the key of a step. Pure.

    Args:
        before: Key of the step before, or of the base.
        values: Everything on which the step depends; JSON values.
    """
    return hashlib.sha256(json.dumps([GENERATION, before, values], sort_keys=True).encode()).hexdigest()


def base_key(owner: str, digest: str) -> str:
    """Return the key with which the steps of an owner on a base begin. Pure."""
    return step_key("", {"owner": owner, "base": digest})


class StepCache:
    """The cache of all owners of a node.

    Args:
        node: Node with the snapshots.
        folder: Folder of the runtime.
        limits: Limits of the cache.
        clock: Clock of the service.
    """

    def __init__(self, node: Node, folder: Path, limits: BuildLimits, clock: Clock) -> None:
        self._node = node
        self._folder = folder / "results"
        self._limits = limits
        self._clock = clock
        self._lock = asyncio.Lock()

    # Steps -----------------------------------------------------------------------------------------------------------

    async def find(self, principal: Principal, key: str) -> SnapshotRecord | None:
        """Return the snapshot after a step, or None."""
        if not self._limits.cache_bytes:
            return None
        try:
            found = await self._node.snapshots.get(principal, _name(key))
        except NotFoundError:
            return None
        return None if found.problem or found.owner != principal.owner else found

    async def save(self, principal: Principal, sandbox: str, key: str) -> None:
        """Save a sandbox after a step, and make room for it."""
        if not self._limits.cache_bytes or await self.find(principal, key) is not None:
            return
        try:
            await self._node.snapshots.create(principal, sandbox, name=_name(key), kind=SnapshotKind.MEMORY)
            await self._evict(principal)
        except SandlotError as error:
            _log.info("build.step_not_cached", sandbox=sandbox, error=str(error))

    async def forget(self, principal: Principal, snapshot: SnapshotRecord) -> None:
        """Remove a snapshot that cannot be used."""
        try:
            await self._node.snapshots.delete(principal, snapshot.id)
        except NotFoundError:
            return

    async def _evict(self, principal: Principal) -> None:
        """Remove the oldest snapshots of an owner above the size of the cache, and those that are too old."""
        async with self._lock:
            found = await self._list(principal)
            total, oldest = sum(each.size_bytes for each in found), self._clock.now() - timedelta(seconds=self._limits.cache_s)
            for each in found:
                if total > self._limits.cache_bytes or each.created_at < oldest:
                    total -= each.size_bytes
                    await self.forget(principal, each)

    async def _list(self, principal: Principal) -> list[SnapshotRecord]:
        found: list[SnapshotRecord] = []
        after: Position | None = None
        while True:
            page = await self._node.snapshots.list(principal, after=after, limit=_PAGE)
            found += [each for each in page.items if each.owner == principal.owner and (each.name or "").startswith(PREFIX)]
            if not page.more:
                return found
            after = Position(page.items[-1].created_at, page.items[-1].id)

    # Results ---------------------------------------------------------------------------------------------------------

    async def find_layer(self, key: str, layers: LayerStore) -> Layer | None:
        """Return the layer that the same steps have made before, if it is still stored."""
        layer = await run_blocking(_read_result, self._folder / key)
        return layer if layer is not None and self._limits.cache_bytes and layers.has(layer.digest) else None

    async def prune_results(self, layers: LayerStore) -> None:
        """Remove the results whose layer is not stored anymore.

        Raises:
            OSError: The disk failed.
        """

        def remove() -> None:
            for path in self._folder.iterdir() if self._folder.is_dir() else ():
                layer = _read_result(path)
                if layer is None or not layers.has(layer.digest):
                    path.unlink(missing_ok=True)

        await run_blocking(remove)

    async def save_layer(self, key: str, layer: Layer) -> None:
        """Remember the layer that a build has made."""

        def write() -> None:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft = self._folder / f"{key}.part"
            draft.write_text(json.dumps(asdict(layer)))
            draft.rename(self._folder / key)

        try:
            await run_blocking(write)
        except OSError as error:
            _log.info("build.result_not_cached", error=str(error))


def _read_result(path: Path) -> Layer | None:
    try:
        return Layer(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _name(key: str) -> str:
    return PREFIX + key[:_KEY_CHARS]
