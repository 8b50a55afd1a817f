"""Files: written whole or not at all, read in parts, and everything that can be wrong with a path."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sandlot.core.content import files
from sandlot.core.runs import processes
from sandlot.core.sandbox import Sandbox
from sandlot.model.errors import ErrorCode, InvalidRequestError, SandlotError
from sandlot.model.specs import ProcessSpec, User

USER = User.USER


async def test_what_was_written_is_read(box: Sandbox) -> None:
    content = bytes(range(256)) * 2000
    entry = await files.write(box, "/workspace/deep/er/a.bin", parts(content), user=USER, mode=0o600)
    assert (entry.size, entry.mode, entry.uid, entry.kind) == (len(content), 0o600, 1000, "file")
    assert await read(box, entry.path) == content
    assert await read(box, entry.path, offset=256, length=10) == bytes(range(10))
    assert await read(box, entry.path, offset=len(content)) == b""


async def test_a_broken_upload_leaves_the_old_file(box: Sandbox) -> None:
    await files.write(box, "/workspace/a", parts(b"old"), user=USER)

    async def breaks() -> AsyncIterator[bytes]:
        yield b"new" * 100_000
        raise ConnectionError("the client went away")

    with pytest.raises(ConnectionError):
        await files.write(box, "/workspace/a", breaks(), user=USER)
    assert await read(box, "/workspace/a") == b"old"
    assert [entry.name for entry in (await files.listing(box, "/workspace", user=USER)).entries] == ["a"]


async def test_appending(box: Sandbox) -> None:
    await files.write(box, "/workspace/a", parts(b"1"), user=USER)
    await files.write(box, "/workspace/a", parts(b"2"), user=USER, append=True)
    assert await read(box, "/workspace/a") == b"12"


async def test_folders_moves_and_removal(box: Sandbox) -> None:
    await files.make_directory(box, "/workspace/d/e", user=USER)
    await files.write(box, "/workspace/d/e/f", parts(b"x"), user=USER)
    assert (await files.move(box, "/workspace/d/e/f", "/workspace/g", user=USER)).path == "/workspace/g"
    assert (await files.stat(box, "/workspace/g", user=USER)).size == 1
    assert await files.remove(box, "/workspace/d", user=USER, recursive=True) == 2
    assert [entry.name for entry in (await files.listing(box, "/workspace", user=USER)).entries] == ["g"]


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
async def test_long_folders_come_in_pages(box: Sandbox) -> None:
    await processes.run(box, ProcessSpec(("sh", "-c", "mkdir many; cd many; seq -w 1 1500 | xargs touch")))
    first = await files.listing(box, "/workspace/many", user=USER)
    second = await files.listing(box, "/workspace/many", user=USER, offset=1000)
    assert (len(first.entries), first.more, len(second.entries), second.more) == (1000, True, 500, False)
    assert [entry.name for entry in (*first.entries, *second.entries)] == [f"{n:04}" for n in range(1, 1501)]


@pytest.mark.real_guest
async def test_a_file_without_a_size_is_read_as_well(box: Sandbox) -> None:
    assert b"MemTotal" in await read(box, "/proc/meminfo")


@pytest.mark.parametrize("path", ["", "a", "./a", "/a\0b", "/\ud800", "/" + "x" * 4096])
async def test_no_path(box: Sandbox, path: str) -> None:
    with pytest.raises(InvalidRequestError):
        await files.stat(box, path, user=USER)
    with pytest.raises(InvalidRequestError):
        await files.write(box, path, parts(b""), user=USER)
    with pytest.raises(InvalidRequestError):
        await files.move(box, "/workspace", path, user=USER)


@pytest.mark.parametrize(
    "path,code",
    [
        ("/nonexistent", ErrorCode.PATH_NOT_FOUND),
        ("/root/x", ErrorCode.PERMISSION_DENIED),
        ("/etc", None),
        ("/" + "x" * 300, None),
    ],
)
@pytest.mark.real_guest
async def test_what_cannot_be_read_is_told(box: Sandbox, path: str, code: ErrorCode | None) -> None:
    with pytest.raises(SandlotError) as failed:
        await read(box, path)
    assert failed.value.status < 500
    assert code in {None, failed.value.code}


async def test_numbers_out_of_bounds(box: Sandbox) -> None:
    for offset, length in ((-1, None), (0, -1), (1 << 63, None)):
        with pytest.raises(InvalidRequestError):
            await files.read(box, "/etc/passwd", user=USER, offset=offset, length=length)
    for mode in (-1, 0o10000):
        with pytest.raises(InvalidRequestError):
            await files.write(box, "/workspace/a", parts(b""), user=USER, mode=mode)


async def parts(content: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(content), 50_000):
        yield content[at : at + 50_000]


async def read(box: Sandbox, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
    reading = await files.read(box, path, user=USER, offset=offset, length=length)
    try:
        return b"".join([piece async for piece in reading])
    finally:
        await reading.aclose()
