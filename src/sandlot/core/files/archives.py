"""Trees in and out of a sandbox as tar archives, streamed: neither end ever holds more than a window of one.

The work is done inside (``guest/programs/{packing,unpacking}.py``), whatever the image has; what is unpacked takes the sandbox's own disk,
and is bounded by that.

Laws:
- Whoever goes away half-way ends the program inside; what was unpacked before stays, no file is half there.
- An archive that cannot be packed to its end is cut, never ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sandlot.core.execution import helpers
from sandlot.core.execution.helpers import GuestHelper
from sandlot.core.sandbox import Sandbox
from sandlot.model.errors import ConflictError, SandlotError
from sandlot.model.specs import User, check_path

ENTRIES = 100_000
"""That one archive may have: each takes a file of the sandbox's disk, however few bytes it has."""
_MOST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Unpacked:
    """What came of an archive.

    Args:
        files: Regular files.
        folders: Folders that it names.
        links: Symbolic and hard links.
        size_bytes: Of all files together.
    """

    files: int
    folders: int
    links: int
    size_bytes: int


class Packed:
    """An archive that is being made: iterate, and close it in the end.

    Args:
        helper: Makes it.
    """

    __slots__ = ("_helper",)

    def __init__(self, helper: GuestHelper) -> None:
        self._helper = helper

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Its bytes. One that is not iterated costs no more than a stream's window.

        Raises:
            SandlotError: Something could not be read, or the sandbox has ended; what was given is not whole.
        """
        async for piece in self._helper:
            if isinstance(piece, bytes):
                yield piece

    async def aclose(self) -> None:
        """Stop. Idempotent."""
        self._helper.close()


async def pack(sandbox: Sandbox, path: str, *, user: User, compress: bool = False) -> Packed:
    """Begin to pack a folder, or one file.

    Args:
        sandbox: Where.
        path: Absolute; a link at its end is followed.
        user: Who reads.
        compress: By gzip.

    Raises:
        NotFoundError: ``path_not_found``.
        ForbiddenError: ``permission_denied``.
        InvalidRequestError: It is neither a file nor a folder.
        SandlotError: The sandbox has ended, or has no room for a process.
    """
    check_path(path)
    helper = await helpers.start(sandbox, "packing", {"path": path, "gzip": compress}, user=user)
    try:
        async with sandbox.connection():
            await anext(helper, None)  # one word, once it is open
    except BaseException:
        helper.close()
        raise
    return Packed(helper)


async def unpack(sandbox: Sandbox, path: str, chunks: AsyncIterable[bytes], *, user: User) -> Unpacked:
    """Unpack an archive, plain or compressed by gzip, in a folder.

    Args:
        sandbox: Where.
        path: Absolute; it is made where it is not there, with the folders above it.
        chunks: The archive, taken as fast as the sandbox takes it.
        user: Who writes, and owns what is made.

    Raises:
        InvalidRequestError: It is no archive, is broken, or leads out of the folder; names the entry.
        LimitError: ``disk_full``; or ``too_large``: more than 100,000 entries.
        ForbiddenError: ``permission_denied``.
        SandlotError: The sandbox has ended. What ``chunks`` raises comes through.
    """
    check_path(path)
    helper = await helpers.start(sandbox, "unpacking", {"path": path, "entries": ENTRIES}, user=user)
    feeding = asyncio.ensure_future(_feed(helper, chunks))
    ending = asyncio.ensure_future(helper.result())
    try:
        await asyncio.wait({feeding, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            # It ended between two pieces: how, it says itself.
            with suppress(ConflictError):
                feeding.result()
        return _unpacked(await ending)
    finally:
        for task in (feeding, ending):
            task.cancel()
        await asyncio.wait({feeding, ending})
        helper.close()


async def _feed(helper: GuestHelper, chunks: AsyncIterable[bytes]) -> None:
    async for chunk in chunks:
        await helper.send(chunk)
    with suppress(SandlotError):
        helper.end_input()


def _unpacked(result: Mapping[str, Any]) -> Unpacked:
    """What the program's result comes to: a guest's numbers."""
    return Unpacked(*(_number(result.get(name)) for name in ("files", "folders", "links", "bytes")))


def _number(given: object) -> int:
    return given if type(given) is int and 0 <= given <= _MOST else 0
