"""Binds volumes to their paths in a running sandbox, and unbinds them.

The driver has mounted the volumes in subfolders of one folder, the hub (``link/payload.py``, ``VOLUMES``).

Invariants:
- After a volume was unbound from a path, the former content of the path is visible again. The volume does not change.
- A request may be repeated. Volumes that are already bound as requested stay bound.
"""

from __future__ import annotations

import ctypes
import os

from sandlot.guest.errors import RpcError
from sandlot.guest.fs.paths import path_error
from sandlot.guest.helpers.helper import serve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MS_RDONLY, MS_REMOUNT, MS_BIND, MNT_DETACH = 1, 32, 4096, 2
EBUSY = 16


def bind(request: dict[str, Any]) -> dict[str, Any]:
    """Unbind some volumes and bind others.

    Args:
        request: Three lists.
            ``unbind``: paths of volumes to unbind even if they are in use.
            ``unbind_if_unused``: volumes to unbind only if they are not in use. Each item consists of the path, the volume's folder in the
            hub, a folder with many files, and a number of rounds. In each round, stat(2) is called for all these files: this fills the caches
            of gVisor, which then drops unused files of the volume.
            ``bind``: volumes to bind. Each item consists of the volume's folder in the hub, the path, and True for a read-only volume. The
            host prevents writes to a read-only volume in any case. If the flag is True, write calls in the sandbox also fail.

    Returns:
        ``used``: paths of ``unbind_if_unused`` that stay bound because they are in use.
    """
    used: list[str] = []
    libc = ctypes.CDLL(None, use_errno=True)
    for path in request["unbind"]:
        libc.umount2(os.fsencode(path), MNT_DETACH)  # fails if a process in the sandbox has unbound the path already
    for path, source, others, rounds in request.get("unbind_if_unused", ()):
        files = _files_in(others)
        if _is_bound(source, path) and libc.umount2(os.fsencode(path), 0) and ctypes.get_errno() == EBUSY:
            used.append(path)
            continue
        for _ in range(rounds):
            for each in files:
                os.stat(each)
    for source, path, read_only in request["bind"]:
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as error:
            raise path_error(error, path) from None
        where = os.fsencode(path)
        failed_call = 0 if _is_bound(source, path) else libc.mount(os.fsencode(source), where, None, ctypes.c_ulong(MS_BIND), None)
        if not failed_call and read_only:
            failed_call = libc.mount(None, where, None, ctypes.c_ulong(MS_REMOUNT | MS_BIND | MS_RDONLY), None)
        if failed_call:
            number = ctypes.get_errno()
            raise RpcError(
                "unsupported", f"The volume cannot be mounted at {path!r}: {os.strerror(number)}.", "Choose another path, or another template."
            )
    return {"used": used}


def _files_in(others: str) -> list[str]:
    """Return the paths of the files in a folder. Calling stat(2) for these paths makes gVisor drop a volume's unused files from its caches."""
    return [f"{others}/{name}" for name in os.listdir(others)]


def _is_bound(source: str, path: str) -> bool:
    """Return True if the folder ``source`` of the hub is bound to ``path``, which means that both are the same folder."""
    try:
        here, there = os.stat(source), os.stat(path)
    except OSError:
        return False
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def main() -> None:
    """Run the helper that binds and unbinds volumes."""
    serve(bind)
