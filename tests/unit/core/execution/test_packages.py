"""Installs whose clients leave: ended with time to clean up, or continued for clients that come back."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sandlot.core.execution import execution
from sandlot.core.execution.packages import install_spec, start_install
from sandlot.core.execution.processes import ProcessExecution
from sandlot.core.node import Node
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR, Quota
from sandlot.model.executions import ExecutionOptions
from sandlot.model.ids import new_process_id
from sandlot.model.network import NetworkMode, NetworkPolicy
from sandlot.model.packages import InstallParams, Manager
from sandlot.model.sandboxes import CreateSandboxParams
from sandlot.model.specs import ProcessSpec, User, shell_argv
from sandlot.testing.memory.guest import MemoryGuest
from sandlot.testing.memory.process import ProgramContext
from tests.support.node import MemoryNode, NodeState, open_node, run_pending, settled
from tests.support.service import Bench
from tests.support.until import until

WHAT = InstallParams(Manager.PIP, ("a",))
IGNORES = "#!/bin/sh\ntrap '' TERM\necho begun\nwhile :; do sleep 0.05; done\n"


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "AWAY_S", 0.5)


async def put(node: Node, sandbox: Sandbox, manager: str) -> None:
    """A program in the package manager's place."""
    spec = ProcessSpec(argv=shell_argv("cat > /usr/local/bin/uv; chmod 755 /usr/local/bin/uv"), user=User.ROOT, stdin=True)
    assert (await node.processes.run(OPERATOR, sandbox.id, spec, stdin=manager.encode())).outcome.exit_code == 0


async def running(node: Node, sandbox: Sandbox, id_: str) -> bool:
    return (await node.processes.get(OPERATOR, sandbox.id, id_)).running


async def begun(node: Node, sandbox: Sandbox) -> ProcessExecution:
    made = await start_install(node.processes, sandbox, WHAT, Quota())
    await anext(aiter(made))
    return made


@pytest.mark.real_guest
async def test_package_manager_that_ignores_sigterm_is_killed(at: Bench, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "INSTALL_GRACE_S", 0.3)
    await put(at.node, sandbox, IGNORES)
    made = await begun(at.node, sandbox)
    await made.close()
    await until(lambda: ended(at.node, sandbox, made.id))


async def ended(node: Node, sandbox: Sandbox, id_: str) -> bool:
    return not await running(node, sandbox, id_)


@asynccontextmanager
async def gated(folder: Path) -> AsyncIterator[tuple[MemoryNode, Sandbox, MemoryGuest, asyncio.Event]]:
    """A node, and a sandbox on it without a network, whose package manager ends when the event is set."""
    state, gate = NodeState(folder), asyncio.Event()

    async def manager(_: ProgramContext) -> None:
        await gate.wait()

    state.driver.scripts.programs["/bin/sh"] = manager
    async with open_node(state) as node:
        sandbox = await node.sandboxes.create(OPERATOR, CreateSandboxParams(template="base", network=NetworkPolicy(NetworkMode.NONE)))
        yield node, sandbox, node.guest(sandbox), gate


async def test_install_goes_on_starting_without_its_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "AWAY_S", 3600.0)
    id_ = new_process_id()
    async with gated(tmp_path) as (node, sandbox, guest, gate):
        start = guest.hold("process.start")
        leaving = asyncio.create_task(node.services.packages.install(OPERATOR, sandbox.id, WHAT, ExecutionOptions(id=id_)))
        await start.reached.wait()
        leaving.cancel()
        await asyncio.wait({leaving})
        assert node.services.processes.executions.access.is_open(sandbox)
        start.release()

        following = asyncio.create_task(node.services.packages.install(OPERATOR, sandbox.id, WHAT, ExecutionOptions(id=id_)))
        await settled(lambda: bool(guest.requests("process.attach")))
        gate.set()

        assert (await following).outcome.exit_code == 0
        assert len(guest.requests("process.start")) == 1


