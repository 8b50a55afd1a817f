"""Root images that are merged from layers in a sandbox. Each is made once, and cached.

A *root image* is the image of a root file system: an EROFS file with its index. :mod:`sandlot.images.erofs_image` makes those of built-in templates
on the host, from a tree that Sandlot has built itself. The ones here are made from layers of strangers. So :mod:`~sandlot.builds.merge_sandbox` makes
them in a sandbox, where no layer can name a path, an owner or a device of the host.

The cache has a folder ``erofs/DIGEST`` for each root image, whose digest is the SHA-256 of everything from which it is made. A root image that was
evicted is made again in seconds.

Invariants, in addition to those of :mod:`sandlot.host.locked_folder`:
- A root image is made once, whatever the number of callers and of services that share the cache.
- A root image that a live or hibernated sandbox or a snapshot of a service uses is not evicted.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandlot.builds.merge_sandbox import BaseImage, MergeJob, MergeLimits, merge
from sandlot.core.node import Node
from sandlot.host import durable, locked_folder
from sandlot.host.blocking import outlast_cancellation, run_blocking, run_in_own_thread
from sandlot.host.free_space import FreeSpace
from sandlot.host.locked_folder import LockedFolder
from sandlot.images.artifact_cache import KEY, translated_errors
from sandlot.images.erofs_image import IMAGE, INDEX, read_uuid, uuid_of
from sandlot.images.progress import Progress, discard_progress
from sandlot.images.store import ImageStore
from sandlot.model.errors import ConflictError, ErrorCode, InternalError, NotFoundError, UnavailableError
from sandlot.model.images import Layer
from sandlot.model.specs import GIB, RootFs
from sandlot.model.templates import BuiltRoot

GENERATION: Final = 2
"""Part of every digest. Raise this number when a change makes another root image from the same layers."""
KIND: Final = "erofs"
"""Name of the folder with the root images in the cache directory."""
MAX_MERGES: Final = 2
"""Maximum number of root images that one service merges at the same time."""
UNUSED_S: Final = 600.0
"""Seconds since its last use after which a root image may be evicted. A caller starts a sandbox from it within this time."""
_POLL_S: Final = 0.2
_MANIFEST: Final = "manifest.json"

Layers = Callable[[Layer], AsyncIterator[bytes]]
"""Function that returns a layer as it is stored. It is called once for each digest, and what it yields is verified."""
InUse = Callable[[], Awaitable[Collection[str]]]
"""Function that returns the digests of all root file systems that sandboxes and snapshots of this service use."""


@dataclass(frozen=True, slots=True)
class RootImageInfo:
    """A cached root image.

    Args:
        digest: Digest of the root image.
        size_bytes: Size of both files.
        used_s: Time of the last use in seconds since the epoch.
    """

    digest: str
    size_bytes: int
    used_s: float


async def _nothing() -> Collection[str]:
    return ()


class MergedRootImages:
    """Merges layers into root images in sandboxes, and finds and evicts these images.

    Args:
        store: Image store with the builder's image, the trees of built-in templates and the guest layer.
        cache: Cache directory, which several services may share.
        max_bytes: Size of all root images together above which those are evicted that have not been used for the longest time.
        limits: Limits of one root image.
        in_use: Function that returns the digests that must not be evicted.
        reserve_bytes: Bytes of the disk that root images leave free. None: 5 %, 1 to 4 GiB.
        make: Function that makes one root image in a sandbox of a node.
    """

    def __init__(
        self,
        store: ImageStore,
        cache: Path,
        *,
        max_bytes: int = 20 * GIB,
        limits: MergeLimits | None = None,
        in_use: InUse = _nothing,
        reserve_bytes: int | None = None,
        make: Callable[[Node, MergeJob, Layers, Path, Progress], Awaitable[int]] = merge,
    ) -> None:
        self._store = store
        self._cache = cache.absolute()
        self._folder = self._cache / KIND
        self._max_bytes = max_bytes
        self._limits = limits or MergeLimits()
        self._in_use = in_use
        self._space = FreeSpace(self._cache, reserve_bytes)
        self._merge = make
        self._slots = asyncio.Semaphore(MAX_MERGES)
        self._making: dict[str, _Making] = {}
        self._held: dict[str, int] = {}
        self._node: Node | None = None
        self._guest: str | None = None

    def connect(self, node: Node) -> None:
        """Make root images in sandboxes of a node from now on. A node needs its templates first, so the constructor does not get it."""
        self._node = node

    async def aclose(self) -> None:
        """End all builds. Idempotent."""
        tasks = [making.task for making in self._making.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for descriptor in self._held.values():
            os.close(descriptor)
        self._held.clear()

    # Finding ---------------------------------------------------------------------------------------------------------

    async def digest(self, root: BuiltRoot) -> str:
        """Return the digest of the root image of a build: the SHA-256 of its layers, its base, the guest layer and :data:`GENERATION`.

        The guest layer is built first if it does not exist.
        """
        if self._guest is None:  # does not change while the service runs
            self._guest = await run_in_own_thread(self._store.ensure_guest)
        return hashlib.sha256("\0".join((str(GENERATION), self._guest, root.base, *(layer.digest for layer in root.layers))).encode()).hexdigest()

    async def find(self, digest: str) -> RootFs | None:
        """Return the root image with a digest, or None if it is not in the cache. Counts as a use."""
        return await run_blocking(self._find, digest)

    async def list_images(self) -> list[RootImageInfo]:
        """Return all root images in the cache, the one that has not been used for the longest time first."""
        return await run_blocking(self._list)

    # Making ----------------------------------------------------------------------------------------------------------

    async def ensure(self, root: BuiltRoot, layers: Layers, progress: Progress = discard_progress) -> RootFs:
        """Return the root image of a build. Make it first if it is not in the cache.

        Concurrent calls share one build, which ends when all of them are cancelled.

        Args:
            root: Root file system of the build.
            layers: Function that returns a layer as it is stored.
            progress: Function that is called with a line of text for each step, also with what was left out.

        Raises:
            InvalidRequestError: A layer is damaged or has a forbidden entry. The message and the fields ``layer`` and ``entry`` name them.
            LimitError: The root image is too large or has too many entries (``too_large``), or the disk is full (``node_disk_full``).
            ConflictError: The image of the built-in template that the build begins with was removed.
            UnavailableError: The node has no room for the sandbox in which root images are made (``busy``).
        """
        digest = await self.digest(root)
        while True:
            if (found := await self.find(digest)) is not None:
                return found
            making = self._making.get(digest)
            if making is None:
                making = self._making[digest] = _Making(lambda report: self._make(digest, root, layers, report))
                making.task.add_done_callback(lambda _task: self._making.pop(digest, None))
            with suppress(_AbandonedError):
                return await making.join(progress)

    async def evict(self, keep: Collection[str] = ()) -> list[str]:
        """Evict root images until all together are not larger than ``max_bytes``. Return the digests of those that were evicted.

        Args:
            keep: Digests that must not be evicted, in addition to those in use.
        """
        wanted = {*keep, *self._making, *await self._in_use()}
        return await run_in_own_thread(self._evict, wanted)

    async def _make(self, digest: str, root: BuiltRoot, layers: Layers, report: Progress) -> RootFs:
        if self._node is None:
            raise UnavailableError("The service is not ready to make root images.", code=ErrorCode.BUSY, fields={"retry_after_s": 1})
        async with self._slots, AsyncExitStack() as opened:
            await opened.enter_async_context(self._locked(digest, report))
            if (found := await self.find(digest)) is not None:
                return found
            with translated_errors(self._cache):
                await run_in_own_thread(locked_folder.sweep, self._cache / "tmp")
                self._space.check()
                temporary = LockedFolder(self._cache / "tmp", prefix=f"{KIND}-")
                opened.callback(temporary.close)
                base = await run_in_own_thread(self._base, root, opened) if root.base else None
                # gVisor restores memory only on an image with the same UUID. The image below decides the layout.
                uuid = uuid_of(f"{digest}\0{'' if base is None else base.uuid}")
                job = MergeJob(digest, uuid, root.layers, base, self._limits, self._space.check)
                size_bytes = await self._merge(self._node, job, layers, temporary.content, report)
                manifest = {"digest": digest, "base": root.base, "layers": [layer.digest for layer in root.layers], "size_bytes": size_bytes}
                await run_in_own_thread(self._publish, temporary, digest, manifest)
        await self.evict({digest})
        made = await self.find(digest)
        if made is None:
            raise InternalError(f"The root image {digest} vanished right after it was made.")
        return made

    def _base(self, root: BuiltRoot, opened: AsyncExitStack) -> BaseImage:
        """Return the image below the layers of a build. Make it first if it does not exist. Its file stays until ``opened`` is closed."""
        try:
            path = opened.enter_context(self._store.hold_base_image(root.base))
        except NotFoundError as error:
            raise ConflictError(
                f"The image of the template {root.base_name!r} from which the build begins was removed.",
                hint="Build the template again.",
                fields={"base": root.base},
            ) from error
        return BaseImage(root.base, path, read_uuid(path))

    @asynccontextmanager
    async def _locked(self, digest: str, report: Progress) -> AsyncIterator[None]:
        """Hold the lock of a digest among the services that share the cache."""
        with translated_errors(self._cache):
            for folder in (self._cache, self._folder, self._cache / "locks"):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file, waited = self._cache / "locks" / f"{KIND}-{digest}", False
        while (descriptor := locked_folder.try_lock_file(file)) is None:
            if not waited:
                report("waiting for another service that makes this root image")
                waited = True
            await asyncio.sleep(_POLL_S)
        try:
            yield
        finally:
            os.close(descriptor)

    def _publish(self, temporary: LockedFolder, digest: str, manifest: dict[str, object]) -> None:
        (temporary.content / _MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        durable.fsync_files(temporary.content)
        with suppress(FileNotFoundError):  # a folder whose files somebody removed
            locked_folder.discard(self._folder / digest, self._cache / "tmp")
        temporary.publish(self._folder / digest)

    # Uses ------------------------------------------------------------------------------------------------------------

    def _find(self, digest: str) -> RootFs | None:
        """Find a root image, and hold a shared lock of it, so that no other service evicts it."""
        folder = self._folder / digest
        if digest not in self._held:
            try:
                descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError):
                return None
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:  # it is being evicted
                os.close(descriptor)
                return None
            if digest in self._held:  # by another thread, meanwhile
                os.close(descriptor)
            else:
                self._held[digest] = descriptor
        try:
            os.utime(folder / _MANIFEST)
        except FileNotFoundError:
            with suppress(KeyError):
                os.close(self._held.pop(digest))
            return None
        return RootFs(digest, image=folder / IMAGE, index=folder / INDEX)

    def _list(self) -> list[RootImageInfo]:
        found = []
        if self._folder.is_dir():
            for folder in self._folder.iterdir():
                if KEY.fullmatch(folder.name):
                    with suppress(FileNotFoundError):
                        size_bytes = sum((folder / name).stat().st_size for name in (IMAGE, INDEX))
                        found.append(RootImageInfo(folder.name, size_bytes, (folder / _MANIFEST).stat().st_mtime))
        return sorted(found, key=lambda each: (each.used_s, each.digest))

    def _evict(self, wanted: Collection[str]) -> list[str]:
        known = self._list()
        total, evicted, before_s = sum(each.size_bytes for each in known), [], time.time() - UNUSED_S
        for each in known:
            if total <= self._max_bytes:
                break
            if each.digest not in wanted and each.used_s < before_s and self._discard(each.digest):
                total -= each.size_bytes
                evicted.append(each.digest)
        return evicted

    def _discard(self, digest: str) -> bool:
        """Remove a root image unless another service uses it. Return True if it was removed."""
        held = self._held.pop(digest, None)
        if held is not None:
            os.close(held)
        folder = self._folder / digest
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked_folder.discard(folder, self._cache / "tmp")
        except (BlockingIOError, FileNotFoundError):
            return False
        finally:
            os.close(descriptor)
        return True


class _AbandonedError(Exception):
    """The build was ended because all of its callers were cancelled, just when another caller came."""


class _Making:
    """One build, and its callers."""

    def __init__(self, make: Callable[[Progress], Awaitable[RootFs]]) -> None:
        self._callers: list[Progress] = []
        self._make = make
        self.task = asyncio.create_task(self._run())

    async def join(self, progress: Progress) -> RootFs:
        """Wait for the result. A cancelled call ends the build if no other call waits for it."""
        self._callers.append(progress)
        try:
            return await asyncio.shield(self.task)
        except asyncio.CancelledError:
            if self.task.cancelled() and not self._is_cancelled():
                raise _AbandonedError from None
            raise
        finally:
            self._callers.remove(progress)
            if not self._callers and not self.task.done():
                self.task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await outlast_cancellation(asyncio.wait([self.task]))

    @staticmethod
    def _is_cancelled() -> bool:
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0

    async def _run(self) -> RootFs:
        return await self._make(self._report)

    def _report(self, line: str) -> None:
        for progress in tuple(self._callers):
            progress(line)
