"""A disk of fixed size per sandbox: an ext4 file system in a sparse file, mounted through a loop device.

What is made here is only the file. The loop device and the mount live in the mount namespace of the sandbox's own
processes (``stage``) and end with them: the device is marked to clear itself, and the host never lists the mount.

Laws:
- The file takes host space only for what is written to it, and gives it back for what is deleted (the mount discards).
  So the sum of all limits may exceed the host's disk; to promise no more than there is, is admission's task.
- No journal and no reserved blocks: nobody reads it after a crash. A handful of inodes where it holds one file.
- ``mkfs.ext4`` runs once per size; each further disk is stamped from what it wrote (measured for 5 GiB: 2.9 ms against
  0.07 ms, about 200 KiB of metadata in 7 pieces).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sandlot.host.own import let_go
from sandlot.model.errors import ErrorCode, HostError

BLOCK_BYTES = 4096
OVERHEAD_BYTES = 1024 * 1024
"""Added to the limit for the file system's own fixed metadata, beside :data:`_OVERHEAD_SHARE`."""
_OVERHEAD_SHARE = 1024
"""One part in so many: the metadata that grows with the size (measured: 0.01 % at 5 GiB), generously."""
INODE_BYTES = 256
FEW_INODES, LEAST_INODES, MOST_INODES = 64, 4096, 4_194_304
"""For a disk that holds one file; for one that holds many, whatever its size."""
_MKFS_TIMEOUT_S = 60.0
_LOOP_CLR_FD = 0x4C01
"""linux/loop.h"""
_SYS_BLOCK = Path("/sys/block")


@dataclass(frozen=True, slots=True)
class DiskTemplate:
    """What an empty file system of one size consists of.

    Args:
        size_bytes: Size of the file.
        pieces: Offset and content of everything that is not zero.
    """

    size_bytes: int
    pieces: tuple[tuple[int, bytes], ...]


def image_bytes(limit_bytes: int, bytes_per_inode: int | None = None) -> int:
    """The size of the file whose file system takes ``limit_bytes`` of content, in whole blocks."""
    total = limit_bytes + limit_bytes // _OVERHEAD_SHARE + OVERHEAD_BYTES + inodes(limit_bytes, bytes_per_inode) * INODE_BYTES
    return -(-total // BLOCK_BYTES) * BLOCK_BYTES


def inodes(limit_bytes: int, bytes_per_inode: int | None) -> int:
    """How many files a file system of that limit can hold."""
    if bytes_per_inode is None:
        return FEW_INODES
    return min(max(limit_bytes // bytes_per_inode, LEAST_INODES), MOST_INODES)


def mkfs_argv(image: Path, count: int) -> tuple[str, ...]:
    """The command that makes the file system, mke2fs(8).

    Args:
        image: The file.
        count: How many inodes it has.
    """
    return (
        "mkfs.ext4",
        "-q",
        "-F",
        *("-b", str(BLOCK_BYTES)),
        # With uninit_bg and lazy_itable_init the tables of inodes are not written: holes read as zeros (5 GiB with 327,680
        # inodes: 80 MiB written without, 0.1 MiB with). The mount says noinit_itable, so that the kernel does not either.
        *("-O", "^has_journal,^resize_inode,^metadata_csum,uninit_bg,sparse_super2,extent,flex_bg"),
        *("-E", "lazy_itable_init=1,nodiscard,num_backup_sb=0"),
        *("-m", "0"),
        *("-N", str(count), "-I", str(INODE_BYTES)),
        str(image),
    )


def make_template(limit_bytes: int, scratch: Path, bytes_per_inode: int | None = None) -> DiskTemplate:
    """Run ``mkfs.ext4`` once and keep what it wrote. Blocks for some milliseconds.

    Args:
        limit_bytes: What the file system shall take.
        scratch: A folder for the file, which is gone afterwards.
        bytes_per_inode: How much content there is for each file that it can hold; None where it holds a handful.

    Raises:
        HostError: mkfs.ext4 is missing or failed.
    """
    size = image_bytes(limit_bytes, bytes_per_inode)
    with tempfile.NamedTemporaryFile(dir=scratch, prefix=".mkfs-") as image:
        image.truncate(size)
        try:
            process = subprocess.Popen(
                mkfs_argv(Path(image.name), inodes(limit_bytes, bytes_per_inode)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={"PATH": "/usr/sbin:/sbin:/usr/bin:/bin"},
            )
        except FileNotFoundError:
            raise HostError("mkfs.ext4 is not installed.", code=ErrorCode.HOST_NOT_READY, hint="apt-get install e2fsprogs") from None
        with process:
            let_go(process.pid)
            try:
                said, _ = process.communicate(timeout=_MKFS_TIMEOUT_S)
            except BaseException:
                process.kill()
                raise
        if process.returncode != 0:
            raise HostError(
                f"mkfs.ext4 failed: {said.decode(errors='replace').strip()[:500]}",
                code=ErrorCode.HOST_NOT_READY,
                hint="Look at the free space of the state directory.",
            )
        return DiskTemplate(size, tuple(_pieces(image.fileno(), size)))


def stamp(template: DiskTemplate, image: Path) -> None:
    """Write a new, empty file system.

    Raises:
        FileExistsError: The file is there already.
        OSError: No space.
    """
    handle = os.open(image, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(handle, template.size_bytes)
        for offset, content in template.pieces:
            os.pwrite(handle, content, offset)
    finally:
        os.close(handle)


def loops_below(folder: Path, sys_block: Path = _SYS_BLOCK) -> dict[str, Path]:
    """Loop devices whose file is, or was, below a folder: device name -> file."""
    found: dict[str, Path] = {}
    for device in sys_block.glob("loop*"):
        with contextlib.suppress(OSError):
            backing = (device / "loop" / "backing_file").read_text(encoding="utf-8", errors="surrogateescape").rstrip("\n")
            file = Path(backing.removesuffix(" (deleted)"))
            if file.is_relative_to(folder):
                found[device.name] = file
    return found


def detach(device: str) -> None:
    """Free a loop device; one that is still mounted frees itself at the last umount. One that is free already is no error."""
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
        except OSError:  # ENXIO: nothing but a hole up to the end
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
