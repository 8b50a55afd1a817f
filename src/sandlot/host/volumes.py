"""File systems of volumes: ext4 in a sparse file each, mounted once on the host through a loop device.

Laws:
- What code in a sandbox writes comes here through the mounted file system, never as raw bytes: the file is the kernel's and ours alone. Nobody
  opens anything by a name in there but the sandboxes.
- One file has one loop device at most: a second one would be a second file system over the same bytes, and the end of both. A device that is
  there is mounted again, and the kernel then gives the file system that it has, whichever namespace that is mounted in.
- The mounts are below a small file system of their own, private: no mount namespace that is there sees what is mounted later, and what is made
  takes them away with one call (the stage's ``forget``).
- It has a journal: what was written is there after a loss of power as far as it was synced.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sandlot.host import disks, durable
from sandlot.host.own import let_go
from sandlot.host.stage import operations
from sandlot.model.errors import ErrorCode, HostError
from sandlot.model.ports import Attachment
from sandlot.model.specs import MOST_MOUNTS

BYTES_PER_INODE: Final = 16 * 1024
USER_ID: Final = 1000
"""The user that code in a sandbox runs as; the root of a new volume is theirs."""
_JOURNAL_BYTES, _LARGE_JOURNAL_BYTES, _LARGE_BYTES = 4 << 20, 32 << 20, 1 << 30
_MS_PRIVATE: Final = 1 << 18
_CLONE_FS: Final = 0x200
_MOUNT_ATTR_ATIME: Final = 0x70
"""linux/sched.h, linux/mount.h"""
_TIMEOUT_S: Final = 120.0
MANY: Final = 1300
"""gVisor's kernel keeps up to 1,000 entries of a mount (its option ``dcache``), and closes files in batches of up to 100 (measured with 20240729)."""
_PATH: Final = {"PATH": "/usr/sbin:/sbin:/usr/bin:/bin"}


