"""The file store: complete files or none, names, media types, owners and limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.requests import ClientDisconnect

from sandlot.core.files.store import FileStore, media_type_of
from sandlot.core.records.events import EventFeed
from sandlot.core.records.metrics import Metrics
from sandlot.core.records.sandboxes import SandboxRecorder
from sandlot.core.registry import SandboxRegistry
from sandlot.core.resources.reservations import OvercommitConfig, Reservations
from sandlot.model.access import OPERATOR, OwnerId, Principal, Quota
from sandlot.model.buffer_budget import BufferShares
from sandlot.model.errors import ErrorCode, InvalidRequestError, LimitError, NotFoundError
from sandlot.model.files import check_filename, check_media_type, tidy_filename
from sandlot.model.ids import new_node_id
from sandlot.model.records import FileId
from sandlot.store.blobs import FolderBlobs, open_blobs
from sandlot.store.store import SqlStore, open_store
from tests.support.clock import ManualClock
from tests.support.service import BOUNDLESS, bench, pieces

ALICE, BOB = (Principal(OwnerId(name * 12), name) for name in "ab")
MAX_BYTES = 5 * 1024 * 1024


@pytest.fixture
async def rows(tmp_path: Path) -> AsyncIterator[SqlStore]:
    async with open_store(tmp_path / "own.db") as opened:
        yield opened


@pytest.fixture
async def blobs(tmp_path: Path) -> FolderBlobs:
    return await open_blobs(tmp_path / "blobs")


@pytest.fixture
def store(rows: SqlStore, blobs: FolderBlobs, clock: ManualClock) -> FileStore:
    events = EventFeed(rows.events)
    registry = SandboxRegistry(SandboxRecorder(rows, new_node_id(), clock, events, Metrics()), BufferShares(MAX_BYTES), clock)
    return FileStore(rows.files, blobs, registry, clock, reservations_of(clock), max_bytes=MAX_BYTES)


def reservations_of(clock: ManualClock) -> Reservations:
    return Reservations(lambda: BOUNDLESS, OvercommitConfig(), clock)


async def content(store: FileStore, principal: Principal, id_: str) -> bytes:
    return b"".join([piece async for piece in await store.read(principal, id_)])


async def test_upload_is_refused_while_the_host_is_short_of_disk_space(tmp_path: Path) -> None:
    full = replace(BOUNDLESS, free=replace(BOUNDLESS.free, disk_bytes=0))
    async with bench(tmp_path, read_host=lambda: full) as at:
        with pytest.raises(LimitError) as error:
            await at.node.file_store.upload(ALICE, pieces(b"x"), filename="x")
        assert error.value.code is ErrorCode.NODE_DISK_FULL


async def test_file_of_another_owner_is_not_found(store: FileStore) -> None:
    record = await store.upload(ALICE, pieces(b"x"), filename="x")
    assert await store.get(OPERATOR, record.id) == record
    assert await store.list(BOB, offset=0, limit=9) == ([], 0)
    for principal, id_ in ((BOB, record.id), (ALICE, "file-aaaaaaaaaaaaaaaa"), (ALICE, "../x"), (ALICE, "x" * 5000)):
        for refused in (store.get(principal, id_), store.delete(principal, id_), store.read(principal, id_), store.get_many(principal, [id_])):
            with pytest.raises(NotFoundError) as error:
                await refused
            assert error.value.code is ErrorCode.FILE_NOT_FOUND
    assert await content(store, ALICE, record.id) == b"x"


async def test_too_large_upload_is_refused_and_leaves_nothing(store: FileStore, tmp_path: Path) -> None:
    megabyte = b"x" * 1024 * 1024
    assert (await store.upload(ALICE, pieces(*[megabyte] * 5), filename="fits")).size_bytes == MAX_BYTES
    with pytest.raises(LimitError) as error:
        await store.upload(ALICE, pieces(*[megabyte] * 5, b"x"), filename="more")
    assert error.value.code is ErrorCode.TOO_LARGE
    with pytest.raises(LimitError) as error:
        await store.upload(replace(ALICE, quota=Quota(upload_bytes=10)), pieces(b"x" * 11), filename="more")
    assert (error.value.code, error.value.status) == (ErrorCode.QUOTA_EXCEEDED, 429)
    assert len(list((tmp_path / "blobs").iterdir())) == 1


async def test_interrupted_upload_leaves_nothing(store: FileStore, tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * 3_000_000
        raise ClientDisconnect

    with pytest.raises(ClientDisconnect):
        await store.upload(ALICE, broken(), filename="x")
    waits = asyncio.Event()

    async def hangs() -> AsyncIterator[bytes]:
        yield b"x" * 3_000_000
        waits.set()
        await asyncio.Event().wait()

    upload = asyncio.create_task(store.upload(ALICE, hangs(), filename="x"))
    await waits.wait()
    upload.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upload
    assert await store.list(OPERATOR, offset=0, limit=9) == ([], 0)
    assert [path for path in (tmp_path / "blobs").iterdir() if "#" not in path.name] == []
    await open_blobs(tmp_path / "blobs")
    assert list((tmp_path / "blobs").iterdir()) == []


async def test_content_without_a_record_is_removed_at_the_start(store: FileStore, blobs: FolderBlobs, tmp_path: Path) -> None:
    kept = await store.upload(ALICE, pieces(b"kept"), filename="kept")
    await blobs.write(FileId("file-killedinbetween"), pieces(b"half"))
    assert await store.open() == 1
    assert [path.name for path in (tmp_path / "blobs").iterdir()] == [kept.id]
    assert await content(store, ALICE, kept.id) == b"kept"


async def test_failed_commit_removes_the_content(store: FileStore, rows: SqlStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_record: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(rows.files, "add", fail)
    with pytest.raises(RuntimeError):
        await store.upload(ALICE, pieces(b"x"), filename="x")
    assert list((tmp_path / "blobs").iterdir()) == []


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "/a", "a\\b", "a\0b", "a\nb", "a\x1b[31m", "a\x85", "a\u202eb", "a\u2028", "\ud800", "x" * 256, "é" * 128]
)
def test_invalid_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        check_filename(name)
    assert refused.value.fields == {"field": "filename"}
    assert refused.value.message.isprintable()


@pytest.mark.parametrize("name", ["a", ".hidden", "..a", "a b", 'a"b', "a;b%", "日本語.txt", "é" * 127])
def test_valid_name_is_accepted(name: str) -> None:
    assert check_filename(name) == name


@pytest.mark.parametrize(
    "path, name",
    [("/a/b.txt", "b.txt"), ("/a/b\n.txt", "b_.txt"), ("/", "file"), ("/a/..", "file"), ("/a\\b", "file"), ("/" + "é" * 200, "é" * 127)],
)
def test_name_of_a_file_in_a_sandbox_becomes_a_valid_name(path: str, name: str) -> None:
    assert tidy_filename(path) == name
    assert check_filename(tidy_filename(path)) == name


@pytest.mark.parametrize("media_type", ["text/csv", "text/html; charset=utf-8", "application/vnd.ms-excel", 'a/b;c="d e"'])
def test_valid_media_type_is_accepted(media_type: str) -> None:
    assert check_media_type(media_type) == media_type


@pytest.mark.parametrize("media_type", ["", "text", "a/b\r\nX: y", "a/b, c/d", "a/" + "b" * 200, "té/xt", "a/b; c"])
def test_invalid_media_type_is_refused(media_type: str) -> None:
    with pytest.raises(InvalidRequestError):
        check_media_type(media_type)


def test_media_type_follows_from_the_name() -> None:
    assert [media_type_of(name) for name in ("a.csv", "a.PNG", "http://x.html", "a")] == [
        "text/csv",
        "image/png",
        "text/html",
        "application/octet-stream",
    ]
