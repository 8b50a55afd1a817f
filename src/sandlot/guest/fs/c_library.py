"""Copy of the C library on the disk of the sandbox, without which forked programs crash on an EROFS image.

gVisor 20240729 ends a forked process with SIGSEGV if the first instruction that it runs of a part of a file of an EROFS image lies across two pages:
the fault of the second page counts as a read, the image grants no more than that (``Perms`` of ``Translate``), and the same fault again counts as
a write. The parts of a file lie between the pages that gVisor has changed to make system calls faster, so this concerns the C library. Examples are
``getcwd`` and ``system`` of Debian 12, the processes of Chromium, and ``mclapply`` of R. Files on the disk of the sandbox grant everything at once.
Remove this with the first release that contains gVisor's commit 86ceb5c26 (September 2024).
"""

from __future__ import annotations

import os
import stat

from sandlot.guest.fs.attributes import note_folders, restore_times
from sandlot.guest.loop import log

_MACHINE = os.uname().machine
PATHS = frozenset(
    {f"/usr/lib/{_MACHINE}-linux-gnu/libc.so.6", "/usr/lib64/libc.so.6", "/usr/lib/libc.so.6"}
    | {f"/lib/{_MACHINE}-linux-gnu/libc.so.6", "/lib64/libc.so.6", f"/lib/ld-musl-{_MACHINE}.so.1", f"/usr/lib/ld-musl-{_MACHINE}.so.1"}
)
"""Paths of the C library in Debian, Fedora, Arch and Alpine, with and without a common /usr."""
MAX_BYTES = 16 << 20
"""Size up to which a file is copied. The C library has 2 MB; a larger file is something else, and copying it would delay the start."""
_MAX_RECORD_BYTES = 4096
RECORD = "/run/sandlot/c_library"
"""File with the change time in nanoseconds and the path of each copy, one on a line. A copy with another change time was changed by a program.

The file is never packed with the files of the sandbox (helpers/overlay.py).
"""


def copy_c_library(paths: frozenset[str] = PATHS, record: str = RECORD) -> None:
    """Copy the C library of an EROFS image to the disk of the sandbox. Nothing else about the file and its folder changes, except change times."""
    folders: dict[str, os.stat_result] = {}
    copied: list[str] = []
    for path in paths:
        try:
            found = os.lstat(path)
            if stat.S_ISREG(found.st_mode) and found.st_size <= MAX_BYTES and _is_of_erofs(found) and os.path.realpath(path) == path:
                note_folders(path, folders)
                os.chmod(path, stat.S_IMODE(found.st_mode))  # every change of a file copies it
                copied.append(f"{os.lstat(path).st_ctime_ns} {path}\n")
        except FileNotFoundError:
            continue
        except OSError as error:
            log(f"{path!r} cannot be copied to the disk of the sandbox: {error}")
    restore_times(folders)
    if copied:
        _write(record, "".join(copied))


def read_copies(record: str = RECORD) -> dict[bytes, int]:
    """Return path -> change time of the copies that the guest has made; empty if it has made none, or if a program has removed the record."""
    try:
        # Root in the sandbox may have put anything in place of the file.
        fd = os.open(record, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            lines = os.read(fd, _MAX_RECORD_BYTES).splitlines()
        finally:
            os.close(fd)
        return {path: int(ctime_ns) for ctime_ns, path in (line.split(b" ", 1) for line in lines)}
    except (OSError, ValueError):
        return {}


def _write(record: str, text: str) -> None:
    try:
        os.makedirs(os.path.dirname(record), 0o755, exist_ok=True)
        fd = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY, 0o600)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)
    except OSError as error:
        log(f"the copies of the C library cannot be recorded, so that snapshots of files contain them: {error}")


def _is_of_erofs(found: os.stat_result) -> bool:
    """Return True if a file is one of an EROFS image, which has no change times: gVisor shows the modification time instead."""
    return found.st_ctime_ns == found.st_mtime_ns
