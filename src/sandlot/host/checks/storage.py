"""Checks of storage: the state and cache directories, loop devices, and the layers of which root file systems consist."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandlot.host import disk_images
from sandlot.host.cgroups import MOUNTINFO
from sandlot.host.checks.finding import Finding, Part
from sandlot.host.checks.runner import describe_error, run_forked
from sandlot.host.disk_images import FEW_INODES, SANDBOX_OPTIONS, run_mkfs
from sandlot.host.id_ranges import FIRST_ID, IDS
from sandlot.host.stage import operations
from sandlot.model.errors import HostError
from sandlot.model.specs import MIB

GROUP = "storage"
MIN_FREE_BYTES = 64 * MIB
"""Least free space in bytes with which a folder passes: the space of one empty sandbox."""
IN_MEMORY = frozenset({"tmpfs", "ramfs"})
COPY_ON_WRITE = frozenset({"btrfs", "bcachefs", "zfs"})
"""File systems on which a second write to an allocated block needs more space."""
REMOTE = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "fuse", "virtiofs"})
_LOOP_GET_STATUS64, _STATUS_FLAGS_OFFSET, _STATUS_BYTES = 0x4C05, 52, 232
"""Number of the ioctl that reads the status of a loop device; offset of the flags in this status; size of this status in bytes (linux/loop.h)."""
_TRY_DISK_BYTES = 4 * MIB
_TRY_S = 10.0
_TRIAL = "/run"
"""Folder over which the check of layers mounts its file systems, in a mount namespace of its own."""


@dataclass(frozen=True, slots=True)
class Mount:
    """The mount of the host that contains a folder.

    Args:
        point: Mount point.
        kind: Type of the file system, for example ``ext4``.
        options: Options of the mount and of the file system.
    """

    point: str
    kind: str
    options: frozenset[str]


def check_storage(*, data_dir: str, cache_dir: str, plenty: Mapping[str, int]) -> list[dict[str, Any]]:
    """Check the state and cache directories and return the findings as JSON objects.

    Must run in a child process, because a file system may block.

    Args:
        data_dir: The state directory; may not exist yet.
        cache_dir: The cache directory; may not exist yet.
        plenty: ``data-dir`` and ``cache-dir`` -> free bytes below which the check recommends more space.
    """
    found = (check_folder("data-dir", Path(data_dir), plenty["data-dir"]), check_folder("cache-dir", Path(cache_dir), plenty["cache-dir"]))
    return [finding.dump() for finding in found]


def check_folder(name: str, folder: Path, plenty: int) -> Finding:
    """Check whether a folder can be written to, is on a suitable file system, and has enough free space.

    Args:
        name: ``data-dir`` or ``cache-dir``: name of the finding. The setting is ``SANDLOT_DATA_DIR`` or ``SANDLOT_CACHE_DIR``.
        folder: The folder; may not exist yet.
        plenty: Free bytes below which the check recommends more space.
    """
    setting = f"SANDLOT_{name.upper().replace('-', '_')}"
    existing = nearest(folder)
    status = os.statvfs(existing)
    free, inodes = status.f_bavail * status.f_frsize, status.f_favail
    mount = mount_of(existing, _mountinfo())
    facts = {"path": str(folder), "exists": _exists(folder), "free_bytes": free, "free_inodes": inodes, "type": mount.kind, "mounted_at": mount.point}
    detail = f"{folder}{'' if _exists(folder) else ' (does not exist yet)'}: {free / 1024**3:.1f} GiB free on {mount.kind}"
    if (why := _writable(existing, folder)) is not None:
        if os.geteuid() != 0:
            return Finding(name, ok=None, detail=f"{detail}; not tried: only root can run this check", group=GROUP, facts=facts)
        full = why.errno in {errno.ENOSPC, errno.EDQUOT}
        error = "" if full else f"; {why.strerror}"
        fix = "Free some space" if full else "Run as root on a file system that can be written to"
        return Finding(name, ok=False, detail=detail + error, fix=f"{fix}, or set {setting} to another folder.", group=GROUP, facts=facts)
    if free < MIN_FREE_BYTES or (status.f_files and not inodes):
        return Finding(name, ok=False, detail=detail, fix=f"Free some space, or set {setting} to another folder.", group=GROUP, facts=facts)
    if folder.is_dir() and name == "data-dir" and (found := folder.stat()).st_uid != os.geteuid():
        detail += f"; it belongs to user {found.st_uid}"
        return Finding(name, ok=False, detail=detail, fix=f"Start the service as its owner, or set {setting}.", group=GROUP, facts=facts)
    if mount.kind in IN_MEMORY:
        fix = f"Set {setting} to a folder on a disk: files in this file system take memory."
    elif mount.kind.partition(".")[0] in REMOTE:
        fix = f"Set {setting} to a folder on a local disk: a remote file system may be slow or disappear."
    elif free < plenty:
        fix = f"{plenty / 1024**3:.0f} GiB are recommended: free some space, or set {setting} to another folder."
    else:
        return Finding(name, ok=True, detail=detail, group=GROUP, facts=facts)
    return Finding(name, ok=False, detail=detail, fix=fix, required=False, group=GROUP, facts=facts)


def nearest(folder: Path) -> Path:
    """Return ``folder`` if it exists, or its nearest parent that exists. A folder that this user cannot see counts as missing."""
    return next(path for path in (folder, *folder.parents) if _exists(path))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # this user may not enter a parent folder of the path
        return False


def mount_of(folder: Path, mountinfo: str) -> Mount:
    """Return the mount that contains a folder.

    Args:
        folder: An existing folder.
        mountinfo: Text of ``/proc/self/mountinfo``, proc(5).
    """
    real = folder.resolve()
    best = Mount("", "unknown", frozenset())
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        point = before.split()[4].replace("\\040", " ")
        # The mount with the longest path contains the folder. Of several mounts at one path, the last in the list is visible.
        if real.is_relative_to(point) and len(point) >= len(best.point):
            kind, *rest = after.split()
            best = Mount(point, kind, frozenset(f"{before.split()[5]},{rest[-1]}".split(",")))
    return best


def _mountinfo() -> str:
    return MOUNTINFO.read_text(encoding="utf-8", errors="surrogateescape")


def _writable(existing: Path, folder: Path) -> OSError | None:
    if not existing.is_dir():
        return NotADirectoryError(errno.ENOTDIR, f"{existing} is not a folder")
    try:
        if existing == folder:
            with tempfile.TemporaryFile(dir=existing) as file:
                os.posix_fallocate(file.fileno(), 0, MIB)
        else:
            tempfile.TemporaryDirectory(dir=existing, prefix=".sandlot-doctor-").cleanup()
    except OSError as error:
        return error
    return None


def check_loops(*, data_dir: str) -> list[dict[str, Any]]:
    """Check whether a loop device can be attached to a file in the state directory, uses direct I/O, and has its disk space allocated for good.

    Must run in a child process.
    """
    return [_loops(nearest(Path(data_dir))).dump()]


def _loops(folder: Path) -> Finding:
    if os.geteuid() != 0:
        return Finding("loop-devices", ok=None, detail="not tried: only root can run this check", group=GROUP)
    try:
        with tempfile.TemporaryFile(dir=folder) as backing:
            backing.truncate(MIB)
            disk_images.allocate(backing.fileno())
            allocated = operations.is_allocated(os.fstat(backing.fileno())) and mount_of(folder, _mountinfo()).kind not in COPY_ON_WRITE
            number, device = operations.attach_loop(backing.fileno())
            try:
                status = bytearray(_STATUS_BYTES)
                fcntl.ioctl(device, _LOOP_GET_STATUS64, status)
                flags = struct.unpack_from("I", status, _STATUS_FLAGS_OFFSET)[0]
                if os.pread(device, 512, 0) != bytes(512):
                    raise OSError(errno.EIO, "the device does not return the content of the file")
            finally:
                os.close(device)  # the kernel then frees the loop device
    except OSError as error:
        return Finding("loop-devices", ok=False, detail=describe_error(error), fix=loop_fix(error), group=GROUP)
    direct = bool(flags & operations.LO_FLAGS_DIRECT_IO)
    advice = "" if direct else "data that a sandbox reads is cached twice; put the state directory on a file system with direct I/O"
    loses = "a full disk of the host can lose data that was synced in a sandbox; put the state directory on ext4 or XFS"
    parts = (Part("direct", direct, advice), Part("allocated", allocated, "" if allocated else loses))
    detail = f"/dev/loop{number} was attached{', with direct I/O' if direct else ', without direct I/O'}"
    return Finding("loop-devices", ok=True, detail=detail, group=GROUP, parts=parts, facts={"direct_io": direct, "allocated": allocated})


def loop_fix(error: OSError) -> str:
    """Return the action that allows loop devices to be attached, after an attempt failed with ``error``."""
    missing = error.errno in {errno.ENOENT, errno.ENXIO, errno.ENODEV}
    if missing and str(error.filename or "").endswith("loop-control"):
        return "modprobe loop; in a container, /dev must be the host's (for example docker run --privileged -v /dev:/dev)."
    if missing:
        return "Mount devtmpfs at /dev, so that devices appear when the kernel creates them (docker run -v /dev:/dev)."
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return "Free some space, or set SANDLOT_DATA_DIR to another folder."
    if error.errno == errno.EROFS:
        return "The state directory is read-only: set SANDLOT_DATA_DIR to another folder."
    return "Run as root of the host; a container needs --privileged and the host's /dev."


def check_layers(*, data_dir: str, cache_dir: str) -> list[dict[str, Any]]:
    """Check whether a root file system can consist of a shared read-only folder with mapped ids and a writable layer on a disk.

    Must run in a child process.
    """
    return [_layers(nearest(Path(data_dir)), nearest(Path(cache_dir))).dump()]


def _layers(data_dir: Path, cache_dir: Path) -> Finding:
    name = "shared-roots"
    if os.geteuid() != 0:
        return Finding(name, ok=None, detail="not tried: only root can run this check", group=GROUP)
    why = run_forked(lambda: _try_layers(data_dir, cache_dir), _TRY_S)
    if not why:
        return Finding(name, ok=True, detail="a folder was mounted with mapped ids, below a writable layer on a disk of its own", group=GROUP)
    return Finding(name, ok=False, detail=why, fix=layers_fix(why), group=GROUP)


def layers_fix(why: str) -> str:
    """Return what the operator should do if the layers of a root file system cannot be mounted.

    Args:
        why: Text of the error with which an attempt to mount the layers failed.
    """
    if os.strerror(errno.ENOSPC) in why or os.strerror(errno.EROFS) in why:
        return "Free some space, or set SANDLOT_DATA_DIR and SANDLOT_CACHE_DIR to folders that can be written to."
    if os.strerror(errno.EPERM) in why:
        return "Run as root of the host; a container needs --privileged."
    if why.startswith("ids"):
        return "Set SANDLOT_CACHE_DIR to a file system with ID-mapped mounts (ext4, xfs, btrfs); they need Linux 5.12."
    if why.startswith("overlay"):
        return "Run modprobe overlay; an overlay over ID-mapped folders needs Linux 5.19."
    return "apt-get install e2fsprogs; a disk for each sandbox needs loop devices, ext4 and mkfs.ext4."


def _try_layers(data_dir: Path, cache_dir: Path) -> None:
    # Nothing remains: all mounts belong to the namespace of this process, and the file of the image has no name.
    with tempfile.TemporaryFile(dir=data_dir) as image:
        operations.private_mounts()
        shared = os.open(cache_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        operations.tmpfs(_TRIAL, "mode=0711,size=1m")
        for name in ("lower", "disk", "merged"):
            operations.mkdir(f"{_TRIAL}/{name}")
        _step("ids", lambda: operations.ids(f"{_TRIAL}/ids", FIRST_ID, IDS))
        _step("ids", lambda: operations.idmapped(f"/proc/self/fd/{shared}", f"{_TRIAL}/lower", f"{_TRIAL}/ids"))
        _step("disk", lambda: _mount_disk(image.fileno(), f"{_TRIAL}/disk"))
        _step("overlay", lambda: operations.overlay(f"{_TRIAL}/lower", f"{_TRIAL}/disk", f"{_TRIAL}/merged", FIRST_ID))
        # Write a file as the host user that is root inside a sandbox, to test that the ids are mapped and the layer can be written to.
        os.setegid(FIRST_ID)
        os.seteuid(FIRST_ID)
        _step("overlay", lambda: Path(_TRIAL, "merged", "written").write_text("x", encoding="ascii"))


def _step(name: str, work: Callable[[], object]) -> None:
    try:
        work()
    except HostError as error:
        raise OSError(errno.EIO, f"{name}: {error.message}") from None
    except OSError as error:
        raise OSError(error.errno, f"{name}: {describe_error(error)}") from None


def _mount_disk(image: int, target: str) -> None:
    os.ftruncate(image, _TRY_DISK_BYTES)
    run_mkfs(f"/proc/self/fd/{image}", FEW_INODES, SANDBOX_OPTIONS, inherit=(image,))
    operations.disk(f"/proc/self/fd/{image}", target)
