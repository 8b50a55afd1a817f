"""gVisor on root file systems that are EROFS images: images that are damaged, replaced or removed, and hostile ones."""

# ruff: noqa: ASYNC240
from __future__ import annotations

import asyncio
import dataclasses
import os
import random
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot.drivers.oci.snapshots import manifest
from sandlot.guest.fs.c_library import PATHS
from sandlot.host.free_space import FreeSpace
from sandlot.host.image_index import read_folder
from sandlot.images import erofs_image, tree
from sandlot.images.command import CommandRunner
from sandlot.images.store import BUILDER, ImageStore
from sandlot.model.errors import ConflictError, ErrorCode, HostError, SandlotError
from sandlot.model.ids import new_node_id
from sandlot.model.specs import MIB, RootFs, RootKind, User
from sandlot.testing.drivers.crashing_service import MARKER_PATH, MARKER_TEXT, crashing_service
from sandlot.testing.drivers.harness import SMALL_LIMITS, DriverHarness, connect_sandbox, restore_snapshot, take_snapshot
from sandlot.testing.drivers.leftovers import leftovers, open_descriptors, wait_until_empty
from tests.support.cache import CACHE_DIR
from tests.support.onhost import group, processes
from tests.support.roots import Roots, own_roots

STORE = ImageStore(CACHE_DIR)
READ_ALL = "cat /usr/bin/* /usr/lib/python3*/*.py > /dev/null && echo read"
LIMITS = dataclasses.replace(SMALL_LIMITS, memory_bytes=64 * MIB, disk_bytes=96 * MIB)


@pytest.fixture(scope="module")
def folder_root() -> RootFs:
    return STORE.root("base")


@pytest.fixture(scope="module")
def root() -> RootFs:
    return STORE.root_image("base")


@pytest.fixture
def harness(root: RootFs, tmp_path: Path) -> Iterator[DriverHarness]:
    made, open_before = DriverHarness("gvisor", root=root, node=new_node_id(), data_dir=tmp_path / "state"), open_descriptors()
    yield made
    assert not wait_until_empty(lambda: leftovers(made.data_dir, made.node))
    assert not wait_until_empty(lambda: open_descriptors() - open_before)


@pytest.fixture(scope="module")
def roots() -> Iterator[Roots]:
    with own_roots() as made:
        yield made


def image_of(roots: Roots, folder: Path, digest: str = "0" * 64) -> RootFs:
    """Make the image of a folder in ``roots``."""
    into = roots.folder / f"image-{folder.name}"
    into.mkdir()
    runner = CommandRunner(into.with_suffix(".log"), FreeSpace(roots.folder))
    erofs_image.build_erofs_image(folder, digest, into, STORE.ensure(BUILDER).path, runner)
    return at(into, digest)


def at(folder: Path, digest: str) -> RootFs:
    return RootFs(digest, image=folder / erofs_image.IMAGE, index=folder / erofs_image.INDEX)


def copy_of(root: RootFs, folder: Path) -> RootFs:
    """Copy an image, so that a test can damage the copy."""
    assert root.image is not None
    return dataclasses.replace(root, image=Path(shutil.copy(root.image, folder / "copy")))


async def saved(harness: DriverHarness) -> Path:
    into = harness.data_dir / "saved" / "one" / "image"
    driver = harness.new_driver()
    async with harness.sandbox(driver) as sandbox:
        await sandbox.link.files.write(MARKER_PATH, MARKER_TEXT.encode())
        await sandbox.link.checkpoint(armed=True)
        await take_snapshot(sandbox.instance, into, keep_running=False)
    return into


def test_two_images_of_one_tree_are_equal(roots: Roots, root: RootFs) -> None:
    assert STORE.find_root(root.digest) == STORE.find_current_root_image("base") == root
    first = roots.add("first")
    tree.link_tree(first, roots.folder / "second")
    made = [image_of(roots, each) for each in (first, roots.folder / "second")]
    assert len({(each.image.read_bytes(), each.index.read_bytes()) for each in made if each.image and each.index}) == 1


