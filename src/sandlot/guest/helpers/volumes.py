"""Volumes in their places: each is somewhere already, in a folder of the hub that the isolation made, and is bound to where it is asked for.

Laws:
- What is in the place of one that is taken away is what was there before: nothing of the volume is touched.
- What is so already is done; what was cut in half can be asked for again.
"""

from __future__ import annotations

import ctypes
import os

from sandlot.guest.helpers.helper import Refused, failed, serve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MS_RDONLY, MS_REMOUNT, MS_BIND, MNT_DETACH = 1, 32, 4096, 2
EBUSY = 16


def attach(request: dict[str, Any]) -> dict[str, Any]:
    """Take some away, and put some into their places.

    Args:
        request: ``gone``: paths of those that are taken away, whoever uses them. ``free``: of those that are only where nobody does, each with the
            folder where it is, one with many others, and how often to look at these: then nothing of it is kept open that nobody uses. ``there``:
            for each the folder where it is, the path where it is to be, and whether nothing is to be written to it. The host sees to that; said
            here as well, no call is answered as if it had changed something.

    Returns:
        ``used``: paths of those that somebody uses, and that stay.
    """
    used: list[str] = []
    libc = ctypes.CDLL(None, use_errno=True)
    for path in request["gone"]:
        libc.umount2(os.fsencode(path), MNT_DETACH)  # somebody inside may have done it already
    for path, source, others, rounds in request.get("free", ()):
        many = _all_in(others)
        if _is_at(source, path) and libc.umount2(os.fsencode(path), 0) and ctypes.get_errno() == EBUSY:
            used.append(path)
            continue
        for _ in range(rounds):
            for each in many:
                os.stat(each)
    for source, path, read_only in request["there"]:
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as error:
            raise failed(error, path) from None
        where = os.fsencode(path)
        failed_call = 0 if _is_at(source, path) else libc.mount(os.fsencode(source), where, None, ctypes.c_ulong(MS_BIND), None)
        if not failed_call and read_only:
            failed_call = libc.mount(None, where, None, ctypes.c_ulong(MS_REMOUNT | MS_BIND | MS_RDONLY), None)
        if failed_call:
            number = ctypes.get_errno()
            raise Refused("unsupported", f"The volume cannot be put at {path}: {os.strerror(number)}.", "Choose another path, or another template.")
    return {"used": used}


def _all_in(others: str) -> list[str]:
    """The files of the folder that has many."""
    try:
        return [f"{others}/{name}" for name in os.listdir(others)]
    except FileNotFoundError:
        told = "This sandbox was started by an earlier version, and cannot give a volume back as it is."
        raise Refused("conflict", told, "Hibernate it once; then detach the volume.") from None


def _is_at(source: str, path: str) -> bool:
    """Whether a folder of the hub is bound to a path."""
    try:
        here, there = os.stat(source), os.stat(path)
    except OSError:
        return False
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def main() -> None:
    """Do it, and tell how it went."""
    serve(attach)
