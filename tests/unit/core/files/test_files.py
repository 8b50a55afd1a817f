"""The file service: modes of created folders, owners, and closing of downloads.

Reading, writing and invalid paths are tested through the HTTP API and in `tests/service`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from sandlot.model.access import OPERATOR, OwnerId, Principal, Quota
from sandlot.model.errors import ErrorCode, NotFoundError, SandlotError
from sandlot.model.sandboxes import CreateSandboxParams
from tests.support.node import MemoryNode, run_pending
from tests.support.service import pieces

STRANGER = Principal(owner=OwnerId("ba9876543210"), name="another")


@pytest.fixture
async def sandbox(node: MemoryNode) -> str:
    return (await node.sandboxes.create(OPERATOR, CreateSandboxParams())).id


async def test_created_folder_has_the_requested_mode_and_its_parents_have_not(node: MemoryNode, sandbox: str) -> None:
    files = node.services.files
    made = await files.make_directory(OPERATOR, sandbox, "/workspace/above/open/", mode=0o1777)
    assert (made.mode, (await files.stat(OPERATOR, sandbox, "/workspace/above")).mode) == (0o1777, 0o755)
    again = await files.make_directory(OPERATOR, sandbox, "/workspace/above/open", mode=0o700)
    assert again.mode == 0o1777
    assert (await files.make_directory(OPERATOR, sandbox, "/workspace/plain")).mode == 0o755
    await files.write(OPERATOR, sandbox, "/workspace/file", pieces())
    for path, parents in (("/workspace/plain", False), ("/workspace/file", True)):
        with pytest.raises(SandlotError) as refused:
            await files.make_directory(OPERATOR, sandbox, path, parents=parents, mode=0o755)
        assert refused.value.code == ErrorCode.PATH_EXISTS


async def test_sandbox_is_found_before_the_first_chunk_of_an_upload_is_read(node: MemoryNode, sandbox: str) -> None:
    was_read = False

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal was_read
        was_read = True
        yield b"x"

    files = node.services.files
    for upload in (files.write(STRANGER, sandbox, "/workspace/x", chunks()), files.unpack(STRANGER, sandbox, "/workspace", chunks())):
        with pytest.raises(NotFoundError) as refused:
            await upload
        assert refused.value.code is ErrorCode.SANDBOX_NOT_FOUND
    assert not was_read


async def test_write_beyond_the_quota_for_uploads_is_refused_and_keeps_the_old_file(node: MemoryNode) -> None:
    limited = Principal(owner=OwnerId("ba9876543210"), name="limited", quota=Quota(upload_bytes=8))
    sandbox, files = (await node.sandboxes.create(limited, CreateSandboxParams())).id, node.services.files
    await files.write(limited, sandbox, "/workspace/x", pieces(b"four", b"more"))
    with pytest.raises(SandlotError) as refused:
        await files.write(limited, sandbox, "/workspace/x", pieces(b"four", b"more", b"!"))
    assert refused.value.code is ErrorCode.QUOTA_EXCEEDED
    assert (await files.stat(limited, sandbox, "/workspace/x")).size == 8


async def test_files_of_a_foreign_sandbox_are_not_found(node: MemoryNode, sandbox: str) -> None:
    files, path = node.services.files, "/workspace"
    for refused in (
        files.read(STRANGER, sandbox, path),
        files.list(STRANGER, sandbox, path),
        files.stat(STRANGER, sandbox, path),
        files.make_directory(STRANGER, sandbox, path),
        files.move(STRANGER, sandbox, path, path),
        files.delete(STRANGER, sandbox, path),
        files.pack(STRANGER, sandbox, path),
        node.services.watches.watch(STRANGER, sandbox, path),
        node.services.watches.create(STRANGER, sandbox, path),
        node.services.watches.list(STRANGER, sandbox),
        node.services.tunnels.connect(STRANGER, sandbox, 80),
        node.services.file_store.inject(STRANGER, sandbox, []),
        node.services.file_store.keep(STRANGER, sandbox, path),
    ):
        with pytest.raises(NotFoundError) as error:
            await refused
        assert error.value.code is ErrorCode.SANDBOX_NOT_FOUND


async def test_closed_download_ends_a_waiting_read_and_releases_the_sandbox(node: MemoryNode, sandbox: str) -> None:
    files, live = node.services.files, node.sandboxes.find(sandbox, OPERATOR)
    await files.write(OPERATOR, sandbox, "/workspace/file", pieces(b"content"))
    download = await files.read(OPERATOR, sandbox, "/workspace/file")
    assert (download.entry.size, live.activity.held) == (7, 1)
    assert await anext(download) == b"content"
    with pytest.raises(StopAsyncIteration):
        await anext(download)
    await download.aclose()
    await download.aclose()
    assert live.activity.held == 0
    second = await files.read(OPERATOR, sandbox, "/workspace/file")
    reading = asyncio.ensure_future(anext(second, None))
    await asyncio.gather(second.aclose(), run_pending())
    assert await reading in {None, b"content"}
