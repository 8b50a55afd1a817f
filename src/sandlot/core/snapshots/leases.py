"""Leases on the folders of snapshots: the folder of a deleted snapshot is removed when its last lease ends.

Invariant: Between finding the record of a snapshot and leasing its folder there is no ``await``, so the folder is not removed in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from sandlot.core.concurrency import TaskSet
from sandlot.core.lifecycle.memory_images import MemoryImages
from sandlot.model.ids import SnapshotId


class FolderLeases:
    """Leases on the folders of snapshots.

    Attributes:
        tasks: Tasks that remove folders.
    """

    def __init__(self, images: MemoryImages) -> None:
        self._images = images
        self._leases: Counter[SnapshotId] = Counter()
        self._deleted: set[SnapshotId] = set()
        self.tasks = TaskSet("snapshot.internal_error")

    def is_deleted(self, id_: SnapshotId) -> bool:
        """Return whether a snapshot was deleted and its folder is not removed yet."""
        return id_ in self._deleted

    @contextmanager
    def lease(self, id_: SnapshotId) -> Iterator[None]:
        """Keep the folder of a snapshot while the block runs, even if the snapshot is deleted meanwhile."""
        self._leases[id_] += 1
        try:
            yield
        finally:
            self._leases[id_] -= 1
            self._remove_if_unused(id_)

    def delete(self, id_: SnapshotId) -> None:
        """Remove the folder of a deleted snapshot in the background, at once or when its last lease ends. Idempotent."""
        self._deleted.add(id_)
        self._remove_if_unused(id_)

    def _remove_if_unused(self, id_: SnapshotId) -> None:
        if self._leases[id_] > 0:
            return
        del self._leases[id_]
        if id_ in self._deleted:
            self.tasks.spawn(self._remove(id_))

    async def _remove(self, id_: SnapshotId) -> None:
        await self._images.remove(id_)
        self._deleted.discard(id_)
