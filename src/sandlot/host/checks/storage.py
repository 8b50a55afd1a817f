"""Where sandboxes and images are kept: folders, loop devices, and the layers that a shared root file system is made of."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandlot.host import disks
from sandlot.host.cgroups import MOUNTINFO
from sandlot.host.checks.children import described, forked
from sandlot.host.checks.finding import Finding, Part
from sandlot.host.idranges import FIRST_ID, IDS
from sandlot.host.stage import operations
from sandlot.model.specs import MIB

GROUP = "storage"
LEAST_FREE_BYTES = 64 * MIB
"""Below this not even an empty sandbox fits."""
IN_MEMORY = frozenset({"tmpfs", "ramfs"})
REMOTE = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "fuse", "virtiofs"})
_LOOP_GET_STATUS64, _STATUS_FLAGS_OFFSET, _STATUS_BYTES = 0x4C05, 52, 232
"""linux/loop.h"""
_TRY_DISK_BYTES = 4 * MIB
_TRY_S = 10.0
_PLACE = "/run"
"""What the trial's own mounts cover; no other process sees them."""


@dataclass(frozen=True, slots=True)
class Mount:
    """What a folder lies on.

    Args:
        place: Where that is mounted.
        kind: Its type.
        options: Of the mount and of the file system.
    """

    place: str
    kind: str
    options: frozenset[str]


def check_storage(*, data_dir: str, cache_dir: str, plenty: Mapping[str, int]) -> list[dict[str, Any]]:
    """The two folders, in a process of its own: a file system may not answer.

    Args:
        data_dir: The state directory; need not exist yet.
        cache_dir: The images'; likewise.
        plenty: For each finding's name, free bytes below which it says so.
    """
    found = (check_folder("data-dir", Path(data_dir), plenty["data-dir"]), check_folder("cache-dir", Path(cache_dir), plenty["cache-dir"]))
    return [finding.dump() for finding in found]


def check_folder(name: str, folder: Path, plenty: int) -> Finding:
    """Whether a folder can be used, what it lies on and how much is free.

    Args:
        name: The finding's; its setting is ``SANDLOT_`` and that in capitals.
        folder: Where; need not exist yet.
        plenty: Free bytes below which the finding says so.
    """
    setting = f"SANDLOT_{name.upper().replace('-', '_')}"
    existing = nearest(folder)
    status = os.statvfs(existing)
    free, inodes = status.f_bavail * status.f_frsize, status.f_favail
    mount = mount_of(existing, MOUNTINFO.read_text(encoding="utf-8", errors="surrogateescape"))
    facts = {"path": str(folder), "exists": _exists(folder), "free_bytes": free, "free_inodes": inodes, "type": mount.kind, "mounted_at": mount.place}
    detail = f"{folder}{'' if _exists(folder) else ' (not there yet)'}: {free / 1024**3:.1f} GiB free on {mount.kind}"
    if (why := _writable(existing, folder)) is not None:
        if os.geteuid() != 0:
            return Finding(name, ok=None, detail=f"{detail}; not tried: only root can", group=GROUP, facts=facts)
        # What is full is told as that.
        full = why.errno in {errno.ENOSPC, errno.EDQUOT}
        told = "" if full else f"; {why.strerror}"
        fix = "Free some space" if full else "Run as root on a file system that can be written to"
        return Finding(name, ok=False, detail=detail + told, fix=f"{fix}, or set {setting} to another folder.", group=GROUP, facts=facts)
    if free < LEAST_FREE_BYTES or (status.f_files and not inodes):
        return Finding(name, ok=False, detail=detail, fix=f"Free some space, or set {setting} to another folder.", group=GROUP, facts=facts)
    if folder.is_dir() and name == "data-dir" and (found := folder.stat()).st_uid != os.geteuid():
        detail += f"; it belongs to user {found.st_uid}"
        return Finding(name, ok=False, detail=detail, fix=f"Start the service as its owner, or set {setting}.", group=GROUP, facts=facts)
    if mount.kind in IN_MEMORY:
        fix = f"What is written there takes memory: set {setting} to a folder on a disk."
    elif mount.kind.partition(".")[0] in REMOTE:
        fix = f"A remote file system may be slow or go away: set {setting} to a folder on a local disk."
    elif free < plenty:
        fix = f"{plenty / 1024**3:.0f} GiB are wanted: free some space, or set {setting} to another folder."
    else:
        return Finding(name, ok=True, detail=detail, group=GROUP, facts=facts)
    return Finding(name, ok=False, detail=detail, fix=fix, required=False, group=GROUP, facts=facts)


