"""Boot id of the sandbox (``/proc/sys/kernel/random/boot_id``, random(4)). A copy of a sandbox gets its own.

gVisor draws the boot id when the sandbox boots and keeps it in saved memory. So all sandboxes that are restored from one image would have the same
boot id. The guest therefore mounts a file over it, whose content it replaces in each copy. The mount is a part of saved memory too: the copies
of a sandbox that has the mount only write the file.
"""

from __future__ import annotations

import os

from sandlot.guest.loop import log
from sandlot.protocol.fast_imports import blake2b

BOOT_ID = "/proc/sys/kernel/random/boot_id"
SOURCE = "/run/sandlot/boot_id"
"""File that is mounted over :data:`BOOT_ID`. It is never packed with the files of the sandbox (helpers/overlay.py)."""
_MS_BIND = 4096


class BootId:
    """The boot id of the sandbox in which the guest runs.

    Args:
        is_active: False to leave the boot id alone, because the guest does not run in a sandbox of its own.
    """

    __slots__ = ("_is_active",)

    def __init__(self, *, is_active: bool) -> None:
        self._is_active = is_active

    def prepare(self) -> None:
        """Mount the file over the boot id, with the present boot id as its content. Does nothing if the file is mounted already."""
        if self._is_active:
            try:
                _mount()
            except OSError as error:
                log(f"cannot mount a file over the boot id: {error.strerror}")

    def replace(self, entropy: bytes) -> None:
        """Replace the boot id by a random one.

        Args:
            entropy: Random bytes that no other sandbox has.
        """
        if self._is_active:
            try:
                _mount()
                _write(BOOT_ID, format_uuid(blake2b(b"boot id:" + entropy).digest()))
            except OSError as error:
                log(f"cannot replace the boot id: {error.strerror}")


def format_uuid(random: bytes) -> bytes:
    """Return a random UUID (version 4, RFC 9562) as a line of text, made of the first 16 random bytes. Pure."""
    number = bytearray(random[:16])
    number[6] = number[6] & 0x0F | 0x40
    number[8] = number[8] & 0x3F | 0x80
    text = number.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}\n".encode()


def _mount() -> None:
    if os.stat(BOOT_ID).st_dev != os.stat(os.path.dirname(BOOT_ID)).st_dev:
        return  # the file is mounted; in a container, the driver has mounted one for this sandbox
    import ctypes  # noqa: PLC0415 - takes 5 ms, and only copies need it

    with open(BOOT_ID, "rb") as file:
        present = file.read(64)
    os.makedirs(os.path.dirname(SOURCE), 0o755, exist_ok=True)
    _write(SOURCE, present, os.O_CREAT)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(SOURCE.encode(), BOOT_ID.encode(), None, ctypes.c_ulong(_MS_BIND), None):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _write(path: str, text: bytes, flags: int = 0) -> None:
    # Root in the sandbox may have put anything in place of the file; opening a FIFO must not block PID 1.
    fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY | flags, 0o444)
    try:
        os.pwrite(fd, text, 0)
        os.ftruncate(fd, len(text))
    finally:
        os.close(fd)