async def test_image_needs_no_file_server_for_the_root_and_is_open_read_only(harness: DriverHarness, root: RootFs) -> None:
    async with harness.sandbox() as sandbox:
        handles = [
            handle
            for pid in group(harness, sandbox.instance).pids()
            for handle in Path(f"/proc/{pid}/fd").iterdir()
            if handle.exists() and root.image is not None and handle.samefile(root.image)
        ]
        flags = [next(line for line in (at.parents[1] / "fdinfo" / at.name).read_text().splitlines() if line.startswith("flags:")) for at in handles]
        assert flags
        assert all(int(line.split()[1], 8) & os.O_ACCMODE == os.O_RDONLY for line in flags)
        kernel = processes(harness, sandbox.instance).sandbox.pid
        assert any(handle.parts[2] == str(kernel) for handle in handles), "gVisor's kernel reads the image itself"
        mounts = (await sandbox.run("cat", "/proc/mounts")).stdout.splitlines()
        assert [line.split()[1] for line in mounts if " 9p " in line or " lisafs " in line] == ["/.sandlot/volumes"]


async def test_index_has_the_times_that_programs_see(harness: DriverHarness, root: RootFs, folder_root: RootFs) -> None:
    assert root.index is not None
    folders = [path for path, status in tree.walk(folder_root.require_tree()) if stat.S_ISDIR(status.st_mode)]
    chosen = [f"/{path}" for path in random.Random(1).sample(folders, 100)] + ["/usr/bin", "/etc/alternatives", "/.sandlot"]
    program = "import os, sys\nfor path in sys.argv[1:]:\n for e in os.scandir(path): print(e.path, e.stat(follow_symlinks=False).st_ctime_ns)"
    async with harness.sandbox() as sandbox:
        shown = dict(line.rsplit(" ", 1) for line in (await sandbox.python(program, *chosen, user=User.ROOT)).stdout.splitlines())
    listed = {f"{path}/{os.fsdecode(name)}": str(time_ns) for path in chosen for name, time_ns in read_folder(root.index, path.encode()) or []}
    assert len(listed) > 500
    copied = {str(each) for path in PATHS for each in (Path(path), *Path(path).parents)}
    assert {path for path, time in listed.items() if shown.get(path) != time and path not in copied} == {"/.sandlot/volumes"}


async def test_tmp_is_on_the_disk_and_not_in_memory(harness: DriverHarness) -> None:
    async with harness.sandbox(limits=LIMITS) as sandbox:
        assert (await sandbox.run("stat", "-c", "%a %U", "/tmp", "/tmp/.X11-unix")).stdout == "1777 root\n1777 root\n"
        written = await sandbox.run("dd", "if=/dev/zero", "of=/tmp/big", "bs=1M", "count=80")
        assert written.exit_code == 0, "more than the memory limit"
        full = await sandbox.run("dd", "if=/dev/zero", "of=/tmp/more", "bs=1M", "count=80")
        assert "No space left" in full.stderr
        assert (await sandbox.run("echo", "on")).stdout == "on\n"


async def test_sandboxes_on_one_image_do_not_see_changes_of_each_other(harness: DriverHarness) -> None:
    driver = harness.new_driver()
    async with harness.sandbox(driver) as first, harness.sandbox(driver) as second:
        change = "echo mine > /etc/hostname && rm /usr/bin/python3 /etc/passwd && chmod 700 /usr"
        assert (await first.run("sh", "-c", change, user=User.ROOT)).exit_code == 0
        for sandbox, expected in ((first, "mine\ngone\n"), (second, "sandbox\n/usr/bin/python3\n")):
            seen = await sandbox.run("sh", "-c", "cat /etc/hostname; test -e /usr/bin/python3 && echo /usr/bin/python3 || echo gone", user=User.ROOT)
            assert seen.stdout == expected


