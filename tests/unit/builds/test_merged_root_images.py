"""Root images: shared builds, publication, and eviction. What makes an image is replaced by a function."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sandlot.builds.merge_sandbox import MergeJob, MergeLimits
from sandlot.builds.merged_root_images import KIND, UNUSED_S, MergedRootImages
from sandlot.core.node import Node
from sandlot.host.locked_folder import try_lock_file
from sandlot.images.store import Image, ImageStore
from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError, LimitError, UnavailableError
from sandlot.model.images import Layer
from sandlot.model.specs import RootFs
from sandlot.model.templates import BuiltRoot
from tests.support.until import until

LAYER = Layer("sha256:" + "a" * 64, 100, "tar", "sha256:" + "b" * 64)
OTHER = Layer("sha256:" + "c" * 64, 100, "tar", "sha256:" + "d" * 64)
ROOT, OTHER_ROOT = BuiltRoot((LAYER,), 0), BuiltRoot((LAYER, OTHER), 0)
NODE = cast("Node", None)
BASE = "b" * 64


class Store(ImageStore):
    """An image store whose guest layer has a given digest."""

    def __init__(self, cache: Path, guest: str) -> None:
        super().__init__(cache)
        self.guest = guest
        self.folder = cache.parent

    def ensure_guest(self, progress: Any = None) -> str:  # noqa: ANN401 - not used
        del progress
        return self.guest

    def ensure(self, name: str, progress: Any = None) -> Image:  # noqa: ANN401 - not used
        del progress
        return Image(name, "key", "digest", Path("/nonexistent"), 0, 0, {})

    def base_image(self, base: str, progress: Any = None) -> RootFs:  # noqa: ANN401 - not used
        del progress
        if base != BASE:
            return super().base_image(base)
        return RootFs(base, image=self.folder / "base.erofs", index=self.folder / "base.index")


class Maker:
    """Makes root images of 1,000 bytes.

    Attributes:
        made: Jobs that were begun.
        free: Event for which every job waits.
        removes: File that every job removes before it reads the image below.
        below: Size of the image below the last job.
        error: Exception that every job raises.
    """

    def __init__(self) -> None:
        self.made: list[MergeJob] = []
        self.free = asyncio.Event()
        self.free.set()
        self.error: Exception | None = None
        self.removes: Path | None = None
        self.below = 0
        self.ended = 0

    async def __call__(self, _node: Node, job: MergeJob, _layers: Any, folder: Path, report: Callable[[str], object]) -> int:  # noqa: ANN401
        self.made.append(job)
        report("working")
        if self.removes is not None and job.base is not None:
            self.removes.unlink()
            self.below = len(job.base.path.read_bytes())
        (folder / "root.erofs").write_bytes(b"x" * 900)
        try:
            await self.free.wait()
        finally:
            self.ended += 1
        if self.error is not None:
            raise self.error
        (folder / "root.index").write_bytes(b"x" * 100)
        return 900


async def no_layers(_layer: Layer) -> AsyncIterator[bytes]:
    for _ in "x":
        pytest.fail("read")
    yield b""


class Bench:
    """A builder and what it makes."""

    def __init__(self, cache: Path, guest: str = "guest", **changes: Any) -> None:  # noqa: ANN401 - arguments of the builder
        self.cache = cache
        self.maker = Maker()
        self.used: Collection[str] = ()
        self.builder = MergedRootImages(Store(cache, guest), cache, in_use=self._in_use, make=self.maker, reserve_bytes=0, **changes)
        self.builder.connect(cast("Node", SimpleNamespace()))

    async def _in_use(self) -> Collection[str]:
        return self.used

    async def ensure(self, root: BuiltRoot = ROOT, lines: list[str] | None = None) -> str:
        return (await self.builder.ensure(root, no_layers, (lines if lines is not None else []).append)).digest

    def age(self, digest: str, seconds: float = UNUSED_S + 1) -> None:
        manifest = self.cache / KIND / digest / "manifest.json"
        time = manifest.stat().st_mtime - seconds
        os.utime(manifest, (time, time))

    def left(self) -> list[str]:
        folder = self.cache / "tmp"
        return sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []

    async def listed(self) -> list[str]:
        return [each.digest for each in await self.builder.list_images()]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path / "cache")
    yield made
    await made.builder.aclose()


async def started(bench: Bench, count: int = 1) -> None:
    await until(lambda: len(bench.maker.made) == count)


async def test_root_image_is_made_once_and_found_again(bench: Bench) -> None:
    lines: list[str] = []
    digest = await bench.ensure(lines=lines)
    assert await bench.ensure() == digest
    assert len(bench.maker.made) == 1
    assert "working" in lines
    found = await bench.builder.find(digest)
    assert found is not None
    assert found.image is not None
    assert found.index is not None
    assert (found.image.stat().st_size, found.index.stat().st_size) == (900, 100)
    assert found.image.parent == bench.cache / KIND / digest
    assert bench.left() == []


async def test_digest_depends_on_layers_base_and_guest(bench: Bench) -> None:
    first = await bench.builder.digest(ROOT)
    others = [await bench.builder.digest(OTHER_ROOT), await bench.builder.digest(BuiltRoot((LAYER,), 0, "e" * 64, "base"))]
    others.append(await Bench(bench.cache, guest="another").builder.digest(ROOT))
    assert len({first, *others}) == 4
    assert await bench.builder.digest(BuiltRoot((LAYER,), 5)) == first


async def test_concurrent_callers_share_one_build(bench: Bench) -> None:
    bench.maker.free.clear()
    lines: list[list[str]] = [[], []]
    tasks = [asyncio.create_task(bench.ensure(lines=each)) for each in lines]
    await started(bench)
    bench.maker.free.set()
    assert len(set(await asyncio.gather(*tasks))) == 1
    assert len(bench.maker.made) == 1


async def test_cancelled_caller_does_not_end_the_build_of_others(bench: Bench) -> None:
    bench.maker.free.clear()
    first, second = (asyncio.create_task(bench.ensure()) for _ in range(2))
    await started(bench)
    await asyncio.sleep(0.05)
    first.cancel()
    await asyncio.wait([first])
    bench.maker.free.set()
    assert first.cancelled()
    assert await second
    assert len(bench.maker.made) == 1


async def test_build_ends_with_its_last_caller_and_leaves_nothing(bench: Bench) -> None:
    bench.maker.free.clear()
    task = asyncio.create_task(bench.ensure())
    await started(bench)
    task.cancel()
    await asyncio.wait([task])
    assert bench.maker.ended == 1
    assert bench.left() == []
    assert await bench.listed() == []
    bench.maker.free.set()
    await bench.ensure()
    assert len(bench.maker.made) == 2


async def test_failed_build_leaves_nothing_and_is_tried_again(bench: Bench) -> None:
    bench.maker.error = InvalidRequestError("refused")
    with pytest.raises(InvalidRequestError):
        await bench.ensure()
    assert (bench.left(), await bench.listed()) == ([], [])
    bench.maker.error = None
    assert await bench.listed() == []
    assert await bench.ensure()


async def test_full_disk_is_a_limit_error(bench: Bench) -> None:
    bench.maker.error = OSError(errno.ENOSPC, "full")
    with pytest.raises(LimitError) as error:
        await bench.ensure()
    assert error.value.code is ErrorCode.NODE_DISK_FULL
    assert bench.left() == []


async def test_no_build_begins_while_only_the_reserve_is_free(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.builder._space._reserve_bytes = 1 << 60  # noqa: SLF001 - in place of a full disk
    with pytest.raises(LimitError):
        await bench.ensure()
    assert bench.maker.made == []


async def test_incomplete_build_of_a_dead_service_is_not_found_and_removed(bench: Bench) -> None:
    digest = await bench.builder.digest(ROOT)
    dead = bench.cache / "tmp" / f"{KIND}-dead" / "content"
    dead.mkdir(parents=True)
    (dead / "root.erofs").write_bytes(b"half")
    assert await bench.builder.find(digest) is None
    await bench.ensure()
    assert bench.left() == []


async def test_service_waits_for_another_service_that_makes_the_same_root_image(bench: Bench) -> None:
    digest = await bench.builder.digest(ROOT)
    (bench.cache / "locks").mkdir(parents=True)
    lines: list[str] = []
    lock = try_lock_file(bench.cache / "locks" / f"{KIND}-{digest}")
    assert lock is not None
    task = asyncio.create_task(bench.ensure(lines=lines))
    await until(lambda: bool(lines))
    assert lines == ["waiting for another service that makes this root image"]
    other = Bench(bench.cache)
    made = bench.cache / KIND / digest
    made.mkdir(parents=True)
    for name in ("root.erofs", "root.index", "manifest.json"):
        (made / name).write_bytes(b"{}")
    os.close(lock)
    assert await task == digest
    assert bench.maker.made == other.maker.made == []


async def test_least_recently_used_root_images_are_evicted(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_bytes=1500)
    first = await bench.ensure(ROOT)
    bench.age(first)
    second = await bench.ensure(OTHER_ROOT)
    assert await bench.listed() == [second]
    assert await bench.builder.find(first) is None
    assert bench.left() == []
    await bench.builder.aclose()


async def test_root_images_that_were_just_used_or_are_in_use_are_not_evicted(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_bytes=500)
    first = await bench.ensure(ROOT)
    second = await bench.ensure(OTHER_ROOT)
    assert sorted(await bench.listed()) == sorted((first, second))
    bench.age(first)
    bench.age(second)
    bench.used = (first,)
    assert await bench.builder.evict([second]) == []
    assert await bench.builder.evict() == [second]
    bench.used = ()
    assert await bench.builder.evict() == [first]
    await bench.builder.aclose()


async def test_root_image_that_another_service_uses_is_not_evicted(tmp_path: Path) -> None:
    ours, theirs = Bench(tmp_path, max_bytes=500), Bench(tmp_path)
    digest = await ours.ensure()
    assert await theirs.ensure() == digest
    ours.age(digest)
    assert await ours.builder.evict() == []
    await theirs.builder.aclose()
    ours.age(digest)
    assert await ours.builder.evict() == [digest]
    await ours.builder.aclose()


async def test_root_image_is_made_again_after_its_removal(bench: Bench) -> None:
    digest = await bench.ensure()
    (bench.cache / KIND / digest / "manifest.json").unlink()
    assert await bench.builder.find(digest) is None
    assert await bench.ensure() == digest
    assert len(bench.maker.made) == 2


async def test_uuid_changes_with_the_layout_of_the_image_below(bench: Bench) -> None:
    root, uuids = BuiltRoot((LAYER,), 0, BASE, "base"), []
    for content in (b"x", b"x", b"y"):
        (bench.cache.parent / "base.erofs").write_bytes(bytes(1024 + 48) + content * 16)
        digest = await bench.ensure(root)
        (bench.cache / KIND / digest / "manifest.json").unlink()
        job = bench.maker.made[-1]
        assert job.base is not None
        assert job.base.uuid.bytes == content * 16
        uuids.append(job.uuid)
    assert (uuids[0] == uuids[1], uuids[1] == uuids[2]) == (True, False)


async def test_image_below_that_is_evicted_during_a_build_stays_readable(bench: Bench) -> None:
    image, bench.maker.removes = bench.cache.parent / "base.erofs", bench.cache.parent / "base.erofs"
    image.write_bytes(bytes(1024 + 48) + b"x" * 16)
    await bench.ensure(BuiltRoot((LAYER,), 0, BASE, "base"))
    assert (bench.maker.below, image.exists(), bench.left()) == (1024 + 64, False, [])
    bench.maker.error = InvalidRequestError("refused")
    image.write_bytes(bytes(1024 + 64))
    with pytest.raises(InvalidRequestError):
        await bench.ensure(BuiltRoot((OTHER,), 0, BASE, "base"))
    assert bench.left() == []


async def test_build_whose_image_below_never_stays_is_refused(bench: Bench) -> None:
    with pytest.raises(ConflictError, match="again and again"):
        await bench.ensure(BuiltRoot((LAYER,), 0, BASE, "base"))
    assert bench.left() == []


async def test_build_on_a_removed_template_is_refused(bench: Bench) -> None:
    with pytest.raises(ConflictError, match="'base'"):
        await bench.ensure(BuiltRoot((LAYER,), 0, "e" * 64, "base"))


async def test_service_without_a_node_is_not_ready(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError):
        await MergedRootImages(Store(tmp_path, "guest"), tmp_path).ensure(ROOT, no_layers)


def test_layers_may_expand_to_a_multiple_of_their_size() -> None:
    limits = MergeLimits(bytes=1000, ratio=10, ratio_free_bytes=100)
    assert [limits.expanded_bytes(size) for size in (0, 10, 1000)] == [100, 200, 1000]