@dataclass(frozen=True, slots=True)
class VolumeFiles:
    """Those of one state directory. Every method blocks.

    Args:
        folder: Where the files are; made when the first one is.
    """

    folder: Path
    _lock: threading.Lock = field(default_factory=threading.Lock, compare=False, repr=False)

    @property
    def mounts(self) -> Path:
        """Where they are mounted."""
        return self.folder / "mounted"

    def takes(self, size_bytes: int) -> int:
        """The most that one takes on the disk. Pure."""
        return disks.image_bytes(size_bytes, BYTES_PER_INODE) + journal_bytes(size_bytes)

    def make(self, volume: str, size_bytes: int) -> None:
        """Make one, empty; it is whole and on the disk on return.

        Raises:
            HostError: mkfs.ext4 is missing or failed.
            OSError: No space.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        image = self._image(volume)
        handle = os.open(image, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(handle, self.takes(size_bytes))
            _run(mkfs_argv(image, size_bytes))
            # What a check of the file system would put there; the sandbox's user could neither use nor remove it.
            _run(("debugfs", "-w", "-R", "rmdir lost+found", str(image)))
            os.fsync(handle)
        finally:
            os.close(handle)
        durable.fsync_folder(self.folder)

    def mount(self, volume: str) -> Path:
        """Where it is mounted, from now on where it was not.

        Raises:
            OSError: It cannot be.
        """
        place = self.mounts / volume
        with self._lock:
            self._make_mounts()
            if self._is_mounted(place):
                return place
            place.mkdir(mode=0o700, exist_ok=True)
            image = self._image(volume)
            # Discarding gives the host back what is deleted. noinit_itable: see mkfs_argv in disks.py. Not MS_NOEXEC: gVisor maps the programs
            # that are run from it.
            flags = operations.MS_NOSUID | operations.MS_NODEV | operations.MS_NOATIME
            options = "discard,noinit_itable,errors=remount-ro"
            with contextlib.ExitStack() as held:
                for name, file in disks.loops_below(self.folder).items():
                    if file == image:
                        operations.mount(f"/dev/{name}", str(place), "ext4", flags, options)
                        return place
                backing = os.open(image, os.O_RDWR | os.O_CLOEXEC)
                held.callback(os.close, backing)
                number, device = operations.attach_loop(backing)
                held.callback(os.close, device)
                operations.mount(f"/dev/loop{number}", str(place), "ext4", flags, options)
        return place

    def unmount(self, volume: str) -> None:
        """Take it away from the host. Its loop device goes with the last namespace that has it. Idempotent.

        Raises:
            OSError: It is in use on the host.
        """
        place = self.mounts / volume
        with self._lock:
            if self._is_mounted(place):
                _umount(place)
            with contextlib.suppress(FileNotFoundError):
                place.rmdir()
            self._take_down()

    def used_bytes(self, volume: str) -> int | None:
        """What is in it; None while it is not mounted."""
        place = self.mounts / volume
        if not self._is_mounted(place):
            return None
        told = os.statvfs(place)
        return (told.f_blocks - told.f_bfree) * told.f_frsize

    def remove(self, volume: str) -> None:
        """Remove it with all that is in it. Idempotent.

        Raises:
            OSError: It is in use on the host.
        """
        self.unmount(volume)
        self._image(volume).unlink(missing_ok=True)

    def ids(self) -> frozenset[str]:
        """All that there are, half made ones included."""
        return frozenset(file.name.removesuffix(".img") for file in self.folder.glob("vol-*.img"))

    def _take_down(self) -> None:
        """Take away what the mounts are below, where nothing is mounted there."""
        with contextlib.suppress(OSError):
            if self._has_mounts():
                _umount(self.mounts)
            self.mounts.rmdir()

    def _image(self, volume: str) -> Path:
        return self.folder / f"{volume}.img"

    def _has_mounts(self) -> bool:
        try:
            return self.mounts.stat().st_dev != self.folder.stat().st_dev
        except FileNotFoundError:
            return False

    def _make_mounts(self) -> None:
        if self._has_mounts():
            return
        self.mounts.mkdir(mode=0o700, parents=True, exist_ok=True)
        operations.mount("sandlot", str(self.mounts), "tmpfs", operations.MS_NOSUID | operations.MS_NODEV, "mode=0700,size=64k")
        operations.mount("none", str(self.mounts), "none", _MS_PRIVATE)

    def _is_mounted(self, place: Path) -> bool:
        try:
            return self._has_mounts() and place.stat().st_dev != self.mounts.stat().st_dev
        except FileNotFoundError:
            return False


def attach(process: int, hub: str, volume: Attachment, ids: str | None = None) -> None:
    """Mount a volume in the view of a process, over an empty folder there; nothing where it is there already. Blocks for a moment.

    It is cloned in this process's view and moved into the other one, which no call does from outside; so a thread of its own goes there, and ends.

    Args:
        process: A descriptor of the process (pidfd_open(2)).
        hub: The folder in its view whose folder of the slot's number it is.
        volume: What is to be there.
        ids: A user namespace in that view, by whose mapping its owners are moved; None moves none.

    Raises:
        OSError: The process has ended, or the kernel refused.
    """
    _elsewhere(lambda: _attach(process, hub, volume, ids))


def detach(process: int, hub: str, slot: int) -> None:
    """Take a volume away from the view of a process, and from those that have received it from there; nothing where none is. Blocks for a moment.

    On return nobody there has anything of it open, mapped or as a working folder: the kernel looks for that in all these views, and refuses
    (mount_namespaces(7), umount(2)). A runtime may keep files open that nobody uses any more, for the next one who does: in the hub's last folder
    there are more than it keeps, so that looking at those makes it let go of all others.

    Args:
        process: A descriptor of the process.
        hub: The folder in its view, which has a last folder that is nobody's.
        slot: Whose folder of it is emptied.

    Raises:
        OSError: The process has ended; or EBUSY: something of it is in use.
    """

    def work() -> None:
        _enter(process)
        _fill(Path(hub) / str(MOST_MOUNTS))
        _umount(Path(f"{hub}/{slot}"))

    _elsewhere(work)


def _fill(place: Path) -> None:
    """Have many files in a folder, all the same empty one; nothing where they are there, or the folder is not."""
    if not place.is_dir() or place.stat().st_dev != place.parent.stat().st_dev:
        return
    operations.mount("sandlot", str(place), "tmpfs", operations.MS_NOSUID | operations.MS_NODEV, "mode=0755,size=64k")
    first = place / "0"
    first.touch(mode=0o444)
    for number in range(1, MANY):
        os.link(first, place / str(number))


def _elsewhere(work: Callable[[], None]) -> None:
    """Do something in a thread that may go to another view of mounts, and ends."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            # Its own root and working folder: who shares them may not change its view (setns(2)).
            operations.checked(operations.libc.unshare(_CLONE_FS), "unshare")
            work()
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            failures.append(error)

    thread = threading.Thread(target=run, name="attaching")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


