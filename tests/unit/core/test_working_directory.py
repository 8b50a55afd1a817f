"""Working directories of sandboxes: creation, relative paths, and copies of a sandbox."""

from __future__ import annotations

import pytest

from sandlot.compat.common import single_chunk
from sandlot.model.access import OPERATOR
from sandlot.model.errors import ErrorCode, SandlotError
from sandlot.model.sandboxes import CreateSandboxParams, ForkParams
from sandlot.model.signed_urls import Grant
from sandlot.model.specs import ProcessSpec, User
from tests.support.node import MemoryNode

CWD = "/srv/app/data"


async def create(node: MemoryNode, cwd: str | None = CWD, **params: object) -> str:
    made = await node.sandboxes.create(OPERATOR, CreateSandboxParams(template=None if "snapshot" in params else "base", cwd=cwd, **params))  # type: ignore[arg-type]
    return str(made.id)


async def pwd(node: MemoryNode, sandbox: str, cwd: str | None = None) -> str:
    return (await node.services.processes.run(OPERATOR, sandbox, ProcessSpec(("pwd",), cwd=cwd))).stdout.text().strip()


async def test_working_directory_is_created_with_its_parents_for_the_user(node: MemoryNode) -> None:
    sandbox = await create(node)

    for path in ("/srv/app", CWD):
        entry = await node.services.files.stat(OPERATOR, sandbox, path)
        assert (entry.kind, entry.uid) == ("directory", 1000)


async def test_programs_and_contexts_start_in_the_working_directory(node: MemoryNode) -> None:
    sandbox = await create(node)
    await node.services.files.make_directory(OPERATOR, sandbox, "inner")

    assert await pwd(node, sandbox) == CWD
    assert [await pwd(node, sandbox, cwd) for cwd in (".", "inner", "./inner", "/tmp")] == [CWD, f"{CWD}/inner", f"{CWD}/inner", "/tmp"]
    assert (await node.services.contexts.create(OPERATOR, sandbox, "python")).cwd == CWD
    assert (await node.services.contexts.create(OPERATOR, sandbox, "python", cwd="inner")).cwd == f"{CWD}/inner"


async def test_relative_paths_of_files_begin_in_the_working_directory(node: MemoryNode) -> None:
    sandbox, files = await create(node), node.services.files

    written = await files.write(OPERATOR, sandbox, "a/file", single_chunk(b"1"))
    moved = await files.move(OPERATOR, sandbox, "a/file", "./b")
    listed = await files.list(OPERATOR, sandbox, ".")
    signed = node.services.tokens.sign_url(OPERATOR, Grant("GET", sandbox, "b", User.USER, 60))

    assert (written.path, moved.path) == (f"{CWD}/a/file", f"{CWD}/b")
    assert [entry.path for entry in listed.entries] == [f"{CWD}/a", f"{CWD}/b"]
    assert "path=%2Fsrv%2Fapp%2Fdata%2Fb&" in signed.query
    assert await files.delete(OPERATOR, sandbox, "b") == 1


async def test_default_working_directory_is_workspace(node: MemoryNode) -> None:
    sandbox = await create(node, None)

    assert await pwd(node, sandbox) == "/workspace"
    assert (await node.services.files.write(OPERATOR, sandbox, "file", single_chunk(b""))).path == "/workspace/file"


async def test_existing_directory_is_left_as_it_is(node: MemoryNode) -> None:
    sandbox = await create(node, "/opt")

    assert (await node.services.files.stat(OPERATOR, sandbox, "/opt")).uid == 0
    assert await pwd(node, sandbox) == "/opt"


@pytest.mark.parametrize("cwd, code", [("/bin/bash", ErrorCode.PATH_NOT_DIRECTORY), ("/bin/bash/x", ErrorCode.PATH_NOT_DIRECTORY)])
async def test_file_in_place_of_the_working_directory_fails_the_create(node: MemoryNode, cwd: str, code: ErrorCode) -> None:
    with pytest.raises(SandlotError, match="/bin/bash") as refused:
        await create(node, cwd)

    assert refused.value.code is code
    assert node.sandboxes.list(OPERATOR) == []


@pytest.mark.parametrize("cwd", ["", "app", "~", "/a\0b", "/" + "a" * 5000, "/\ud800"])
def test_invalid_working_directory_is_refused(cwd: str) -> None:
    with pytest.raises(SandlotError) as refused:
        CreateSandboxParams(cwd=cwd)
    assert refused.value.code is ErrorCode.PATH_INVALID


async def test_copies_have_the_working_directory_of_their_source(node: MemoryNode) -> None:
    sandbox = await create(node)
    snapshot = await node.services.snapshots.create(OPERATOR, sandbox)

    (fork,) = await node.services.sandboxes.fork(OPERATOR, sandbox, ForkParams(count=1))
    restored = await create(node, None, snapshot=snapshot.id)
    other = await create(node, "/srv/other", snapshot=snapshot.id)

    assert [await pwd(node, each) for each in (fork.id, restored, other)] == [CWD, CWD, "/srv/other"]
