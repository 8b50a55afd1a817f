"""Images of ext4 file systems: their sizes, how they are created, and their loop devices.

The disk of a sandbox is an ext4 file system in a file, mounted through a loop device. This module creates the file. The mount belongs to the mount
namespace of the sandbox's own processes (``stage``), so the host never lists the mount. When these processes have ended, the kernel removes the mount
and frees the loop device.

Invariants:
- An allocated image file has its space on the host from the beginning (fallocate(2)) and keeps the space until the file is removed. A full host
  disk therefore cannot make a write inside fail. The blocks are *unwritten extents*: they read as zeros and are not copied as data.
- A sparse image file takes space on the host only for data that was written. When the data is deleted, the kernel frees this space (mount option
  ``discard``). The limits of all sparse disks together may therefore exceed the host's disk. If the host's disk is full, the kernel drops what was
  written inside, even after a successful fsync(2) inside gVisor.
- A sandbox's disk has no journal and no reserved blocks, because it is never read again after a crash. A disk for a few
  files has only :data:`FEW_INODES` inodes.
- ``mkfs.ext4`` runs once for each size (2.9 ms for 5 GiB, measured). Each further disk of the same size is written from a copy of the output, which
  for 5 GiB is about 200 KiB of metadata in 7 pieces (0.07 ms).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandlot.host.service_cgroup import leave_service_cgroup
from sandlot.host.stage import syscalls
from sandlot.model.errors import HostError

BLOCK_BYTES: Final = 4096
OVERHEAD_BYTES: Final = 1024 * 1024
"""Bytes that are added to the size of an image, for metadata whose size does not depend on the amount of content."""
_OVERHEAD_DIVISOR: Final = 1024
"""The bytes of content divided by this number are also added, for metadata that grows with the content (measured: 0.01 % at 5 GiB)."""
INODE_BYTES: Final = 256
FEW_INODES, MIN_INODES, MAX_INODES = 64, 4096, 4_194_304
"""Number of inodes of a disk that holds a few files; least and largest number of inodes of a disk that holds many files."""

SANDBOX_OPTIONS: Final = (
    # With uninit_bg and lazy_itable_init, mke2fs does not write the inode tables: holes of the sparse file read as zeros. For 5 GiB with 327,680
    # inodes, mke2fs writes 0.1 MiB instead of 80 MiB. The disk must be mounted with noinit_itable, or the kernel would write the inode tables later.
    *("-O", "^has_journal,^resize_inode,^metadata_csum,uninit_bg,sparse_super2,extent,flex_bg"),
    *("-E", "lazy_itable_init=1,nodiscard,num_backup_sb=0"),
)
"""Options of mke2fs(8) for the disk of a sandbox."""

_TIMEOUT_S: Final = 120.0
_PATH: Final = {"PATH": "/usr/sbin:/sbin:/usr/bin:/bin"}
_LOOP_CLR_FD: Final = 0x4C01
"""Number of the ioctl that frees a loop device (linux/loop.h)."""
_SYS_BLOCK: Final = Path("/sys/block")


@dataclass(frozen=True, slots=True)
class DiskTemplate:
    """Copy of an image file with an empty file system, from which :func:`stamp` creates further image files.

    Args:
        size_bytes: Size of the image file in bytes.
        pieces: Offset in bytes and content of each part of the image file that is not zero.
    """

    size_bytes: int
    pieces: tuple[tuple[int, bytes], ...]


def image_bytes(limit_bytes: int, bytes_per_inode: int | None = None) -> int:
    """Return the size in bytes of an image whose file system holds ``limit_bytes`` of content, rounded up to whole blocks.

    Args:
        limit_bytes: Bytes of content that the file system must hold.
        bytes_per_inode: Bytes of content for each inode that is created. None: create :data:`FEW_INODES` inodes, for a file system with a few files.
    """
    inodes = inode_count(limit_bytes, bytes_per_inode)
    total = limit_bytes + limit_bytes // _OVERHEAD_DIVISOR + OVERHEAD_BYTES + inodes * INODE_BYTES
    return -(-total // BLOCK_BYTES) * BLOCK_BYTES


def inode_count(limit_bytes: int, bytes_per_inode: int | None) -> int:
    """Return the number of inodes of a file system that holds ``limit_bytes`` of content.

    Args:
        limit_bytes: Bytes of content that the file system must hold.
        bytes_per_inode: Bytes of content for each inode that is created. None: create :data:`FEW_INODES` inodes, for a file system with a few files.
    """
    if bytes_per_inode is None:
        return FEW_INODES
    return min(max(limit_bytes // bytes_per_inode, MIN_INODES), MAX_INODES)


def run_mkfs(image: str | Path, inodes: int, options: Sequence[str], *, inherit: Sequence[int] = ()) -> None:
    """Create an ext4 file system in an image. Blocks for some milliseconds.

    Args:
        image: Path of the image file. The file must have its final size already.
        inodes: Number of inodes.
        options: Further options of mke2fs(8).
        inherit: Descriptors that mkfs.ext4 inherits, if ``image`` is a path below /proc/self/fd.

    Raises:
        HostError: mkfs.ext4 is not installed or failed.
    """
    sizes = ("-b", str(BLOCK_BYTES), "-m", "0", "-N", str(inodes), "-I", str(INODE_BYTES))
    run_e2fsprogs(("mkfs.ext4", "-q", "-F", *sizes, *options, str(image)), inherit=inherit)


def run_e2fsprogs(argv: Sequence[str], *, inherit: Sequence[int] = ()) -> None:
    """Run a program of the package e2fsprogs and wait until it ends.

    Args:
        argv: Name of the program and its arguments.
        inherit: Descriptors that the program inherits.

    Raises:
        HostError: The program is not installed or failed.
    """
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=_PATH, pass_fds=tuple(inherit)
        )
    except FileNotFoundError:
        raise HostError(f"{argv[0]} is not installed.", hint="Run apt-get install e2fsprogs.") from None
    with process:
        leave_service_cgroup(process.pid)
        try:
            output, _ = process.communicate(timeout=_TIMEOUT_S)
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise HostError(
            f"{argv[0]} failed: {output.decode(errors='replace').strip()[:500]}",
            hint="Check the free space of the state directory (SANDLOT_DATA_DIR).",
        )


def make_template(limit_bytes: int, scratch: Path, bytes_per_inode: int | None = None) -> DiskTemplate:
    """Create an empty file system with ``mkfs.ext4`` in a temporary file and return its content. Blocks for some milliseconds.

    Args:
        limit_bytes: Bytes of content that the file system must hold.
        scratch: Folder for a temporary file.
        bytes_per_inode: Bytes of content for each inode that is created. None: create :data:`FEW_INODES` inodes, for a file system with a few files.

    Raises:
        HostError: mkfs.ext4 is not installed or failed.
    """
    size = image_bytes(limit_bytes, bytes_per_inode)
    with tempfile.NamedTemporaryFile(dir=scratch, prefix=".mkfs-") as image:
        image.truncate(size)
        run_mkfs(image.name, inode_count(limit_bytes, bytes_per_inode), SANDBOX_OPTIONS)
        return DiskTemplate(size, tuple(_pieces(image.fileno(), size)))


def stamp(template: DiskTemplate, image: Path, *, allocated: bool) -> None:
    """Create an image file with the empty file system of a template.

    Args:
        template: Content of the empty file system.
        image: Path of the image file.
        allocated: True: allocate the whole file. False: the file is sparse.

    Raises:
        FileExistsError: The file ``image`` exists already.
        OSError: The file cannot be written, for example because the host's disk is full.
    """
    handle = os.open(image, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(handle, template.size_bytes)
        if allocated:
            allocate(handle)
        for offset, content in template.pieces:
            os.pwrite(handle, content, offset)
    finally:
        os.close(handle)


def allocate(image: int) -> None:
    """Allocate the whole of an open image file. The content is unchanged, and a file system that is mounted from the file notices nothing.

    On a file system of the host that cannot allocate space, the file stays sparse; ``sandlot doctor`` reports such a file system.

    Raises:
        OSError: The host's disk has no room.
    """
    try:
        syscalls.fallocate(image, os.fstat(image).st_size)
    except OSError as error:
        if error.errno not in {errno.EOPNOTSUPP, errno.ENOSYS}:
            raise


def written_bytes(image: Path) -> int:
    """Return the bytes of an image file that were ever written and not given back to the host."""
    handle, written, end = os.open(image, os.O_RDONLY | os.O_CLOEXEC), 0, 0
    try:
        while True:
            start = os.lseek(handle, end, os.SEEK_DATA)
            end = os.lseek(handle, start, os.SEEK_HOLE)
            written += end - start
    except OSError as error:
        if error.errno != errno.ENXIO:  # no data after this offset
            raise
        return written
    finally:
        os.close(handle)


def loops_below(folder: Path, sys_block: Path = _SYS_BLOCK) -> dict[str, Path]:
    """Return the loop devices attached to files below a folder, including deleted files: name of the device -> path of the file."""
    found: dict[str, Path] = {}
    for device in sys_block.glob("loop*"):
        with contextlib.suppress(OSError):
            backing = (device / "loop" / "backing_file").read_text(encoding="utf-8", errors="surrogateescape").rstrip("\n")
            file = Path(backing.removesuffix(" (deleted)"))
            if file.is_relative_to(folder):
                found[device.name] = file
    return found


def detach_loop(device: str) -> None:
    """Free a loop device such as ``loop0``; if it is mounted, the kernel frees it after the last unmount. Does nothing if the device is free."""
    with contextlib.suppress(OSError):
        handle = os.open(f"/dev/{device}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.ioctl(handle, _LOOP_CLR_FD)
        finally:
            os.close(handle)


def _pieces(handle: int, size: int) -> list[tuple[int, bytes]]:
    pieces: list[tuple[int, bytes]] = []
    zero = bytes(BLOCK_BYTES)
    end = 0
    while end < size:
        try:
            start = os.lseek(handle, end, os.SEEK_DATA)
        except OSError:  # ENXIO: no data after this offset
            break
        end = os.lseek(handle, start, os.SEEK_HOLE)
        for offset in range(start, end, BLOCK_BYTES):
            block = os.pread(handle, BLOCK_BYTES, offset)
            if block == zero:
                continue
            if pieces and pieces[-1][0] + len(pieces[-1][1]) == offset:
                pieces[-1] = (pieces[-1][0], pieces[-1][1] + block)
            else:
                pieces.append((offset, block))
    return pieces