def _enter(process: int) -> None:
    operations.checked(operations.libc.setns(process, operations.CLONE_NEWNS), "setns")


def _attach(process: int, hub: str, volume: Attachment, ids: str | None) -> None:
    libc, called = operations.libc, operations.called
    target, device = f"{hub}/{volume.slot}", volume.source.stat().st_dev
    source = os.fsencode(volume.source)
    tree = called(libc.syscall(operations.SYS_OPEN_TREE, operations.AT_FDCWD, source, operations.OPEN_TREE_CLONE | os.O_CLOEXEC), "open_tree")
    namespace = -1
    try:
        _enter(process)
        if os.stat(target).st_dev == device:  # noqa: PTH116 - as the calls below have it
            return  # by a service that was killed before it could say so
        flags = operations.MOUNT_ATTR_NOSUID | operations.MOUNT_ATTR_NODEV
        if volume.read_only:
            flags |= operations.MOUNT_ATTR_RDONLY
        if ids is not None:
            flags |= operations.MOUNT_ATTR_IDMAP
            namespace = os.open(ids, os.O_RDONLY | os.O_CLOEXEC)
        # Times of access as usual (relatime): what is locked as anything else could not be bound again inside a user namespace.
        attributes = b"".join(number.to_bytes(8, sys.byteorder) for number in (flags, _MOUNT_ATTR_ATIME, 0, max(0, namespace)))
        call = libc.syscall(operations.SYS_MOUNT_SETATTR, tree, b"", operations.AT_EMPTY_PATH, attributes, len(attributes))
        called(call, f"mount_setattr of {volume.source}")
        to = os.fsencode(target)
        call = libc.syscall(operations.SYS_MOVE_MOUNT, tree, b"", operations.AT_FDCWD, to, operations.MOVE_MOUNT_F_EMPTY_PATH)
        called(call, f"move_mount {target}")
    finally:
        os.close(tree)
        if namespace >= 0:
            os.close(namespace)


def journal_bytes(size_bytes: int) -> int:
    """The size of a volume's journal. Pure."""
    return _LARGE_JOURNAL_BYTES if size_bytes >= _LARGE_BYTES else _JOURNAL_BYTES


def mkfs_argv(image: Path, size_bytes: int) -> tuple[str, ...]:
    """The command that makes the file system, mke2fs(8).

    Args:
        image: The file.
        size_bytes: What may be written to it.
    """
    return (
        "mkfs.ext4",
        "-q",
        "-F",
        *("-b", str(disks.BLOCK_BYTES)),
        *("-O", "^resize_inode,sparse_super2,extent,flex_bg,metadata_csum"),
        *("-J", f"size={journal_bytes(size_bytes) >> 20}"),
        *("-E", f"lazy_itable_init=1,lazy_journal_init=1,nodiscard,num_backup_sb=0,root_owner={USER_ID}:{USER_ID}"),
        *("-m", "0"),
        *("-N", str(disks.inodes(size_bytes, BYTES_PER_INODE)), "-I", str(disks.INODE_BYTES)),
        str(image),
    )


def _run(argv: tuple[str, ...]) -> None:
    try:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=_PATH)
    except FileNotFoundError:
        raise HostError(f"{argv[0]} is not installed.", code=ErrorCode.HOST_NOT_READY, hint="apt-get install e2fsprogs") from None
    with process:
        let_go(process.pid)
        try:
            said, _ = process.communicate(timeout=_TIMEOUT_S)
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise HostError(
            f"{argv[0]} failed: {said.decode(errors='replace').strip()[:500]}",
            code=ErrorCode.HOST_NOT_READY,
            hint="Look at the free space of the state directory.",
        )


def _umount(place: Path) -> None:
    if operations.libc.umount2(os.fsencode(place), operations.UMOUNT_NOFOLLOW) != 0 and ctypes.get_errno() != errno.EINVAL:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(place))
