"""Which files a run made, which of them are kept, and what is said of the others."""

from __future__ import annotations

import asyncio

import pytest

from sandlot.core.execution import changes
from sandlot.core.execution.changes import ChangeTracker
from sandlot.core.files import files
from sandlot.core.node import Node
from sandlot.core.sandbox import Sandbox
from sandlot.doors.agentsandbox import outputs
from sandlot.doors.agentsandbox.outputs import Before, Found
from sandlot.model.access import Quota
from sandlot.model.errors import ErrorCode, error_class
from sandlot.model.files import ChangedFile
from sandlot.model.specs import ProcessSpec, User
from tests.support.cases import cases
from tests.unit.doors.shared import SharedBench


@pytest.fixture
async def sandbox(at: SharedBench) -> Sandbox:
    made = await at.sandbox()
    await files.make_directory(made, outputs.OUTPUT, user=User.ROOT, mode=0o1777)
    return made


async def sh(node: Node, sandbox: Sandbox, command: str) -> None:
    done = await node.processes.run_in(sandbox, ProcessSpec(("sh", "-c", command)))
    assert done.outcome.exit_code == 0, done.stderr.text()


def test_output_files_come_first_then_top_level_files() -> None:
    paths = ["/workspace/d/a", "/workspace/z", "/output/z", "/workspace/a", "/output/d/a"]
    found = outputs.ordered(Found(path, 1) for path in paths)
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
    assert outputs.is_hidden(path) is hidden


async def test_outputs_are_kept_up_to_the_size_limit(at: SharedBench, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    before = await Before.look(sandbox)
    await sh(at.node, sandbox, "cd /output; printf 12345 > a; printf 12345678 > b; printf 123 > c; printf 1 > d; chmod 0 d")
    monkeypatch.setattr(outputs, "KEPT_BYTES", 10)
    kept = await outputs.collect(at.node.file_store, sandbox, before)
    assert [(record.filename, record.size_bytes) for record in kept.records] == [("a", 5), ("c", 3)]
    assert (kept.left, kept.more) == (2, False)


async def test_size_limit_holds_if_the_guest_reports_wrong_sizes(at: SharedBench, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    guest = at.driver.guest(sandbox.ref)
    for number in range(1, 7):
        guest.files.write(f"/output/{number}", bytes(100), 1000)

    class Liar(Before):
        async def made(self) -> tuple[list[Found], bool]:
            return [Found(f"/output/{i}", 1) for i in range(1, 7)], False

    monkeypatch.setattr(outputs, "KEPT_BYTES", 250)
    kept = await outputs.collect(at.node.file_store, sandbox, Liar(sandbox, {}))
    assert sum(record.size_bytes for record in kept.records) <= 250
    assert kept.left >= 4


async def test_outputs_count_against_the_upload_quota(at: SharedBench, sandbox: Sandbox) -> None:
    before = await Before.look(sandbox)
    await sh(at.node, sandbox, "cd /output; printf 12345 > a; printf 123456 > b")
    kept = await outputs.collect(at.node.file_store, sandbox, before, Quota(upload_bytes=5))
    assert ([record.filename for record in kept.records], kept.left) == (["a"], 1)


async def test_files_in_subfolders_are_outputs_and_links_are_not(at: SharedBench, sandbox: Sandbox) -> None:
    before = await Before.look(sandbox)
    guest = at.driver.guest(sandbox.ref)
    for path in ("/output/d/a", "/output/.hidden/b", "/output/__pycache__/c.pyc"):
        guest.files.write(path, b"1", 1000)
    guest.files.symlink("/output/link", "/output/d/a", 1000)

    kept = await outputs.collect(at.node.file_store, sandbox, before)

    assert ([record.filename for record in kept.records], kept.left, kept.more) == (["a"], 0, False)


async def test_large_tree_is_compared_by_a_program_inside(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []

    class Tracker(ChangeTracker):
        def __init__(self) -> None:
            pass

        async def changed(self) -> tuple[list[ChangedFile], bool]:
            return [ChangedFile(path, created=True, size_bytes=1, modified_ns=0) for path in ("/output/a", "/output/.b")], True

        def close(self) -> None:
            closed.append(True)

    async def track(*_: object) -> Tracker:
        return Tracker()

    monkeypatch.setattr(outputs, "FEW_FOLDERS", 1)
    monkeypatch.setattr(changes, "track", track)
    before = await Before.look(sandbox)

    assert await before.made() == ([Found("/output/a", 1)], True)
    before.close()
    assert closed


async def test_collecting_outputs_has_a_time_limit(at: SharedBench, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    async def forever(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    class FoundAtOnce(Before):
        async def made(self) -> tuple[list[Found], bool]:
            return [Found("/output/a", 1)], False

    monkeypatch.setattr(outputs, "COLLECT_S", 0.1)
    monkeypatch.setattr(type(at.node.file_store), "keep_in", forever)
    kept = await outputs.collect(at.node.file_store, sandbox, FoundAtOnce(sandbox, {}))
    assert (list(kept.records), kept.left, kept.more) == ([], 1, False)
    monkeypatch.setattr(files, "listing", forever)
    assert (await outputs.collect(at.node.file_store, sandbox, Before(sandbox, {}))).more


@cases("code", [ErrorCode.TOO_LARGE, ErrorCode.DISK_FULL, ErrorCode.SERVICE_UNAVAILABLE, ErrorCode.SANDBOX_ENDED])
async def test_run_keeps_its_result_if_its_outputs_cannot_be_kept(
    at: SharedBench, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, code: ErrorCode
) -> None:
    async def refuses(*_: object, **__: object) -> None:
        raise error_class(code)("no", code=code)

    before = await Before.look(sandbox)
    await sh(at.node, sandbox, "echo 1 > a")
    monkeypatch.setattr(type(at.node.file_store), "keep_in", refuses)
    assert (await outputs.collect(at.node.file_store, sandbox, before)).left == 1