async def test_twenty_forks_of_one_sandbox_are_independent(harness: DriverHarness) -> None:
    snapshot, driver = await saved(harness), harness.new_driver()
    names = [f"fork-{number}" for number in range(20)]
    slots = asyncio.Semaphore(4)

    async def fork(name: str) -> tuple[str, str]:
        async with slots, harness.restored_sandbox(driver, snapshot) as sandbox:
            seen = await sandbox.run("sh", "-c", f"cat {MARKER_PATH}; echo {name} > /home/user/name; sleep 0.1; cat /home/user/name")
            return seen.stdout, f"{MARKER_TEXT}{name}\n"

    assert [seen == expected for seen, expected in await asyncio.gather(*map(fork, names))] == [True] * 20


async def test_snapshot_of_one_kind_of_root_is_refused_by_the_other(harness: DriverHarness, folder_root: RootFs) -> None:
    of_image = await saved(harness)
    on_folder = dataclasses.replace(harness, root=dataclasses.replace(folder_root, digest=harness.root.digest), data_dir=harness.data_dir / "folder")
    of_folder = await saved(on_folder)
    for other, snapshot, words in ((on_folder, of_image, "kind image"), (harness, of_folder, "kind tree")):
        driver = other.new_driver()
        prepared = await driver.prepare(other.shape(), snapshot=snapshot)
        with pytest.raises(ConflictError, match=words) as refused:
            await restore_snapshot(driver, prepared, snapshot, other.spec())
        assert refused.value.code is ErrorCode.SNAPSHOT_UNUSABLE
        await prepared.destroy()


async def test_snapshot_of_another_image_is_refused_by_its_digest_or_by_the_runtime(harness: DriverHarness, roots: Roots) -> None:
    snapshot = await saved(harness)
    copy = roots.add("other", STORE.root("base").require_tree())
    other = image_of(roots, copy, "1" * 64)
    for root, error in ((other, ConflictError), (dataclasses.replace(other, digest=harness.root.digest), HostError)):
        replaced = dataclasses.replace(harness, root=root)
        driver = replaced.new_driver()
        prepared = await driver.prepare(replaced.shape(), snapshot=snapshot)
        async with asyncio.timeout(60):
            with pytest.raises(error):
                await restore_snapshot(driver, prepared, snapshot, replaced.spec())
        await prepared.destroy()


async def test_copy_of_an_image_at_another_path_restores_its_snapshot(harness: DriverHarness, tmp_path: Path) -> None:
    snapshot = await saved(harness)
    moved = dataclasses.replace(harness, root=copy_of(harness.root, tmp_path))
    async with moved.restored_sandbox(moved.new_driver(), snapshot) as sandbox:
        assert (await sandbox.run("cat", MARKER_PATH)).stdout == MARKER_TEXT


async def test_image_that_is_removed_stays_for_live_sandboxes_and_the_next_service(harness: DriverHarness, tmp_path: Path) -> None:
    root = copy_of(harness.root, tmp_path)
    assert root.image is not None
    removed = dataclasses.replace(harness, root=root)
    with crashing_service(removed, "live") as (service, ref):
        root.image.unlink()
        service.kill()
        service.wait()
    driver = removed.new_driver()
    instance = await driver.adopt(ref)
    into = removed.data_dir / "saved" / "later" / "image"
    async with connect_sandbox(instance) as sandbox:
        assert (await sandbox.run("sh", "-c", f"cat {MARKER_PATH}; {READ_ALL}")).stdout == f"{MARKER_TEXT}read\n"
        await sandbox.link.checkpoint(armed=True)
        await take_snapshot(instance, into, keep_running=True)
        saved_manifest = manifest.read(into)
        assert saved_manifest is not None
        assert (saved_manifest.root_kind, saved_manifest.root_digest) == (RootKind.IMAGE, root.digest), "the record outlived the service"
    await instance.destroy()
    with pytest.raises(SandlotError, match="does not exist"):
        await removed.boot(driver)
    async with harness.restored_sandbox(driver, into) as sandbox:
        assert (await sandbox.run("cat", MARKER_PATH)).stdout == MARKER_TEXT


