"""The host's side of the sandbox that makes root images: the program that is sent, what is read from it, and its errors."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

from sandlot.builds import merge_sandbox
from sandlot.model.errors import ErrorCode, InvalidRequestError, LimitError, SandboxEndedError
from sandlot.model.executions import Channel, Output
from sandlot.model.images import Layer
from tests.support.image_layers import entry, job_of, layer_of

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


async def test_tree_is_packed_with_numeric_owners(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    data = b"".join([chunk async for chunk in merge_sandbox._pack(tmp_path)])  # noqa: SLF001
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert {member.name: (member.uid, member.uname) for member in archive} == {".": (os.getuid(), ""), "./a": (os.getuid(), "")}
