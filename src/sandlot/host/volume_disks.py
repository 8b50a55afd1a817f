"""Disks of volumes. Each is an ext4 file system in a sparse file, mounted once on the host through a loop device.

Invariants:
- Code in a sandbox writes to a volume through the mounted file system only, never to the raw file, which only the kernel and the service
  write. The host opens no file inside a volume by name.
- A file has at most one loop device. A second one would be a second file system over the same bytes and would destroy both. An existing device is
  mounted again; the kernel then returns the same file system, in whichever namespace it is mounted.
- The mounts are below a small private file system. Existing mount namespaces do not see later mounts, and a new one removes all of them with one call
  (the stage's ``forget``).
- The file system has a journal: after a loss of power it contains everything that was synced.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sandlot.host import durable
from sandlot.host.blocking import call_in_own_thread
from sandlot.host.disk_images import image_bytes, inode_count, loops_below, run_e2fsprogs, run_mkfs
from sandlot.host.stage import syscalls
from sandlot.host.stage.operations import mount_image
from sandlot.model.ports import Attachment
from sandlot.model.specs import MAX_VOLUMES

BYTES_PER_INODE: Final = 16 * 1024
USER_ID: Final = 1000
"""Owner of the root directory of a new volume: the user that code in a sandbox runs as."""
CACHE_FLUSH_FILES: Final = 1300
"""Number of files after whose use gVisor has released all earlier ones: its kernel keeps up to 1,000 entries of a mount (its option ``dcache``), and
closes files in batches of up to 100 (measured with 20240729)."""
_JOURNAL_BYTES, _LARGE_JOURNAL_BYTES, _LARGE_BYTES = 4 << 20, 32 << 20, 1 << 30
_MOUNT_FLAGS: Final = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOATIME
_MOUNT_OPTIONS: Final = "discard,noinit_itable,errors=remount-ro"


@dataclass(frozen=True, slots=True)
class VolumeFiles:
    """Disks of the volumes of one state directory. Every method blocks.

    Args:
        folder: Folder of the files, created with the first one.
    """

    folder: Path
    _lock: threading.Lock = field(default_factory=threading.Lock, compare=False, repr=False)

    @property
    def mounts(self) -> Path:
        """Folder below which the volumes are mounted."""
        return self.folder / "mounted"

    def max_disk_bytes(self, size_bytes: int) -> int:
        """Return the size of a volume's image, which is the most that the volume uses on the host's disk. Pure."""
        return image_bytes(size_bytes, BYTES_PER_INODE) + journal_bytes(size_bytes)

    def make(self, volume: str, size_bytes: int) -> None:
        """Create an empty volume. It is complete and synced on return.

        Raises:
            HostError: mkfs.ext4 is missing or failed.
            OSError: The disk is full.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        image = self._image(volume)
        handle = os.open(image, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(handle, self.max_disk_bytes(size_bytes))
            run_mkfs(image, inode_count(size_bytes, BYTES_PER_INODE), _mkfs_options(size_bytes))
            # lost+found is for repairs of the file system; the sandbox's user could neither use nor remove it.
            run_e2fsprogs(("debugfs", "-w", "-R", "rmdir lost+found", str(image)))
            os.fsync(handle)
        finally:
            os.close(handle)
        durable.fsync_folder(self.folder)

    def mount(self, volume: str) -> Path:
        """Mount a volume, unless it is mounted, and return its path.

        Raises:
            OSError: The volume cannot be mounted.
        """
        path = self.mounts / volume
        with self._lock:
            self._make_mounts()
            if self._is_mounted(path):
                return path
            path.mkdir(mode=0o700, exist_ok=True)
            image = self._image(volume)
            device = next((name for name, file in loops_below(self.folder).items() if file == image), None)
            if device is not None:
                syscalls.mount(f"/dev/{device}", str(path), "ext4", _MOUNT_FLAGS, _MOUNT_OPTIONS)
                return path
            backing = os.open(image, os.O_RDWR | os.O_CLOEXEC)
            try:
                mount_image(backing, str(path), _MOUNT_OPTIONS)
            finally:
                os.close(backing)
        return path

    def unmount(self, volume: str) -> None:
        """Unmount a volume from the host. Its loop device frees itself when the last namespace has released it. Idempotent.

        Raises:
            OSError: The volume is in use on the host.
        """
        path = self.mounts / volume
        with self._lock:
            if self._is_mounted(path):
                _unmount(path)
            with suppress(FileNotFoundError):
                path.rmdir()
            self._remove_mounts()

    def used_bytes(self, volume: str) -> int | None:
        """Return the bytes in a volume, or None if it is not mounted."""
        path = self.mounts / volume
        if not self._is_mounted(path):
            return None
        status = os.statvfs(path)
        return (status.f_blocks - status.f_bfree) * status.f_frsize

    def remove(self, volume: str) -> None:
        """Remove a volume with its content. Idempotent.

        Raises:
            OSError: The volume is in use on the host.
        """
        self.unmount(volume)
        self._image(volume).unlink(missing_ok=True)

    def ids(self) -> frozenset[str]:
        """Return the ids of all volumes, including incomplete ones."""
        return frozenset(file.name.removesuffix(".img") for file in self.folder.glob("vol-*.img"))

    def _remove_mounts(self) -> None:
        """Remove the file system below which volumes are mounted, if no volume is."""
        with suppress(OSError):
            if self._has_mounts():
                _unmount(self.mounts)
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
        syscalls.mount("sandlot", str(self.mounts), "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=0700,size=64k")
        syscalls.mount("none", str(self.mounts), "none", syscalls.MS_PRIVATE)

    def _is_mounted(self, path: Path) -> bool:
        try:
            return self._has_mounts() and path.stat().st_dev != self.mounts.stat().st_dev
        except FileNotFoundError:
            return False


def attach(process: int, hub: str, volume: Attachment, ids: str | None = None) -> None:
    """Mount a volume in the mount namespace of a process, over an empty folder. Does nothing if it is mounted there. Blocks for a moment.

    The mount is cloned in this process's namespace and moved into the other one. No call can do that from outside, so a new thread enters the
    namespace and ends.

    Args:
        process: Descriptor of the process (pidfd_open(2)).
        hub: Directory in that namespace, with a folder for each slot.
        volume: The volume.
        ids: User namespace in that mount namespace whose mapping is applied to the owners of files. None: owners stay.

    Raises:
        OSError: The process has ended, or the kernel refused.
    """
    _in_namespace_thread(lambda: _attach(process, hub, volume, ids))


def detach(process: int, hub: str, slot: int) -> None:
    """Unmount a volume in the mount namespace of a process and in those that received it from there. Blocks for a moment.

    Does nothing if no volume is mounted there. On return no process has a file of the volume open, mapped, or as working directory: the kernel checks
    this in all these namespaces, and refuses otherwise (mount_namespaces(7), umount(2)). A runtime may keep unused files open for later. So this
    function fills the hub's last folder with more files than the runtime keeps. The guest looks at all of them, and the runtime releases the others.

    Args:
        process: Descriptor of the process.
        hub: Directory in that namespace, with a folder for each slot and one more that belongs to no volume.
        slot: Slot of the volume.

    Raises:
        OSError: The process has ended. EBUSY: a file of the volume is in use.
    """

    def work() -> None:
        syscalls.setns(process, syscalls.CLONE_NEWNS)
        _create_flush_files(Path(hub) / str(MAX_VOLUMES))
        _unmount(Path(f"{hub}/{slot}"))

    _in_namespace_thread(work)


def _create_flush_files(folder: Path) -> None:
    """Create :data:`CACHE_FLUSH_FILES` names of one empty file in a folder. Does nothing if they exist, or the folder does not."""
    if not folder.is_dir() or folder.stat().st_dev != folder.parent.stat().st_dev:
        return
    syscalls.mount("sandlot", str(folder), "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=0755,size=64k")
    first = folder / "0"
    first.touch(mode=0o444)
    for number in range(1, CACHE_FLUSH_FILES):
        os.link(first, folder / str(number))


def _in_namespace_thread(work: Callable[[], None]) -> None:
    """Call a function in a new thread that may enter another mount namespace."""

    def run() -> None:
        syscalls.unshare(syscalls.CLONE_FS)  # a thread that shares its root and working directory may not enter one (setns(2))
        work()

    call_in_own_thread(run)


def _attach(process: int, hub: str, volume: Attachment, ids: str | None) -> None:
    target, device = f"{hub}/{volume.slot}", volume.source.stat().st_dev
    tree = syscalls.clone_mount(str(volume.source))
    namespace = -1
    try:
        syscalls.setns(process, syscalls.CLONE_NEWNS)
        if os.stat(target).st_dev == device:  # noqa: PTH116 - the path as the calls below have it
            return  # a service that was killed before it could report this has attached the volume
        enable = syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV
        if volume.read_only:
            enable |= syscalls.MOUNT_ATTR_RDONLY
        if ids is not None:
            enable |= syscalls.MOUNT_ATTR_IDMAP
            namespace = os.open(ids, os.O_RDONLY | os.O_CLOEXEC)
        # Access times as usual (relatime). A mount with any other, locked setting could not be bound again inside a user namespace.
        syscalls.set_mount_attributes(tree, str(volume.source), enable, syscalls.MOUNT_ATTR_ATIME, max(0, namespace))
        syscalls.move_mount(tree, target)
    finally:
        os.close(tree)
        if namespace >= 0:
            os.close(namespace)


def journal_bytes(size_bytes: int) -> int:
    """Return the size of a volume's journal."""
    return _LARGE_JOURNAL_BYTES if size_bytes >= _LARGE_BYTES else _JOURNAL_BYTES


def _mkfs_options(size_bytes: int) -> tuple[str, ...]:
    return (
        *("-O", "^resize_inode,sparse_super2,extent,flex_bg,metadata_csum"),
        *("-J", f"size={journal_bytes(size_bytes) >> 20}"),
        *("-E", f"lazy_itable_init=1,lazy_journal_init=1,nodiscard,num_backup_sb=0,root_owner={USER_ID}:{USER_ID}"),
    )


def _unmount(path: Path) -> None:
    """Unmount a path. Does nothing if nothing is mounted there."""
    try:
        syscalls.unmount(str(path))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
