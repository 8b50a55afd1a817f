"""A prepared sandbox that is destroyed while it starts."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from pathlib import Path, PurePosixPath
from typing import Any, cast

import pytest

from sandlot.drivers.oci.blank import OciBlank
from sandlot.drivers.oci.holding import Holding
from sandlot.drivers.oci.places import Folder
from sandlot.drivers.oci.record import Record, Step
from sandlot.drivers.oci.runtime import EngineError, Live, Program, Runtime
from sandlot.host.cgroups import Cgroup
from sandlot.host.hierarchies import Hierarchy, Layout
from sandlot.host.launch import Started
from sandlot.host.processes import Identity
from sandlot.model.errors import SandboxEndedError
from sandlot.model.ids import new_node_id, new_sandbox_id
from sandlot.model.specs import MIB, Limits, RootFs, SandboxSpec, Shape

LIMITS = Limits(cpus=1.0, memory_bytes=256 * MIB, disk_bytes=64 * MIB, pids=64)
REF = "ab27-aaaaaaaaaaaaaaaa"


class Losing:
    """A runtime whose start fails because the sandbox is destroyed meanwhile, after its record could not be drafted any more."""

    def __init__(self) -> None:
        self.blank: OciBlank | None = None

    def engine(self, _program: Program) -> Losing:
        return self

    def start(self, _live: Live) -> Coroutine[Any, Any, None]:
        return self._start([task for task in asyncio.all_tasks() if task is not asyncio.current_task()])

    async def _start(self, before: list[asyncio.Task[Any]]) -> None:
        assert self.blank is not None
        await self.blank.destroy()
        drafting = [task for task in asyncio.all_tasks() if task is not asyncio.current_task() and task not in before]
        if drafting:
            await asyncio.wait(drafting)
        raise EngineError("the sandbox is gone")


async def test_destroying_a_sandbox_that_starts_reports_its_end_and_no_lost_error(tmp_path: Path) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context))
    layout = Layout(2, (Hierarchy(tmp_path / "groups", frozenset({"memory", "cpu", "pids"})),))
    holding = Holding(Folder(tmp_path / "sandboxes" / REF), Cgroup(layout, PurePosixPath("/sandlot/ab27") / REF))
    holding.make_folder(Record(REF, Step.PREPARE, "gvisor", "/usr/bin/runsc", "0" * 64, "x", LIMITS))
    runtime, program = Losing(), Program("runsc", Path("/bin/true"), "0" * 64, "x")
    shape = Shape(root=RootFs(path=tmp_path, digest="0"), limits=LIMITS)
    runtime.blank = OciBlank(holding, shape, cast("Runtime", runtime), program, None)
    runtime.blank._created = Started(sandbox=Identity(1, 1), keeper=Identity(1, 1))  # noqa: SLF001 - as if it were warm
    with pytest.raises(SandboxEndedError) as ended:
        await runtime.blank.boot(SandboxSpec(id=new_sandbox_id(new_node_id()), limits=LIMITS, isolation="gvisor"))
    assert ended.value.fields == {"ref": REF, "reason": "killed"}
    runtime.blank = None
    del ended
    gc.collect()
    assert reported == []
