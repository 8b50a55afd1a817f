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

MS_BIND, MNT_DETACH = 4096, 2
EINVAL = 22


def attach(request: dict[str, Any]) -> dict[str, Any]:
    """Take some away, and put some into their places.

    Args:
        request: ``gone``: paths of those that are taken away. ``there``: pairs of the folder where a volume is, and the path where it is to be.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    for path in request["gone"]:
        libc.umount2(os.fsencode(path), MNT_DETACH)  # somebody inside may have done it already
    for source, path in request["there"]:
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as error:
            raise failed(error, path) from None
        if libc.mount(os.fsencode(source), os.fsencode(path), None, ctypes.c_ulong(MS_BIND), None) != 0:
            number = ctypes.get_errno()
            raise Refused("unsupported", f"The volume cannot be put at {path}: {os.strerror(number)}.", "Choose another path, or another template.")
    return {}


def main() -> None:
    """Do it, and tell how it went."""
    serve(attach)
