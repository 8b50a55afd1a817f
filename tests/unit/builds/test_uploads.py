"""Uploads for builds: whole or not at all, whose they are, and when they are removed."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandlot.builds import uploads
from sandlot.builds.uploads import PROTECTED_S, UNUSED_S, Uploads
from sandlot.model.access import OwnerId, Principal, Quota
from sandlot.model.errors import ErrorCode, InvalidRequestError, LimitError, SandlotError
from tests.support.clock import ManualClock

MINE = Principal(owner=OwnerId("0123456789ab"), name="mine")
OTHER = Principal(owner=OwnerId("ba9876543210"), name="other")
MAX_BYTES = 4 << 20


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def stored(tmp_path: Path, clock: ManualClock) -> Uploads:
    return Uploads(tmp_path / "uploads", clock, max_bytes=MAX_BYTES)


async def pieces(*contents: bytes) -> AsyncIterator[bytes]:
    for content in contents:
        yield content


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


async def test_upload_is_stored_whole_with_its_digest(stored: Uploads) -> None:
    content = b"x" * (3 << 20) + b"end"
    written = await stored.write(MINE, "a" * 64, pieces(content[:10], content[10:]))
    assert (written.size_bytes, written.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert await stored.find(MINE, "a" * 64) == written.path
    assert written.path.read_bytes() == content
    again = await stored.write(MINE, "a" * 64, pieces(b"new"))
    assert (again.path, again.path.read_bytes()) == (written.path, b"new")
    await stored.remove(MINE, "a" * 64)
    await stored.remove(MINE, "a" * 64)
    assert await stored.find(MINE, "a" * 64) is None


async def test_interrupted_upload_leaves_the_old_content_and_nothing_else(stored: Uploads, tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"half"
        raise ConnectionError

    await stored.write(MINE, "a", pieces(b"old"))
    before = files(tmp_path)
    with pytest.raises(ConnectionError):
        await stored.write(MINE, "a", broken())
    started = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield b"half"
        started.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(stored.write(MINE, "a", endless()))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert files(tmp_path) == before
    found = await stored.find(MINE, "a")
    assert found is not None
    assert found.read_bytes() == b"old"


async def test_upload_of_another_owner_is_not_found(stored: Uploads) -> None:
    await stored.write(MINE, "a", pieces(b"1"))
    assert await stored.find(OTHER, "a") is None
    with pytest.raises(InvalidRequestError, match="not uploaded"):
        await stored.require(OTHER, ["a"])
    assert list(await stored.require(MINE, ["a"])) == ["a"]


@pytest.mark.parametrize("name", ["", ".", "..", "../a", "a/b", ".a", "a\0", "a" * 129, "ä"])
async def test_name_that_is_no_name_is_refused(stored: Uploads, name: str) -> None:
    with pytest.raises(InvalidRequestError):
        await stored.write(MINE, name, pieces(b"1"))
    with pytest.raises(InvalidRequestError):
        await stored.find(MINE, name)


async def test_values_of_the_service_are_no_uploads(stored: Uploads, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    await stored.write_value(MINE, "a", b"value")
    assert (await stored.find(MINE, "a"), await stored.read_value(OTHER, "a")) == (None, None)
    await stored.write(MINE, "a", pieces(b"of a client"))
    with pytest.raises(InvalidRequestError):
        await stored.write(MINE, ".value-a", pieces(b"of a client"))
    clock.advance(PROTECTED_S + 1)
    await stored.remove_unused()
    assert await stored.read_value(MINE, "a") == b"value"
    with pytest.raises(LimitError, match="at most"):
        await stored.write_value(MINE, "b", bytes(uploads.MAX_VALUE_BYTES + 1))
    monkeypatch.setattr(uploads, "OWNER_MAX_BYTES", 20)
    with pytest.raises(LimitError, match="together"):
        await stored.write_value(MINE, "c", bytes(20))
    clock.advance(UNUSED_S + 1)
    await stored.remove_unused()
    assert await stored.read_value(MINE, "a") is None


async def test_upload_above_a_limit_is_refused_and_leaves_nothing(stored: Uploads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(principal: Principal, content: bytes) -> ErrorCode:
        with pytest.raises(SandlotError) as error:
            await stored.write(principal, "a", pieces(content))
        assert isinstance(error.value, LimitError)
        return error.value.code

    assert await refused(MINE, b"x" * (MAX_BYTES + 1)) is ErrorCode.TOO_LARGE
    small = Principal(owner=MINE.owner, name="small", quota=Quota(upload_bytes=2))
    assert await refused(small, b"123") is ErrorCode.QUOTA_EXCEEDED
    monkeypatch.setattr(uploads, "MIN_FREE_BYTES", 1 << 60)
    assert await refused(MINE, b"1") is ErrorCode.NODE_DISK_FULL
    assert files(tmp_path) == []


async def test_unused_upload_is_removed_a_day_after_its_last_use(stored: Uploads, clock: ManualClock, tmp_path: Path) -> None:
    for name in ("used", "unused"):
        await stored.write(MINE, name, pieces(b"1"))
    clock.advance(UNUSED_S / 2)
    assert await stored.find(MINE, "used") is not None
    clock.advance(UNUSED_S / 2 + 1)
    await stored.write(OTHER, "new", pieces(b"1"))
    assert files(tmp_path) == [f"uploads/{MINE.owner}/used", f"uploads/{OTHER.owner}/new"]


async def test_remains_of_a_killed_service_are_removed(stored: Uploads, clock: ManualClock, tmp_path: Path) -> None:
    kept = await stored.write(MINE, "a", pieces(b"1"))
    left = kept.path.with_name(".0123.part")
    kept.path.rename(left)
    clock.advance(PROTECTED_S + 1)
    await stored.write(MINE, "b", pieces(b"1"))
    assert files(tmp_path) == [f"uploads/{MINE.owner}/b"]


async def test_build_holds_its_uploads_until_it_has_ended(
    stored: Uploads, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "OWNER_MAX_BYTES", 10)
    paths = [(await stored.write(MINE, name, pieces(name.encode() * 4))).path for name in ("a", "b")]
    held = await stored.hold(paths[:1])
    assert list(held) == paths[:1]
    clock.advance(UNUSED_S + 1)
    await stored.remove_unused()
    assert [path.exists() for path in paths] == [False, False]
    await stored.write(MINE, "a", pieces(b"new!"))
    assert held[paths[0]].read_bytes() == b"aaaa"
    with pytest.raises(LimitError, match="more than 10 bytes"):  # the held file counts
        await stored.write(MINE, "c", pieces(b"cccc"))
    await stored.release(held.values())
    await stored.release(held.values())
    await stored.write(MINE, "c", pieces(b"cccc"))
    assert files(tmp_path) == [f"uploads/{MINE.owner}/a", f"uploads/{MINE.owner}/c"]


async def test_upload_that_a_build_holds_counts_once_and_is_not_evicted(stored: Uploads, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "OWNER_MAX_BYTES", 10)
    first, second = [(await stored.write(MINE, name, pieces(b"x" * 4))).path for name in ("first", "second")]
    held = await stored.hold([first])
    await stored.write(MINE, "third", pieces(b"xx"))
    clock.advance(PROTECTED_S + 1)
    await stored.write(MINE, "fourth", pieces(b"x" * 4))
    assert (first.exists(), second.exists()) == (True, False)
    await stored.write(MINE, "first", pieces(b"xx"))
    assert held[first].read_bytes() == b"x" * 4


async def test_build_that_ends_during_an_upload_does_not_fail_the_upload(stored: Uploads, monkeypatch: pytest.MonkeyPatch) -> None:
    held = await stored.hold([(await stored.write(MINE, "a", pieces(b"x"))).path])
    stat = Path.stat

    def released(path: Path, **options: bool) -> os.stat_result:
        if path in held.values():
            path.unlink()
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", released)
    written = await stored.write(MINE, "b", pieces(b"new"))
    assert written.path.read_bytes() == b"new"


async def test_removed_upload_cannot_be_held(stored: Uploads, tmp_path: Path) -> None:
    kept, gone = [(await stored.write(MINE, name, pieces(b"x"))).path for name in ("kept", "gone")]
    await stored.remove(MINE, "gone")
    with pytest.raises(InvalidRequestError, match="removed before it started"):
        await stored.hold([kept, gone])
    assert files(tmp_path) == [f"uploads/{MINE.owner}/kept"]
    elsewhere = tmp_path / "context.tar"
    elsewhere.write_bytes(b"x")
    assert await stored.hold([elsewhere]) == {}


async def test_what_builds_of_the_last_service_held_is_released(stored: Uploads, tmp_path: Path) -> None:
    await stored.open()
    await stored.hold([(await stored.write(MINE, "a", pieces(b"x"))).path])
    assert len(files(tmp_path)) == 2
    await stored.open()
    assert files(tmp_path) == [f"uploads/{MINE.owner}/a"]


async def test_oldest_unused_uploads_make_room_for_new_ones_of_the_same_owner(
    stored: Uploads, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "OWNER_MAX_BYTES", 10)
    await stored.write(OTHER, "theirs", pieces(b"x" * 10))
    for name in ("first", "second"):
        await stored.write(MINE, name, pieces(b"x" * 5))
        clock.advance(1)
    with pytest.raises(LimitError) as error:  # a build may read them
        await stored.write(MINE, "third", pieces(b"x" * 5))
    assert error.value.code is ErrorCode.QUOTA_EXCEEDED
    clock.advance(PROTECTED_S)
    await stored.find(MINE, "first")
    await stored.write(MINE, "third", pieces(b"x" * 5))
    assert files(tmp_path) == [f"uploads/{MINE.owner}/first", f"uploads/{MINE.owner}/third", f"uploads/{OTHER.owner}/theirs"]