async def test_second_client_joins_an_install_whose_first_client_left_during_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "AWAY_S", 0.0)
    id_ = new_process_id()
    async with gated(tmp_path) as (node, sandbox, guest, gate):
        start = guest.hold("process.start")
        leaving = asyncio.create_task(node.services.packages.install(OPERATOR, sandbox.id, WHAT, ExecutionOptions(id=id_)))
        await start.reached.wait()
        leaving.cancel()
        await asyncio.wait({leaving})
        following = asyncio.create_task(node.services.packages.install(OPERATOR, sandbox.id, WHAT, ExecutionOptions(id=id_)))
        await run_pending()
        start.release()
        await settled(lambda: bool(guest.processes.running))
        await run_pending()
        assert node.services.processes.executions.access.is_open(sandbox)
        gate.set()

        assert (await following).outcome.exit_code == 0
        assert guest.requests("process.signal") == []
        assert len(guest.requests("process.start")) == 1
        assert node.internals.execution_counter is not None
        assert node.internals.execution_counter.used(sandbox.owner) == 1
        record = await node.services.history.execution(OPERATOR, id_)
        assert (record.status, record.exit_code) == ("exited", 0)
        await settled(
            lambda: not node.services.processes.executions.access.is_open(sandbox) and not node.services.processes.executions.table.of(sandbox).live
        )


async def test_install_goes_on_while_a_second_client_follows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "AWAY_S", 0.0)
    id_ = new_process_id()
    async with gated(tmp_path) as (node, sandbox, guest, gate):
        leaving = await start_install(node.services.processes, sandbox, WHAT, Quota(), ExecutionOptions(id=id_))
        following = await start_install(node.services.processes, sandbox, WHAT, Quota(), ExecutionOptions(id=id_))
        await leaving.close()
        await run_pending()
        gate.set()

        assert (await following.collect(None)).outcome.exit_code == 0
        assert guest.requests("process.signal") == []
        await following.close()
        await settled(
            lambda: not node.services.processes.executions.access.is_open(sandbox) and not node.services.processes.executions.table.of(sandbox).live
        )


async def test_install_whose_client_does_not_come_back_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "AWAY_S", 0.0)
    async with gated(tmp_path) as (node, sandbox, guest, _):
        start = guest.hold("process.start")
        leaving = asyncio.create_task(node.services.packages.install(OPERATOR, sandbox.id, WHAT, ExecutionOptions(id=new_process_id())))
        await start.reached.wait()
        leaving.cancel()
        await asyncio.wait({leaving})
        start.release()

        await settled(lambda: [call["signal"] for call in guest.requests("process.signal")][:1] == [signal.SIGTERM])
        await settled(
            lambda: not node.services.processes.executions.access.is_open(sandbox) and not node.services.processes.executions.table.of(sandbox).live
        )


async def test_package_manager_without_a_client_cleans_up(tmp_path: Path) -> None:
    state, cleaned = NodeState(tmp_path), asyncio.Event()

    async def manager(program: ProgramContext) -> int:
        asked = asyncio.Event()
        program.traps[signal.SIGTERM] = asked.set
        await program.write("begun\n")
        await asked.wait()
        cleaned.set()
        return 1

    state.driver.scripts.programs["/bin/sh"] = manager
    async with open_node(state) as node:
        sandbox = await node.sandboxes.create(OPERATOR, CreateSandboxParams(template="base", network=NetworkPolicy(NetworkMode.NONE)))

        made = await begun(node.services, sandbox)
        await made.close()

        await settled(lambda: not node.guest(sandbox).processes.running and not node.services.processes.executions.access.is_open(sandbox))
        assert cleaned.is_set()
        assert not node.services.processes.executions.table.of(sandbox).live
        assert (await node.services.history.execution(OPERATOR, made.id)).status == "killed"


@pytest.mark.parametrize("manager", Manager)
def test_requirements_reach_the_package_manager_as_separate_arguments(manager: Manager) -> None:
    argv = install_spec(InstallParams(manager, ("ab", "cd"))).argv
    assert argv[:2] == ("/bin/sh", "-c")
    assert argv[3:] == (f"install-{manager}", "--", "ab", "cd")
    assert argv[2].count('"$@"') == argv[2].count("$@") > 0


def test_requirements_files_are_options_and_are_read_in_the_working_directory() -> None:
    spec = install_spec(InstallParams(Manager.PIP, ("ab", "-r a b.txt", "--requirement=/c")))
    assert spec.argv[3:] == ("install-pip", "--requirement=a b.txt", "--requirement=/c", "--", "ab")
    assert (spec.cwd, install_spec(WHAT).cwd) == (None, "/")


def test_only_apt_runs_as_root_and_the_others_as_the_user_of_the_sandbox() -> None:
    assert [install_spec(InstallParams(manager, ("ab",))).user for manager in Manager] == [None, None, User.ROOT]
    assert install_spec(InstallParams(Manager.PIP, ("ab",), user=User.ROOT)).user == User.ROOT
