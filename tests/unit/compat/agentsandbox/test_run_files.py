"""Files of a run: found, kept, counted."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sandlot.compat.agentsandbox import run_files
from sandlot.compat.agentsandbox.run_files import FileBaseline, FoundFile
from sandlot.core.files import files
from sandlot.core.node import Node
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR, Quota
from sandlot.model.errors import ErrorCode, error_class
from sandlot.model.files import ChangedFile
from sandlot.model.specs import ProcessSpec, User
from tests.support.cases import cases
from tests.unit.compat.shared import SharedBench


@pytest.fixture
async def sandbox(at: SharedBench) -> Sandbox:
    made = await at.sandbox()
    await files.make_directory(made, run_files.OUTPUT, user=User.ROOT, mode=0o1777)
    return made


async def sh(node: Node, sandbox: Sandbox, command: str) -> None:
    done = await node.processes.run(OPERATOR, sandbox.id, ProcessSpec(("sh", "-c", command)))
    assert done.outcome.exit_code == 0, done.stderr.text()


def test_output_files_come_first_then_top_level_files() -> None:
    paths = ["/workspace/d/a", "/workspace/z", "/output/z", "/workspace/a", "/output/d/a"]
    found = run_files.ranked(FoundFile(path, 1) for path in paths)
    assert [file.path for file in found] == ["/output/z", "/output/d/a", "/workspace/a", "/workspace/z", "/workspace/d/a"]


@cases(
    "path, hidden",
    [
        ("/workspace/a", False),
        ("/workspace/.a", True),
        ("/workspace/.git/a", True),
        ("/workspace/d/__pycache__/a.pyc", True),
        ("/workspace/a.b", False),
    ],
)
def test_hidden_and_compiled_files_are_no_outputs(path: str, *, hidden: bool) -> None:
    assert run_files.is_hidden(path) is hidden


async def test_outputs_are_kept_up_to_the_size_limit(at: SharedBench, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    before = await FileBaseline.scan(at.node, OPERATOR, sandbox.id)
    await sh(at.node, sandbox, "cd /output; printf 12345 > a; printf 12345678 > b; printf 123 > c; printf 1 > d; chmod 0 d")
    monkeypatch.setattr(run_files, "KEPT_BYTES", 10)
    kept = await run_files.collect(before)
    assert [(record.filename, record.size_bytes) for record in kept.records] == [("a", 5), ("c", 3)]
    assert (kept.omitted, kept.incomplete) == (2, False)


async def test_size_limit_holds_if_the_guest_reports_wrong_sizes(at: SharedBench, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    guest = at.driver.guest(sandbox.ref)
    for number in range(1, 7):
        guest.files.write(f"/output/{number}", bytes(100), 1000)

    class WrongSizes(FileBaseline):
        async def find_changed(self, _: object) -> tuple[list[FoundFile], bool]:
            return [FoundFile(f"/output/{i}", 1) for i in range(1, 7)], False

    monkeypatch.setattr(run_files, "KEPT_BYTES", 250)
    kept = await run_files.collect(WrongSizes(at.node, OPERATOR, sandbox.id, {}))
    assert sum(record.size_bytes for record in kept.records) <= 250
    assert kept.omitted >= 4


async def test_outputs_count_against_the_upload_quota(at: SharedBench, sandbox: Sandbox) -> None:
    before = await FileBaseline.scan(at.node, replace(OPERATOR, quota=Quota(upload_bytes=5)), sandbox.id)
    await sh(at.node, sandbox, "cd /output; printf 12345 > a; printf 123456 > b")
    kept = await run_files.collect(before)
    assert ([record.filename for record in kept.records], kept.omitted) == (["a"], 1)


async def test_files_in_subfolders_are_outputs_and_links_are_not(at: SharedBench, sandbox: Sandbox) -> None:
    before = await FileBaseline.scan(at.node, OPERATOR, sandbox.id)
    guest = at.driver.guest(sandbox.ref)
    for path in ("/output/d/a", "/output/.hidden/b", "/output/__pycache__/c.pyc"):
        guest.files.write(path, b"1", 1000)
    guest.files.symlink("/output/link", "/output/d/a", 1000)

    kept = await run_files.collect(before)

    assert ([record.filename for record in kept.records], kept.omitted, kept.incomplete) == (["a"], 0, False)


async def test_large_tree_is_compared_by_a_program_inside(at: SharedBench, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await FileBaseline.scan(at.node, OPERATOR, sandbox.id)).tracked == ()
    monkeypatch.setattr(run_files, "FEW_DIRECTORIES", 1)
    before = await FileBaseline.scan(at.node, OPERATOR, sandbox.id)

    assert before.tracked == run_files.DIRECTORIES
    changed = [ChangedFile(path, created=True, size_bytes=1, modified_ns=0) for path in ("/output/a", "/output/.b")]
    assert await before.find_changed((changed, True)) == ([FoundFile("/output/a", 1)], True)


async def test_collecting_outputs_has_a_time_limit(at: SharedBench, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    async def forever(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    class FoundAtOnce(FileBaseline):
        async def find_changed(self, _: object) -> tuple[list[FoundFile], bool]:
            return [FoundFile("/output/a", 1)], False

    monkeypatch.setattr(run_files, "COLLECT_S", 0.1)
    monkeypatch.setattr(type(at.node.file_store), "keep", forever)
    kept = await run_files.collect(FoundAtOnce(at.node, OPERATOR, sandbox.id, {}))
    assert (list(kept.records), kept.omitted, kept.incomplete) == ([], 1, False)
    kept = await run_files.collect(FoundAtOnce(at.node, OPERATOR, sandbox.id, {}), time_s=-1)
    assert (list(kept.records), kept.omitted, kept.incomplete) == ([], 1, False)
    monkeypatch.setattr(files, "listing", forever)
    assert (await run_files.collect(FileBaseline(at.node, OPERATOR, sandbox.id, {}))).incomplete


@cases("code", [ErrorCode.TOO_LARGE, ErrorCode.DISK_FULL, ErrorCode.SERVICE_UNAVAILABLE, ErrorCode.SANDBOX_ENDED])
async def test_run_keeps_its_result_if_its_outputs_cannot_be_kept(
    at: SharedBench, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, code: ErrorCode
) -> None:
    async def refuses(*_: object, **__: object) -> None:
        raise error_class(code)("no", code=code)

    before = await FileBaseline.scan(at.node, OPERATOR, sandbox.id)
    await sh(at.node, sandbox, "echo 1 > a")
    monkeypatch.setattr(type(at.node.file_store), "keep", refuses)
    assert (await run_files.collect(before)).omitted == 1
