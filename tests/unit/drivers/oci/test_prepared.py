"""Starting a prepared sandbox: its record meanwhile, and its end if it is destroyed."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from pathlib import Path, PurePosixPath
from typing import Any, cast

import pytest

from sandlot.drivers.oci import record as records
from sandlot.drivers.oci.gvisor.runtime import Runsc
from sandlot.drivers.oci.host_resources import SandboxHostResources
from sandlot.drivers.oci.paths import SandboxFolder
from sandlot.drivers.oci.prepared import OciPreparedSandbox
from sandlot.drivers.oci.record import Record, Step
from sandlot.drivers.oci.runtime import EngineError, Program, RunningOciRuntime, Runtime
from sandlot.host.cgroup_layout import Hierarchy, Layout
from sandlot.host.cgroups import Cgroup
from sandlot.host.launcher import Started
from sandlot.host.process_identity import Identity
from sandlot.model.errors import SandboxEndedError
from sandlot.model.ids import new_node_id, new_sandbox_id
from sandlot.model.specs import MIB, Limits, RootFs, SandboxSpec, Shape

LIMITS = Limits(cpus=1.0, memory_bytes=256 * MIB, disk_bytes=64 * MIB, pids=64)
REF = "ab27-aaaaaaaaaaaaaaaa"


class Losing:
    """A runtime whose start fails because the sandbox is destroyed meanwhile, after its record could not be staged any more."""

    def __init__(self) -> None:
        self.prepared: OciPreparedSandbox | None = None

    def engine(self, _program: Program) -> Losing:
        return self

    def start(self, _live: RunningOciRuntime) -> Coroutine[Any, Any, None]:
        return self._start([task for task in asyncio.all_tasks() if task is not asyncio.current_task()])

    async def _start(self, before: list[asyncio.Task[Any]]) -> None:
        assert self.prepared is not None
        await self.prepared.destroy()
        await others(before)
        raise EngineError("the sandbox is gone")


class Noting:
    """A runtime that starts at once and notes the record of its sandbox."""

    oom_statuses: frozenset[int] = frozenset()

    def __init__(self, record: Path) -> None:
        self._record = record
        self.noted: list[tuple[str, Step | None]] = []

    def engine(self, _program: Program) -> Noting:
        return self

    def start(self, _live: RunningOciRuntime) -> Coroutine[Any, Any, None]:
        return self._start([task for task in asyncio.all_tasks() if task is not asyncio.current_task()])

    def after_start(self, _started: Started) -> None:
        self._note("runs")

    async def _start(self, before: list[asyncio.Task[Any]]) -> None:
        await others(before)
        self._note("starts")

    def _note(self, moment: str) -> None:
        record = records.read(self._record)
        self.noted.append((moment, record.step if record is not None else None))


async def others(before: list[asyncio.Task[Any]]) -> None:
    """Wait for the tasks that were started together with this one."""
    begun = [task for task in asyncio.all_tasks() if task is not asyncio.current_task() and task not in before]
    if begun:
        await asyncio.wait(begun)


@pytest.fixture
def resources(tmp_path: Path) -> SandboxHostResources:
    layout = Layout(2, (Hierarchy(tmp_path / "groups", frozenset({"memory", "cpu", "pids"})),))
    made = SandboxHostResources(SandboxFolder(tmp_path / "sandboxes" / REF), Cgroup(layout, PurePosixPath("/sandlot/ab27") / REF), Runsc())
    made.create_folder(Record(REF, Step.PREPARE, "gvisor", "/usr/bin/runsc", "0" * 64, "x", LIMITS))
    return made


def warm(resources: SandboxHostResources, runtime: object) -> OciPreparedSandbox:
    """Return a warm sandbox whose processes have ended."""
    program = Program("runsc", Path("/bin/true"), "0" * 64, "x")
    prepared = OciPreparedSandbox(
        resources, Shape(root=RootFs(digest="0", tree=Path("/nonexistent")), limits=LIMITS), cast("Runtime", runtime), program, None, has_card=True
    )
    prepared._created = Started(sandbox=Identity(1, 1), keeper=Identity(1, 1))  # noqa: SLF001 - as if it were warm
    return prepared


def spec() -> SandboxSpec:
    return SandboxSpec(id=new_sandbox_id(new_node_id()), limits=LIMITS, isolation="gvisor")


async def test_record_of_a_warm_sandbox_says_prepare_until_its_guest_runs(resources: SandboxHostResources) -> None:
    runtime = Noting(resources.folder.record)
    instance = await warm(resources, runtime).boot(spec())
    assert runtime.noted == [("starts", Step.PREPARE), ("runs", Step.PREPARE)]
    record = records.read(resources.folder.record)
    assert record is not None
    assert record.step is Step.BOOT
    await instance.destroy()


async def test_destroying_a_sandbox_that_starts_reports_its_end_and_no_lost_error(resources: SandboxHostResources) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context))
    runtime = Losing()
    runtime.prepared = warm(resources, runtime)
    with pytest.raises(SandboxEndedError) as ended:
        await runtime.prepared.boot(spec())
    assert ended.value.fields == {"ref": REF, "reason": "killed"}
    runtime.prepared = None
    del ended
    gc.collect()
    assert reported == []