def nearest(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there, as far as this user may see."""
    return next(place for place in (folder, *folder.parents) if _exists(place))


def _exists(place: Path) -> bool:
    try:
        return place.exists()
    except OSError:  # a folder above it that this user may not enter
        return False


def mount_of(folder: Path, mountinfo: str) -> Mount:
    """What a folder lies on.

    Args:
        folder: A folder that is there.
        mountinfo: The text of ``/proc/self/mountinfo``, proc(5).
    """
    real = folder.resolve()
    best = Mount("", "unknown", frozenset())
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        place = before.split()[4].replace("\\040", " ")
        # Of two mounts on one place the later one is seen.
        if real.is_relative_to(place) and len(place) >= len(best.place):
            kind, *rest = after.split()
            best = Mount(place, kind, frozenset(f"{before.split()[5]},{rest[-1]}".split(",")))
    return best


def _writable(existing: Path, folder: Path) -> OSError | None:
    if not existing.is_dir():
        return NotADirectoryError(errno.ENOTDIR, f"{existing} is no folder")
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
    """Whether a loop device can be attached to a file of the state directory, and without caching everything twice; a process of its own."""
    return [_loops(nearest(Path(data_dir))).dump()]


def _loops(folder: Path) -> Finding:
    if os.geteuid() != 0:
        return Finding("loop-devices", ok=None, detail="not tried: only root can", group=GROUP)
    try:
        with tempfile.TemporaryFile(dir=folder) as backing:
            backing.truncate(MIB)
            number, device = operations.attach_loop(backing.fileno())
            try:
                status = bytearray(_STATUS_BYTES)
                fcntl.ioctl(device, _LOOP_GET_STATUS64, status)
                flags = struct.unpack_from("I", status, _STATUS_FLAGS_OFFSET)[0]
                if os.pread(device, 512, 0) != bytes(512):
                    raise OSError(errno.EIO, "it does not give back what the file holds")
            finally:
                os.close(device)  # it clears itself
    except OSError as error:
        return Finding("loop-devices", ok=False, detail=described(error), fix=loop_fix(error), group=GROUP)
    direct = bool(flags & operations.LO_FLAGS_DIRECT_IO)
    parts = (
        Part("direct", direct, "" if direct else "what a sandbox reads is cached twice; another file system under the state directory can do it"),
    )
    detail = f"/dev/loop{number} was attached{', with direct I/O' if direct else ', without direct I/O'}"
    return Finding("loop-devices", ok=True, detail=detail, group=GROUP, parts=parts, facts={"direct_io": direct})


def loop_fix(error: OSError) -> str:
    """What to do where no loop device could be attached."""
    missing = error.errno in {errno.ENOENT, errno.ENXIO, errno.ENODEV}
    if missing and str(error.filename or "").endswith("loop-control"):
        return "modprobe loop; inside of a container, /dev must be the host's (for example docker run --privileged -v /dev:/dev)."
    if missing:
        return "Devices must appear in /dev as the kernel makes them: mount devtmpfs there (docker run -v /dev:/dev)."
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return "Free some space, or set SANDLOT_DATA_DIR to another folder."
    if error.errno == errno.EROFS:
        return "The state directory is read-only: set SANDLOT_DATA_DIR to another folder."
    return "Run as root of the host; a container needs --privileged and the host's /dev for it."


def check_layers(*, data_dir: str, cache_dir: str) -> list[dict[str, Any]]:
    """Whether a root file system can be shared read-only under other ids, with an own layer above it; a process of its own."""
    return [_layers(nearest(Path(data_dir)), nearest(Path(cache_dir))).dump()]


def _layers(data_dir: Path, cache_dir: Path) -> Finding:
    name = "shared-roots"
    if os.geteuid() != 0:
        return Finding(name, ok=None, detail="not tried: only root can", group=GROUP)
    why = forked(lambda: _try_layers(data_dir, cache_dir), _TRY_S)
    if not why:
        return Finding(
            name, ok=True, detail="a folder of the images was seen under other ids, with a layer above it on a disk of its own", group=GROUP
        )
    return Finding(name, ok=False, detail=why, fix=layers_fix(why), group=GROUP)


def layers_fix(why: str) -> str:
    """What to do where the layers could not be made, for these reasons."""
    if os.strerror(errno.ENOSPC) in why or os.strerror(errno.EROFS) in why:
        return "Free some space, or set SANDLOT_DATA_DIR and SANDLOT_CACHE_DIR to folders that can be written to."
    if os.strerror(errno.EPERM) in why:
        return "Run as root of the host; a container needs --privileged for it."
    if why.startswith("ids"):
        return "Identity-mapped mounts take Linux 5.12 and a file system that has them (ext4, xfs, btrfs): set SANDLOT_CACHE_DIR to one."
    if why.startswith("overlay"):
        return "An overlay over identity-mapped folders takes Linux 5.19, and the module (modprobe overlay)."
    return "A disk per sandbox takes loop devices, ext4 and mkfs.ext4 (apt-get install e2fsprogs)."


def _try_layers(data_dir: Path, cache_dir: Path) -> None:
    # All mounts are this process's own, and go with it; the image has no name.
    with tempfile.TemporaryFile(dir=data_dir) as image:
        operations.private_mounts()
        shared = os.open(cache_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        operations.tmpfs(_PLACE, "mode=0711,size=1m")
        for name in ("lower", "disk", "merged"):
            operations.mkdir(f"{_PLACE}/{name}")
        _named("ids", lambda: operations.ids(f"{_PLACE}/ids", FIRST_ID, IDS))
        _named("ids", lambda: operations.idmapped(f"/proc/self/fd/{shared}", f"{_PLACE}/lower", f"{_PLACE}/ids"))
        _named("disk", lambda: _mount_disk(image.fileno(), f"{_PLACE}/disk"))
        _named("overlay", lambda: operations.overlay(f"{_PLACE}/lower", f"{_PLACE}/disk", f"{_PLACE}/merged", FIRST_ID))
        # As root inside: what it makes there must be its own, and must not be on the shared folder.
        os.setegid(FIRST_ID)
        os.seteuid(FIRST_ID)
        _named("overlay", lambda: Path(_PLACE, "merged", "written").write_text("x", encoding="ascii"))


def _named(what: str, work: Callable[[], object]) -> None:
    try:
        work()
    except OSError as error:
        raise OSError(error.errno, f"{what}: {described(error)}") from None


def _mount_disk(image: int, target: str) -> None:
    os.ftruncate(image, _TRY_DISK_BYTES)
    argv = disks.mkfs_argv(Path(f"/proc/self/fd/{image}"), 64)
    done = subprocess.run(argv, capture_output=True, check=False, pass_fds=(image,), timeout=_TRY_S, env={"PATH": "/usr/sbin:/sbin:/usr/bin:/bin"})
    if done.returncode != 0:
        raise OSError(errno.EIO, f"mkfs.ext4: {done.stderr.decode(errors='replace').strip().splitlines()[-1][:200]}")
    operations.disk(f"/proc/self/fd/{image}", target)
