"""Disks of volumes. Each disk is an ext4 file system in a file, mounted once on the host through a loop device.

Invariants:
- Code in a sandbox writes to a volume through the mounted file system only, never to the raw file, which only the kernel and the service
  write. The host opens no file inside a volume by name.
- A file has at most one loop device. A second device would mount a second file system over the same bytes, and the two would destroy each other. If
  the file has a device, the device is mounted again: the kernel then uses the same file system, even if it is mounted in another namespace.
- A device is mounted only while it is open: otherwise the kernel may free it meanwhile, and another process may attach a file of another sandbox.
- All volumes are mounted below one small private file system. Mount namespaces that exist already do not see later mounts. A process that
  enters a new mount namespace unmounts all volumes there with one call (``forget`` in ``stage/operations.py``).
- The file system of each volume has a journal. After a loss of power, the volume therefore contains everything that was synced.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sandlot.host import durable
from sandlot.host.blocking import call_in_own_thread
from sandlot.host.disk_images import allocate, image_bytes, inode_count, loops_below, run_e2fsprogs, run_mkfs
from sandlot.host.stage import syscalls
from sandlot.host.stage.operations import image_options, is_allocated, mount_image
from sandlot.model.errors import InternalError
from sandlot.model.ports import Attachment
from sandlot.model.specs import MAX_VOLUMES

BYTES_PER_INODE: Final = 16 * 1024
"""Size of a volume in bytes, divided by its number of inodes."""
USER_ID: Final = 1000
"""User id and group id that own the root directory of a new volume. Commands in a sandbox run as this user unless they ask for root."""
CACHE_FLUSH_FILES: Final = 1300
"""Number of files that must be looked up on a mount to make gVisor close all files that were used before. gVisor keeps up to 1,000 unused entries
of a mount (mount option ``dcache``) and closes files in batches of up to 100 (measured with release 20240729)."""
_JOURNAL_BYTES, _LARGE_JOURNAL_BYTES, _LARGE_BYTES = 4 << 20, 32 << 20, 1 << 30
_MOUNT_FLAGS: Final = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOATIME
_MOUNT_OPTIONS: Final = "noinit_itable,errors=remount-ro"


@dataclass(frozen=True, slots=True)
class VolumeFiles:
    """Disks of the volumes of one state directory. Every method blocks.

    Args:
        folder: Folder with the image file of each volume; created together with the first volume.
        allocates: True: image files are allocated in full (``disk_images``), also those that an earlier service has created as sparse files.
    """

    folder: Path
    allocates: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock, compare=False, repr=False)

    @property
    def mounts(self) -> Path:
        """Path of the folder below which volumes are mounted on the host."""
        return self.folder / "mounted"

    def max_disk_bytes(self, size_bytes: int) -> int:
        """Return the size of a volume's image file in bytes, which is the most that the volume can use on the host's disk. Pure.

        Args:
            size_bytes: Bytes of content that the volume must hold.
        """
        return image_bytes(size_bytes, BYTES_PER_INODE) + journal_bytes(size_bytes)

    def make(self, volume: str, size_bytes: int) -> None:
        """Create the image file of an empty volume. The file is complete and synced when this method returns.

        Args:
            volume: Id of the volume.
            size_bytes: Bytes of content that the volume must hold.

        Raises:
            HostError: mkfs.ext4 or debugfs is not installed or failed.
            FileExistsError: The volume exists already.
            OSError: The file cannot be written, for example because the host's disk is full.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        image = self.image(volume)
        handle = os.open(image, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(handle, self.max_disk_bytes(size_bytes))
            run_mkfs(image, inode_count(size_bytes, BYTES_PER_INODE), _mkfs_options(size_bytes))
            # The folder lost+found, which mkfs.ext4 creates for repairs, belongs to root: the sandbox's user could neither use nor remove it.
            run_e2fsprogs(("debugfs", "-w", "-R", "rmdir lost+found", str(image)))
            if self.allocates:
                allocate(handle)
            os.fsync(handle)
        finally:
            os.close(handle)
        durable.fsync_folder(self.folder)

    def mount(self, volume: str) -> Path:
        """Mount a volume on the host, unless it is mounted already, and return its mount point.

        Raises:
            OSError: The volume cannot be mounted.
        """
        path = self.mounts / volume
        with self._lock:
            self._make_mounts()
            if self._is_mounted(path):
                return path
            path.mkdir(mode=0o700, exist_ok=True)
            image = self.image(volume)
            with ExitStack() as opened:
                backing = _open(image, os.O_RDWR, opened)
                device = self._open_device(image, opened)
                if device is not None:
                    syscalls.mount(device, str(path), "ext4", _MOUNT_FLAGS, image_options(backing, _MOUNT_OPTIONS))
                    return path
                if self.allocates and not is_allocated(os.fstat(backing)):
                    with suppress(OSError):  # the disk has no room now: the volume stays sparse until it is mounted again
                        allocate(backing)
                mount_image(backing, str(path), _MOUNT_OPTIONS)
        return path

    def unmount(self, volume: str) -> None:
        """Unmount a volume from the host. The kernel frees its loop device when no mount namespace has the volume mounted. Idempotent.

        Raises:
            OSError: The volume cannot be unmounted, for example because a process of the host uses a file in it.
        """
        path = self.mounts / volume
        with self._lock:
            if self._is_mounted(path):
                _unmount(path)
            with suppress(FileNotFoundError):
                path.rmdir()
            self._remove_mounts()

    def used_bytes(self, volume: str) -> int | None:
        """Return the number of bytes used in the file system of a volume, or None if the volume is not mounted on the host."""
        path = self.mounts / volume
        if not self._is_mounted(path):
            return None
        status = os.statvfs(path)
        return (status.f_blocks - status.f_bfree) * status.f_frsize

    def remove(self, volume: str) -> None:
        """Unmount a volume from the host and remove its image file. Idempotent.

        Raises:
            OSError: The volume cannot be unmounted, for example because a process of the host uses a file in it.
        """
        self.unmount(volume)
        self.image(volume).unlink(missing_ok=True)

    def ids(self) -> frozenset[str]:
        """Return the ids of all volumes that have an image file, including volumes whose creation was interrupted."""
        return frozenset(file.name.removesuffix(".img") for file in self.folder.glob("vol-*.img"))

    def _open_device(self, image: Path, opened: ExitStack) -> str | None:
        """Return the path of the loop device of an image file, or None if the file has none. The kernel does not free the device while it is open."""
        for name, file in loops_below(self.folder).items():
            if file == image:
                with suppress(OSError):  # ENXIO: the kernel is freeing the device
                    _open(Path(f"/dev/{name}"), os.O_RDONLY, opened)
                    if loops_below(self.folder).get(name) == image:
                        return f"/dev/{name}"
        return None

    def _remove_mounts(self) -> None:
        """Unmount the private file system below which volumes are mounted, if no volume is mounted."""
        with suppress(OSError):
            if self._has_mounts():
                _unmount(self.mounts)
            self.mounts.rmdir()

    def image(self, volume: str) -> Path:
        """Return the path of the image file of a volume. Pure."""
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
        syscalls.mount("sandlot", str(self.mounts), "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=0700,size=64k")
        syscalls.mount("none", str(self.mounts), "none", syscalls.MS_PRIVATE)

    def _is_mounted(self, path: Path) -> bool:
        try:
            return self._has_mounts() and path.stat().st_dev != self.mounts.stat().st_dev
        except FileNotFoundError:
            return False


def attach(process: int, hub: str, volume: Attachment, ids: str | None = None) -> None:
    """Mount a volume in the mount namespace of another process. Does nothing if the volume is mounted there already. Blocks for some milliseconds.

    The mount is cloned in this process's mount namespace and then attached in the mount namespace of the other process. The kernel attaches mounts
    only in the namespace of the calling thread, so a new thread enters the namespace of the other process for this work.

    Args:
        process: Pidfd of the other process.
        hub: Path in the namespace of the other process: a directory with one empty folder for each slot, named by its number.
        volume: Volume to mount, with its slot.
        ids: Path in the namespace of the other process: a file of a user namespace, whose mapping is applied to the owners of the volume's files.
            None: owners are not mapped.

    Raises:
        OSError: The other process has ended, or the kernel refused a call.
    """
    _in_namespace_thread(lambda: _attach(process, hub, volume, ids))


def detach(process: int, hub: str, slot: int) -> None:
    """Unmount a volume in the mount namespace of another process, and in the namespaces to which this mount was propagated.

    Does nothing if no volume is mounted there. Blocks for some milliseconds. On success, no process in these namespaces has a file of the volume
    open, mapped, or as working directory: the kernel refuses to unmount a volume in use (mount_namespaces(7), umount(2)).

    A runtime may keep files of the volume open after their last use. The kernel then refuses with EBUSY, until the guest has looked up
    :data:`CACHE_FLUSH_FILES` other files, so that the runtime closes the files of the volume. This function creates such files in the last folder of
    ``hub``. After EBUSY, the caller can make the guest look up all of them, and retry.

    Args:
        process: Pidfd of the other process.
        hub: Path in the namespace of the other process: a directory with one folder for each slot, and one more folder that belongs to no volume.
        slot: Number of the volume's slot.

    Raises:
        OSError: The other process has ended, or the kernel refused a call. ``errno`` is EBUSY if a file of the volume is in use.
    """

    def work() -> None:
        syscalls.setns(process, syscalls.CLONE_NEWNS)
        _create_flush_files(Path(hub) / str(MAX_VOLUMES))
        _unmount(Path(f"{hub}/{slot}"))

    _in_namespace_thread(work)


def _create_flush_files(folder: Path) -> None:
    """Create one empty file with :data:`CACHE_FLUSH_FILES` hard links in a folder. Does nothing if there is no folder or the links exist already."""
    if not folder.is_dir() or folder.stat().st_dev != folder.parent.stat().st_dev:
        return
    syscalls.mount("sandlot", str(folder), "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=0755,size=64k")
    first = folder / "0"
    first.touch(mode=0o444)
    for number in range(1, CACHE_FLUSH_FILES):
        os.link(first, folder / str(number))


def _in_namespace_thread(work: Callable[[], None]) -> None:
    """Call a function in a new thread, in which the function may enter another mount namespace."""

    def run() -> None:
        syscalls.unshare(syscalls.CLONE_FS)  # setns(2) refuses a thread that shares its root directory
        work()

    call_in_own_thread(run)


def _attach(process: int, hub: str, volume: Attachment, ids: str | None) -> None:
    if volume.tree is None:
        raise InternalError("The volume is not mounted on the host.")
    target, device = f"{hub}/{volume.slot}", volume.tree.stat().st_dev
    tree = syscalls.clone_mount(str(volume.tree))
    namespace = -1
    try:
        syscalls.setns(process, syscalls.CLONE_NEWNS)
        if os.stat(target).st_dev == device:  # noqa: PTH116 - `target` is a string for the calls below
            return  # a service that was killed before it recorded the attachment has attached the volume
        enable = syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV
        if volume.read_only:
            enable |= syscalls.MOUNT_ATTR_RDONLY
        if ids is not None:
            enable |= syscalls.MOUNT_ATTR_IDMAP
            namespace = os.open(ids, os.O_RDONLY | os.O_CLOEXEC)
        # Clearing MOUNT_ATTR_ATIME sets relatime, the default. A mount with another setting of access times could not be bound again inside a user
        # namespace, where this setting is locked.
        syscalls.set_mount_attributes(tree, str(volume.tree), enable, syscalls.MOUNT_ATTR_ATIME, max(0, namespace))
        syscalls.move_mount(tree, target)
    finally:
        os.close(tree)
        if namespace >= 0:
            os.close(namespace)


def _open(path: Path, flags: int, opened: ExitStack) -> int:
    handle = os.open(path, flags | os.O_CLOEXEC)
    opened.callback(os.close, handle)
    return handle


def journal_bytes(size_bytes: int) -> int:
    """Return the size in bytes of the journal of a volume that holds ``size_bytes`` of content."""
    return _LARGE_JOURNAL_BYTES if size_bytes >= _LARGE_BYTES else _JOURNAL_BYTES


def _mkfs_options(size_bytes: int) -> tuple[str, ...]:
    return (
        *("-O", "^resize_inode,sparse_super2,extent,flex_bg,metadata_csum"),
        *("-J", f"size={journal_bytes(size_bytes) >> 20}"),
        *("-E", f"lazy_itable_init=1,lazy_journal_init=1,nodiscard,num_backup_sb=0,root_owner={USER_ID}:{USER_ID}"),
    )


def _unmount(path: Path) -> None:
    """Unmount the file system at a path. Does nothing if the path is not a mount point."""
    try:
        syscalls.unmount(str(path))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