@pytest.mark.parametrize("size_bytes", [0, 1024, 5000, 64 * 1024])
async def test_image_without_its_metadata_starts_no_sandbox(harness: DriverHarness, tmp_path: Path, size_bytes: int) -> None:
    root = copy_of(harness.root, tmp_path)
    assert root.image is not None
    os.truncate(root.image, size_bytes)
    with pytest.raises(SandlotError):
        await start_and_read(dataclasses.replace(harness, root=root))


async def test_damaged_image_harms_only_its_own_sandbox(harness: DriverHarness, tmp_path: Path) -> None:
    root = copy_of(harness.root, tmp_path)
    assert root.image is not None
    driver = harness.new_driver()
    async with harness.sandbox(driver) as other:
        os.truncate(root.image, root.image.stat().st_size // 2)
        with pytest.raises((SandlotError, AssertionError)):
            await start_and_read(dataclasses.replace(harness, root=root))
        assert (await other.run("sh", "-c", READ_ALL)).stdout == "read\n"


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
async def test_hostile_metadata_ends_the_start_or_the_sandbox(harness: DriverHarness, roots: Roots, tmp_path: Path, seed: int) -> None:
    """Bytes of the superblock, of inodes and of folders are changed. The sandbox may work, fail or end; it never outlives its removal."""
    small = roots.folder / "image-small"
    root = at(small, "0" * 64) if small.exists() else image_of(roots, roots.add("small"))
    damaged, chance = copy_of(root, tmp_path), random.Random(seed)
    assert damaged.image is not None
    with damaged.image.open("r+b") as file:
        for _ in range(chance.choice((1, 10, 200))):
            file.seek(chance.randrange(1024, 1100) if chance.random() < 0.2 else chance.randrange(1152, min(200_000, file.seek(0, os.SEEK_END))))
            file.write(chance.randbytes(chance.choice((1, 2, 4, 8))))
    prepared = await harness.new_driver().prepare(dataclasses.replace(harness, root=damaged).shape())
    try:
        async with asyncio.timeout(20):
            instance = await prepared.boot(harness.spec())
            async with connect_sandbox(instance) as sandbox:
                await sandbox.link.files.read("/.sandlot/guest.zip")
    except (SandlotError, TimeoutError):
        pass
    await prepared.destroy()


async def test_devices_in_an_image_open_nothing_of_the_host(harness: DriverHarness, roots: Roots) -> None:
    folder = roots.add("devices", STORE.root("base").require_tree())
    nodes = {"mem": (1, 1), "kmsg": (1, 11), "cuse": (10, 203), "loop-control": (10, 237), "fuse": (10, 229)}
    for name, number in nodes.items():
        os.mknod(folder / name, 0o20666, os.makedev(*number))
    os.mknod(folder / "loop0", 0o60666, os.makedev(7, 0))
    (folder / "setuid").write_bytes(Path("/usr/bin/id").read_bytes())
    (folder / "setuid").chmod(0o4755)
    async with dataclasses.replace(harness, root=image_of(roots, folder)).sandbox() as sandbox:
        # gVisor hides character devices of an image.
        opened = "".join(f"(exec 3</{name}) && echo {name}; [ -e /{name} ] && (exec 3<>/{name}) && echo {name};" for name in (*nodes, "loop0"))
        assert (await sandbox.run("sh", "-c", opened, user=User.ROOT)).stdout == ""
        assert (await sandbox.run("/setuid", "-u")).stdout == "1000\n"


async def start_and_read(harness: DriverHarness) -> None:
    """Start a sandbox and read files of its image. Fails if the sandbox does, within a minute."""
    prepared = await harness.new_driver().prepare(harness.shape())
    try:
        async with asyncio.timeout(60):
            instance = await prepared.boot(harness.spec())
            async with connect_sandbox(instance) as sandbox:
                assert (await sandbox.run("sh", "-c", READ_ALL)).stdout == "read\n"
    finally:
        await prepared.destroy()
