"""Files: written whole or not at all, read in parts, and everything that can be wrong with a path."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sandlot.core.content import files
from sandlot.core.sandbox import Sandbox
from sandlot.model.errors import ErrorCode, SandlotError
from sandlot.model.specs import User

USER = User.USER


async def test_a_folder_has_the_mode_that_was_asked_for_and_those_above_it_have_not(box: Sandbox) -> None:
    made = await files.make_directory(box, "/workspace/above/open/", user=USER, mode=0o1777)
    assert (made.mode, (await files.stat(box, "/workspace/above", user=USER)).mode) == (0o1777, 0o755)
    again = await files.make_directory(box, "/workspace/above/open", user=USER, mode=0o700)
    assert again.mode == 0o1777
    assert (await files.make_directory(box, "/workspace/plain", user=USER)).mode == 0o755
    await files.write(box, "/workspace/file", parts(b""), user=USER)
    for path, parents in (("/workspace/plain", False), ("/workspace/file", True)):
        with pytest.raises(SandlotError) as refused:
            await files.make_directory(box, path, user=USER, parents=parents, mode=0o755)
        assert refused.value.code == ErrorCode.PATH_EXISTS


@pytest.mark.real_guest
async def test_a_file_without_a_size_is_read_as_well(box: Sandbox) -> None:
    assert b"MemTotal" in await read(box, "/proc/meminfo")


async def parts(content: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(content), 50_000):
        yield content[at : at + 50_000]


async def read(box: Sandbox, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
    reading = await files.read(box, path, user=USER, offset=offset, length=length)
    try:
        return b"".join([piece async for piece in reading])
    finally:
        await reading.aclose()
