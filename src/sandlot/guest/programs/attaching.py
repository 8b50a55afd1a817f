"""Volumes in their places: each is somewhere already, in a folder of the hub that the isolation made, and is bound to where it is asked for.

Law: what is in the place of one that is taken away is what was there before: nothing of the volume is touched.
"""

from __future__ import annotations

import ctypes
import os

from sandlot.guest.programs.talk import Refused, failed, serve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MS_RDONLY, MS_REMOUNT, MS_BIND, MNT_DETACH = 1, 32, 4096, 2
EINVAL = 22


def attach(request: dict[str, Any]) -> dict[str, Any]:
    """Take some away, and put some into their places.

    Args:
        request: ``gone``: paths of those that are taken away. ``there``: for each the folder where it is, the path where it is to be, and whether
            nothing is to be written to it. The host sees to that; said here as well, no call is answered as if it had changed something.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    for path in request["gone"]:
        libc.umount2(os.fsencode(path), MNT_DETACH)  # somebody inside may have done it already
    for source, path, read_only in request["there"]:
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as error:
            raise failed(error, path) from None
        where = os.fsencode(path)
        failed_call = libc.mount(os.fsencode(source), where, None, ctypes.c_ulong(MS_BIND), None)
        if not failed_call and read_only:
            failed_call = libc.mount(None, where, None, ctypes.c_ulong(MS_REMOUNT | MS_BIND | MS_RDONLY), None)
        if failed_call:
            number = ctypes.get_errno()
            raise Refused("unsupported", f"The volume cannot be put at {path}: {os.strerror(number)}.", "Choose another path, or another template.")
    return {}


def main() -> None:
    """Do it, and tell how it went."""
    serve(attach)
