"""Executions: their clients, log entries, activity and package access, from the start to the end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sandlot.core.execution import execution
from sandlot.core.execution.execution import Execution
from sandlot.core.execution.packages import start_install
from sandlot.core.execution.state import Event, Kind, State
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import LOCAL, OPERATOR, Quota
from sandlot.model.buffer_budget import BufferBudget
from sandlot.model.errors import NotFoundError
from sandlot.model.executions import NATIVE, ExecutionOptions
from sandlot.model.ids import NodeId, ProcessId, new_process_id, new_sandbox_id
from sandlot.model.network import NetworkMode, NetworkPolicy
from sandlot.model.packages import InstallParams, Manager
from sandlot.model.ports import Exit, ExitReason
from sandlot.model.records import FOREGROUND
from sandlot.model.sandboxes import CreateSandboxParams
from sandlot.model.specs import MIB, CellSpec, ProcessSpec, SandboxSpec, TemplateRef
from sandlot.model.states import State as SandboxState
from sandlot.testing.memory.guest import MemoryGuest
from sandlot.testing.memory.process import ProgramContext
from tests.support.clock import ManualClock
from tests.support.node import MemoryNode, NodeState, open_node, run_pending, settled

WAIT = CellSpec("wait", timeout_s=None)
PROGRAM = ProcessSpec(("program",), timeout_s=None)
INSTALL = InstallParams(Manager.PIP, ("a",))
NEVER_S = 3600.0


@dataclass
class Place:
    """A node with one sandbox, whose cells ``wait``, programs ``program`` and package managers end when the gate is opened.

    Attributes:
        node: The node.
        sandbox: The sandbox.
        gate: Event that ends everything that runs.
    """

    node: MemoryNode
    sandbox: Sandbox
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def guest(self) -> MemoryGuest:
        """The guest of the sandbox."""
        return self.node.guest(self.sandbox)

    def found(self, id_: ProcessId) -> Execution:
        """Return an execution that has not ended."""
        found = self.node.services.code.executions.get(self.sandbox, id_)
        assert found is not None
        return found

    def is_live(self, id_: ProcessId) -> bool:
        """Return True if an execution has not ended."""
        return self.node.services.code.executions.get(self.sandbox, id_) is not None

    @property
    def has_access(self) -> bool:
        """True if the sandbox may read the package indexes."""
        return self.node.services.code.executions.access.is_open(self.sandbox)

    async def status(self, id_: ProcessId) -> str:
        """Return the status of an execution in the log."""
        return (await self.node.services.history.execution(OPERATOR, id_)).status

    def interrupts(self) -> int:
        """Return the number of interrupts that the guest got."""
        return len(self.guest.requests("kernel.interrupt"))

    def signals(self) -> list[int]:
        """Return the signals that the guest got."""
        return [call["signal"] for call in self.guest.requests("process.signal")]


@asynccontextmanager
async def opened(state: NodeState) -> AsyncIterator[Place]:
    gate = asyncio.Event()

    async def cell(_: object) -> None:
        await gate.wait()

    async def program(context: ProgramContext) -> None:
        await context.write("begun\n")
        await gate.wait()

    state.driver.scripts.cells["wait"] = cell
    state.driver.scripts.programs |= {"program": program, "/bin/sh": program}
    async with open_node(state, keep_sandboxes=True) as node:
        live = node.sandboxes.list(OPERATOR)
        params = CreateSandboxParams(template="base", network=NetworkPolicy(NetworkMode.NONE))
        sandbox = live[0] if live else await node.sandboxes.create(OPERATOR, params)
        yield Place(node, sandbox, gate)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with opened(NodeState(tmp_path)) as place:
        yield place


# Clients -----------------------------------------------------------------------------------------------------------------


async def test_detached_process_continues_and_holds_no_activity(place: Place) -> None:
    run = await place.node.services.processes.start(place.sandbox, PROGRAM)
    assert place.sandbox.activity.held == 1

    await run.detach()
    await run.detach()
    await run_pending()

    assert (place.signals(), place.found(run.id).state, place.sandbox.activity.held) == ([], State.UNATTENDED, 0)
    place.gate.set()
    await settled(lambda: not place.is_live(run.id))
    record = await place.node.services.history.execution(OPERATOR, run.id)
    assert (record.status, record.stdout) == ("exited", "begun\n")


async def test_client_that_leaves_ends_its_process_although_others_follow_it(place: Place) -> None:
    processes = place.node.services.processes
    run = await processes.start(place.sandbox, PROGRAM)
    follower = await processes.follow_in(place.sandbox, run.id, stdout_from=0, stderr_from=0)

    await run.close()

    async for _ in follower:
        pass
    assert (await follower.outcome()).signal == signal.SIGKILL
    assert await place.status(run.id) == "killed"
    assert place.sandbox.activity.held == 1, "the follower has not left"
    await follower.close()
    assert place.sandbox.activity.held == 0


async def test_follower_that_leaves_changes_nothing(place: Place) -> None:
    processes = place.node.services.processes
    run = await processes.start(place.sandbox, PROGRAM)
    follower = await processes.follow_in(place.sandbox, run.id, stdout_from=0, stderr_from=0)

    await follower.close()
    await run_pending()

    assert (place.signals(), place.found(run.id).state) == ([], State.FOLLOWED)
    await run.close()


async def test_client_that_closes_twice_leaves_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "AWAY_S", NEVER_S)
    id_ = new_process_id()
    first, second = [await place.node.services.code.start(place.sandbox, WAIT, ExecutionOptions(id=id_)) for _ in range(2)]

    await first.close()
    await first.close()
    await run_pending()

    assert (place.found(id_).state, len(place.found(id_).clients)) == (State.FOLLOWED, 1)
    place.gate.set()
    async for _ in second:
        pass
    assert (await second.outcome()).status == "ok"
    await second.close()
    await settled(lambda: not place.is_live(id_))
    assert await place.status(id_) == "ok"


async def test_clients_of_a_start_that_fails_get_its_error(place: Place) -> None:
    place.guest.fail_next("process.start", "path_not_found")
    options = ExecutionOptions(id=new_process_id())

    both = [place.node.services.processes.run(OPERATOR, place.sandbox.id, PROGRAM, options=options) for _ in range(2)]
    errors = await asyncio.gather(*both, return_exceptions=True)

    assert [type(error) for error in errors] == [NotFoundError, NotFoundError]
    assert len(place.guest.requests("process.start")) == 1
    assert not place.node.services.code.executions.table.of(place.sandbox).live


async def test_output_is_logged_once_although_several_clients_read_it(place: Place) -> None:
    id_ = new_process_id()
    both = [
        asyncio.ensure_future(place.node.services.processes.run(OPERATOR, place.sandbox.id, PROGRAM, options=ExecutionOptions(id=id_)))
        for _ in range(2)
    ]
    await settled(lambda: place.is_live(id_) and place.found(id_).state is State.FOLLOWED)
    place.gate.set()

    assert [each.stdout.text() for each in await asyncio.gather(*both)] == ["begun\n"] * 2
    assert (await place.node.services.history.execution(OPERATOR, id_)).stdout == "begun\n"
    assert len(place.guest.requests("process.start")) == 1


# Absence -----------------------------------------------------------------------------------------------------------------


async def test_cell_lingers_for_the_short_time_after_its_clients_left(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "AWAY_S", 0.0)
    monkeypatch.setattr(execution, "BACK_S", NEVER_S)
    run = await place.node.services.code.start(place.sandbox, WAIT, ExecutionOptions(id=new_process_id()))
    await run.close()
    await settled(lambda: not place.is_live(run.id))
    assert (place.interrupts(), await place.status(run.id)) == (1, "killed")


async def test_only_the_first_absence_after_a_restart_may_last_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "AWAY_S", 0.0)
    monkeypatch.setattr(execution, "BACK_S", NEVER_S)
    state = NodeState(tmp_path)
    async with opened(state) as first:
        id_ = (await first.node.services.code.start(first.sandbox, WAIT)).id
    async with opened(state) as place:
        await settled(lambda: place.found(id_).state is State.LINGERING)
        await run_pending()
        assert place.found(id_).state is State.LINGERING

        follower = await place.node.services.code.follow(OPERATOR, place.sandbox.id, id_)
        await run_pending()
        assert place.found(id_).state is State.FOLLOWED
        await follower.aclose()

        await settled(lambda: not place.is_live(id_))
        assert (place.interrupts(), await place.status(id_)) == (1, "killed")


# Log entries and package access ------------------------------------------------------------------------------------------


def leave(sandbox: Sandbox) -> None:
    sandbox.detaching.set()


def hibernate(sandbox: Sandbox) -> None:
    sandbox.state = SandboxState.HIBERNATED


@pytest.mark.parametrize("rest", [leave, hibernate], ids=["leaving", "hibernated"])
async def test_execution_that_the_next_service_continues_has_no_end_in_the_log(
    place: Place, clock: ManualClock, rest: Callable[[Sandbox], None]
) -> None:
    spec = SandboxSpec(id=new_sandbox_id(NodeId("aaaa")), template=TemplateRef(LOCAL, "base"))
    still = Sandbox(spec, owner=LOCAL, name=None, created_at=clock.now(), buffers=BufferBudget(MIB), clock=clock)
    still.state = SandboxState.RUNNING
    made = [Execution(place.node.services.code.executions, still, Kind.PROCESS, NATIVE, FOREGROUND) for _ in range(3)]
    for each in made:
        each.enter(reads_for_log=True)
        each.handle(Event.STARTED)
    failed, continued, ended = made

    failed.fail(None)
    rest(still)
    continued.fail(None)
    still.request_end(Exit(ExitReason.KILLED))
    ended.fail(None)

    assert [await place.status(each.id) for each in made] == ["lost", "running", "killed"]
    assert [each.state for each in made] == [State.ENDED, State.LEFT, State.ENDED]
    assert not {each.id for each in made} & set(place.node.internals.execution_log.running)


async def test_hibernation_leaves_the_entry_open_and_takes_package_access_until_the_wake(place: Place) -> None:
    run = await start_install(place.node.services.processes, place.sandbox, INSTALL, Quota())
    await anext(aiter(run))
    assert place.has_access

    await place.node.sandboxes.hibernate(OPERATOR, place.sandbox.id)
    await run_pending()
    assert (await place.status(run.id), place.has_access, place.is_live(run.id)) == ("running", False, False)
    await run.close()

    await place.node.sandboxes.resume(OPERATOR, place.sandbox.id)
    await settled(lambda: place.has_access and place.found(run.id).state is State.UNATTENDED)
    place.gate.set()
    await settled(lambda: not place.is_live(run.id))
    assert (await place.status(run.id), place.has_access) == ("exited", False)


async def test_end_takes_package_access_although_a_client_stays(place: Place) -> None:
    id_ = new_process_id()
    runs = [await start_install(place.node.services.processes, place.sandbox, INSTALL, Quota(), ExecutionOptions(id=id_)) for _ in range(2)]
    place.gate.set()
    async for _ in runs[0]:
        pass
    await runs[0].outcome()
    assert (await place.status(id_), place.has_access) == ("exited", False)
    for run in runs:
        await run.close()


async def test_execution_that_the_guest_has_forgotten_is_lost(tmp_path: Path) -> None:
    state = NodeState(tmp_path)
    async with opened(state) as first:
        process = (await first.node.services.processes.launch(OPERATOR, first.sandbox.id, PROGRAM)).process
        cell = await first.node.services.code.launch(OPERATOR, first.sandbox.id, WAIT)
        guest = first.guest
        guest.processes.by_id.clear()
        guest.kernels.contexts.clear()
        guest.kernels.cells.clear()
    async with opened(state) as place:
        await settled(lambda: not place.is_live(process) and not place.is_live(cell))
        assert [await place.status(id_) for id_ in (process, cell)] == ["lost", "lost"]
        with pytest.raises(NotFoundError):
            await place.node.services.processes.get(OPERATOR, place.sandbox.id, process)
