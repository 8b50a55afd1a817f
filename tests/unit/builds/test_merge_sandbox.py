"""The host's side of the sandbox that makes root images: the program that is sent, what is read from it, and its errors."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandlot.builds import merge_sandbox
from sandlot.images.progress import discard_progress
from sandlot.model.access import INTERNAL, Principal
from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError, LimitError, SandboxEndedError
from sandlot.model.executions import Channel, Output
from sandlot.model.images import Layer
from sandlot.model.sandboxes import CreateSandboxParams, SandboxInfo
from sandlot.model.specs import MIB
from tests.support.image_layers import entry, job_of, layer_of
from tests.support.scripted_node import ScriptedNode, sandbox_info

LAYER = Layer("sha256:" + "a" * 64, 10, "tar", "sha256:" + "b" * 64)


def test_program_runs_without_the_rest_of_sandlot(tmp_path: Path) -> None:
    program, job = tmp_path / "merge.zip", tmp_path / "job.json"
    program.write_bytes(merge_sandbox._program())  # noqa: SLF001 - what is sent
    job.write_text(json.dumps(job_of(tmp_path, layer_of(entry("../x")))))
    start = f"import sys; sys.path.insert(0, {str(program)!r}); from sandlot.builds.merge_program.main import main; main({str(job)!r})"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", start], check=False, capture_output=True, text=True, cwd="/")
    assert (done.returncode, done.stderr) == (1, "")
    assert json.loads(done.stdout.splitlines()[-1])["entry"] == "../x"
    with zipfile.ZipFile(program) as archive:
        assert not [name for name in archive.namelist() if name.startswith(("sandlot/core", "sandlot/model"))]


def read(*pieces: bytes) -> tuple[merge_sandbox._Lines, list[str]]:
    reported: list[str] = []
    lines = merge_sandbox._Lines(reported.append)  # noqa: SLF001 - the reader
    for piece in pieces:
        lines.feed(Output(Channel.STDOUT, 0, piece))
    return lines, reported


def test_lines_of_the_program_are_read_in_any_pieces() -> None:
    lines, reported = read(b'{"step": "o', b'ne"}\n{"step": "two"}\n{"size_', b'bytes": 5}\n')
    assert (reported, lines.size_bytes, lines.refused) == (["one", "two"], 5, None)


def test_invalid_and_endless_lines_are_ignored() -> None:
    lines, reported = read(b'x\n[]\n1\n{"step": 5}\n{"size_bytes": "5"}\n\xff\n', b"y" * 100_000, b'z\n{"step": "last"}\n')
    assert (reported, lines.size_bytes) == (["last"], None)
    lines.feed(Output(Channel.STDERR, 0, b'{"step": "not this"}\n'))
    assert reported == ["last"]
    _, many = read(b'{"step": "x"}\n' * 20_000)
    assert len(many) == 10_000


def test_refusal_names_layer_and_entry() -> None:
    error = merge_sandbox._refusal({"refused": "its entry 'x' is bad", "layer": "sha256:1", "entry": "x", "is_limit": False})  # noqa: SLF001
    assert isinstance(error, InvalidRequestError)
    assert error.message == "The layer sha256:1 of the image is refused: its entry 'x' is bad."
    assert error.fields == {"layer": "sha256:1", "entry": "x"}
    limit = merge_sandbox._refusal({"refused": "too much", "is_limit": True})  # noqa: SLF001
    assert isinstance(limit, LimitError)
    assert (limit.message, limit.code) == ("The image is refused: too much.", ErrorCode.TOO_LARGE)


def test_sandbox_without_memory_is_a_limit() -> None:
    assert isinstance(merge_sandbox._ended(SandboxEndedError("x", fields={"reason": "oom"})), LimitError)  # noqa: SLF001
    other = SandboxEndedError("x", fields={"reason": "killed"})
    assert merge_sandbox._ended(other) is other  # noqa: SLF001


async def test_layer_is_sent_up_to_one_byte_above_its_size() -> None:
    closed = []

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"1234"
        finally:
            closed.append(True)

    assert b"".join([chunk async for chunk in merge_sandbox._bounded(LAYER, endless())]) == b"12341234123"  # noqa: SLF001
    assert closed == [True]


@pytest.mark.parametrize("has_space", [True, False])
async def test_base_is_sent_only_if_no_root_file_system_has_it(tmp_path: Path, *, has_space: bool) -> None:
    image = tmp_path / "root.erofs"
    image.write_bytes(b"x" * 3 * MIB)
    base = merge_sandbox.BaseImage("d" * 64, image, uuid.uuid4())
    scripted = ScriptedNode()

    def create(principal: Principal, params: CreateSandboxParams, **_: object) -> SandboxInfo:
        disks.append(params.limits.disk_bytes or 0)
        if params.template == "builder":
            return sandbox_info()
        assert (principal, params.template) == (INTERNAL, f"builder+{'d' * 64}")
        if not has_space:
            raise LimitError("The disk is full.", code=ErrorCode.NODE_DISK_FULL)
        return sandbox_info()

    written: list[str] = []
    disks: list[int] = []

    async def write(path: str, chunks: AsyncIterator[bytes], **_: object) -> None:
        written.append(path)
        content = b"".join([chunk async for chunk in chunks])
        assert (content == image.read_bytes()) if path == "/build/base" else content

    scripted.script("sandboxes.create", *([create] * (1 if has_space else 2)))
    scripted.script("files.write", *([write] * (2 if has_space else 3)))
    job = merge_sandbox.MergeJob("e" * 64, uuid.uuid4(), (), base, merge_sandbox.MergeLimits(), lambda: None)
    run = merge_sandbox._Merge(scripted.services, job, discard_progress)  # noqa: SLF001 - the sandbox
    await run.open()
    await run.send(no_layer)
    scripted.check()
    assert has_space or disks[1] - disks[0] == image.stat().st_size
    path = "/base.erofs" if has_space else "/build/base"
    assert [each for each in written if "base" in each] == ([] if has_space else [path])
    described = run._description()  # noqa: SLF001 - the job
    assert (described["base"], described["base_uuid"], described["layers"]) == (path, str(base.uuid), [])


def no_layer(_layer: Layer) -> AsyncIterator[bytes]:
    raise AssertionError


@pytest.mark.parametrize("is_there", [True, False])
def test_base_that_was_made_again_or_removed_during_the_build_is_refused(tmp_path: Path, *, is_there: bool) -> None:
    path = tmp_path / "base.erofs"
    if is_there:
        path.write_bytes(bytes(8192))
    base = merge_sandbox.BaseImage("d" * 64, path, uuid.uuid4())
    with pytest.raises(ConflictError) as refused:
        merge_sandbox._copy_base(base, tmp_path / "root.erofs", lambda: None)  # noqa: SLF001 - what the host does
    assert refused.value.hint
