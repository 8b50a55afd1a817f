"""Kills the processes and removes the files of a sandbox that a program has left.

Invariants:
- Nothing is killed or removed outside of a sandbox: PID 1 must be the guest.
- PID 1, this helper and the processes in ``keep`` are never killed.
- The entries of ``FOLDERS`` in ``keep`` are never removed, but files in these entries may have been changed.
"""

from __future__ import annotations

import os
import time

from sandlot.guest.fs.remove import remove_tree
from sandlot.guest.helpers.helper import serve
from sandlot.guest.process.accounts import lookup_account
from sandlot.guest.process.procfs import PASSES, live_processes, send_signal
from sandlot.protocol import values
from sandlot.protocol.fast_imports import signal
from sandlot.protocol.helpers import MAX_MESSAGE_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

GUEST = b"sandlot.guest.main"
"""Text in the command line of the guest (``link/payload.py``)."""
PAUSE_S = 0.01
"""Seconds between two passes: a killed process takes some time to end."""
FOLDERS = ("/workspace", "/tmp", "/var/tmp", "/dev/shm")
"""Folders whose entries are removed: the working directory, in which the folders of the cases are, and folders for temporary files. The files in
``/dev/shm`` take memory."""
REMOVE_S = 5.0
"""Seconds after which the removal of files ends, although some are left."""
MAX_LEFT = 10
"""Number of files to report that could not be removed."""
MAX_LIST_BYTES = MAX_MESSAGE_BYTES // 2
"""Largest size of the list of all files, which the response to the first request and each later request contain."""


def clean_up(request: dict[str, Any]) -> dict[str, Any]:
    """Kill all processes and remove all entries of ``FOLDERS``, except some.

    Args:
        request: ``keep``: the response to an earlier request, whose processes and files stay; None to kill and remove nothing.

    Returns:
        ``pids``: pids of all processes that are left, without PID 1 and this helper. ``files``: paths of the entries of ``FOLDERS``, or None if the
        list is larger than ``MAX_LIST_BYTES``; with ``keep``, only of some that are not in ``keep``.
    """
    keep = request["keep"]
    if keep is None or not _is_in_sandbox():
        return {"pids": _pids(), "files": [] if keep else _list_files()}
    pids = []
    for _ in range(PASSES):
        pids = _pids()
        strangers = [pid for pid in pids if pid not in keep["pids"]]
        if not strangers:
            break
        for pid in strangers:
            send_signal(pid, signal.SIGKILL)
        time.sleep(PAUSE_S)
    return {"pids": pids, "files": _remove(frozenset(keep["files"]))}


def _pids() -> list[int]:
    return [task.pid for task in live_processes() if task.pid not in {1, os.getpid()}]


def _files() -> Iterator[str]:
    for folder in FOLDERS:
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    yield entry.path
        except OSError:
            continue


def _list_files() -> list[str] | None:
    """Return the paths of all entries of ``FOLDERS``, or None if they are too many for a message."""
    paths, size_bytes = [], 0
    for path in _files():
        size_bytes += len(values.encode(path))
        if size_bytes > MAX_LIST_BYTES:
            return None
        paths.append(path)
    return paths


def _remove(keep: frozenset[str]) -> list[str]:
    """Remove all entries of ``FOLDERS`` except some. Return the paths of at most ``MAX_LEFT`` entries that are left."""
    root, until_s = lookup_account("root"), time.monotonic() + REMOVE_S
    left: list[str] = []
    for path in _files():
        if path in keep:
            continue
        try:
            if os.path.isdir(path) and not os.path.islink(path):
                for _ in remove_tree(path, root):
                    if time.monotonic() > until_s:
                        return [path]
            else:
                os.unlink(path)
        except OSError:
            left.append(path)
        if time.monotonic() > until_s or len(left) >= MAX_LEFT:
            return left or [path]
    return left


def _is_in_sandbox() -> bool:
    try:
        with open("/proc/1/cmdline", "rb") as file:
            return GUEST in file.read(4096)
    except OSError:
        return False


def main() -> None:
    """Run the helper that kills processes and removes files."""
    serve(clean_up)
