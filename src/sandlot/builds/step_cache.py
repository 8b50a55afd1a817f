"""Cache of steps: snapshots of build sandboxes, and the results of whole builds, found by what was done.

Invariants:
- A key contains everything on which a step depends: the step before, type and arguments, user, environment and folder, and the contents of files.
- The cache of an owner is never used for another one: the owner is a part of each key and of the name of each snapshot.
- Snapshots belong to the service itself: owners do not see them, and no quota counts them. The sizes of the cache of each owner and of the node are
  limited. The oldest steps are removed whenever a step is saved, and from time to time.
- A snapshot that cannot be made or used costs time, and never fails a build.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
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
from sandlot.model.access import INTERNAL, OwnerId, Principal
from sandlot.model.errors import NotFoundError, SandlotError
from sandlot.model.images import Layer
from sandlot.model.records import SnapshotRecord
from sandlot.model.repositories import Position
from sandlot.model.specs import SnapshotKind

PREFIX: Final = "build-"
"""First characters of the names of the snapshots of the cache. The node, the owner and the key follow."""
GENERATION: Final = 1
"""Part of every key. Raise this number when a change makes other files from the same steps."""
_KEY_CHARS: Final = 32
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

    async def find(self, owner: OwnerId, key: str) -> SnapshotRecord | None:
        """Return the snapshot after a step of an owner, or None."""
        if not self._limits.cache_bytes:
            return None
        try:
            found = await self._node.snapshots.get(INTERNAL, self._name(owner, key))
        except NotFoundError:
            return None
        return None if found.problem else found

    async def save(self, principal: Principal, sandbox: str, owner: OwnerId, key: str) -> None:
        """Save a sandbox after a step, and make room for it.

        Args:
            principal: Principal that sees the sandbox.
            sandbox: Sandbox of the build.
            owner: Owner of the build.
            key: Key of the step.
        """
        if not self._limits.cache_bytes or await self.find(owner, key) is not None:
            return
        try:
            await self._node.snapshots.create(principal, sandbox, name=self._name(owner, key), kind=SnapshotKind.MEMORY, internal=True)
        except SandlotError as error:
            _log.info("build.step_not_cached", sandbox=sandbox, error=str(error))
        await self.evict()

    async def forget(self, snapshot: SnapshotRecord) -> None:
        """Remove a snapshot that cannot be used."""
        try:
            await self._node.snapshots.delete(INTERNAL, snapshot.id)
        except NotFoundError:
            return

    async def evict(self) -> None:
        """Remove the snapshots of this node that are too old, and the oldest ones of each owner and of the node above the size of the cache."""
        try:
            async with self._lock:
                used: Counter[str] = Counter()
                total_bytes = 0
                oldest = self._clock.now() - timedelta(seconds=self._limits.cache_s)
                for each in reversed(await self._list()):
                    owner = (each.name or "").rpartition("-")[0]
                    used[owner] += each.size_bytes
                    is_over = used[owner] > self._limits.cache_bytes or total_bytes + each.size_bytes > self._limits.node_cache_bytes
                    if is_over or each.created_at < oldest:
                        await self.forget(each)
                    else:
                        total_bytes += each.size_bytes
        except SandlotError as error:
            _log.warning("build.steps_not_removed", error=str(error))

    async def _list(self) -> list[SnapshotRecord]:
        """Return the snapshots of all owners on this node, the oldest first."""
        found: list[SnapshotRecord] = []
        after: Position | None = None
        while True:
            page = await self._node.snapshots.list(INTERNAL, after=after, limit=_PAGE)
            found += [each for each in page.items if (each.name or "").startswith(f"{PREFIX}{self._node.id}-")]
            if not page.more:
                return found
            after = Position(page.items[-1].created_at, page.items[-1].id)

    def _name(self, owner: OwnerId, key: str) -> str:
        """Return the name of a snapshot. It contains the node, because nodes can share a store."""
        return f"{PREFIX}{self._node.id}-{owner}-{key[:_KEY_CHARS]}"

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
