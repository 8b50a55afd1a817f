"""What the next service makes of the runs that the one before left, by how they were begun."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.core.admission import CreateSandboxParams
from sandlot.core.execution import code, packages, processes, unattended
from sandlot.core.execution.code import CellSpec
from sandlot.core.execution.requirements import InstallParams, Manager
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR, Quota
from sandlot.model.ids import new_process_id
from sandlot.model.specs import ProcessSpec, User, shell_argv
from sandlot.server.compose import Service
from sandlot.testing.memory.driver import MemoryDriver
from tests.support.node import NodeState, open_node, settled
from tests.support.service import BASE, serving
from tests.support.until import until

ENDLESS = CellSpec("import time\nprint('begun', flush=True)\nwhile True: time.sleep(0.05)", timeout_s=None)
GATED = CellSpec("import os, time\nwhile not os.path.exists('/tmp/gate'): time.sleep(0.05)\nprint('end')", timeout_s=None)
OPEN = ProcessSpec(argv=("touch", "/tmp/gate"))


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unattended, "BACK_S", 0.5)
    monkeypatch.setattr(code, "AWAY_S", 0.3)


async def found(service: Service, sandbox: Sandbox) -> Sandbox:
    again = service.core.registry.find(sandbox.id, OPERATOR)
    await again.wait_reachable()
    return again


async def status(service: Service, id_: str) -> str:
    return (await service.core.executions.get(OPERATOR, id_)).status


async def begun(sandbox: Sandbox, cell: CellSpec, **more: object) -> code.CodeExecution:
    """A cell in the foreground whose turn has come."""
    running = await code.start(sandbox, cell, **more)  # type: ignore[arg-type]
    await anext(aiter(running))
    return running


@pytest.mark.real_guest
async def test_a_cell_in_the_foreground_that_nobody_comes_back_for_is_interrupted(tmp_path: Path, driver: MemoryDriver) -> None:
    async with serving(tmp_path, driver, keep=True) as first:
        sandbox = await first.sandboxes.create(BASE, OPERATOR)
        left = await begun(sandbox, ENDLESS)
        kept = await code.begin(sandbox, replace(GATED, context="bash", language="bash", code="until [ -e /tmp/gate ]; do sleep 0.05; done"))
    async with serving(tmp_path, driver, keep=True) as second:
        sandbox = await found(second, sandbox)
        await until(lambda: status_is(second, left.id, "killed"))
        assert (await code.collected(sandbox, left.id, wait_s=None)).outcome.status == "error"
        assert not sandbox.present
        assert (sandbox.activity.held, await status(second, kept)) == (1, "running"), (
            "the one in the background goes on, and it alone keeps the sandbox"
        )
        await processes.run(sandbox, OPEN)
        await until(lambda: status_is(second, kept, "ok"))
        await until(lambda: sandbox.activity.held == 0)


async def status_is(service: Service, id_: str, wanted: str) -> bool:
    return await status(service, id_) == wanted


@pytest.mark.real_guest
async def test_one_that_somebody_comes_back_for_goes_on_until_that_one_leaves(tmp_path: Path, driver: MemoryDriver) -> None:
    joined, followed = new_process_id(), new_process_id()
    async with serving(tmp_path, driver, keep=True) as first:
        sandbox = await first.sandboxes.create(BASE, OPERATOR)
        await begun(sandbox, GATED, id=joined)
        await code.start(sandbox, replace(ENDLESS, code=ENDLESS.code), id=followed)
    async with serving(tmp_path, driver, keep=True) as second:
        sandbox = await found(second, sandbox)
        waiting = asyncio.create_task(code.execute(sandbox, GATED, id=joined))
        follower = await code.follow(sandbox, followed)
        await asyncio.sleep(1.0)  # longer than it is waited for somebody
        assert {await status(second, id_) for id_ in (joined, followed)} == {"running"}
        await processes.run(sandbox, OPEN)
        done = await waiting
        assert (done.outcome.status, done.stdout.text()) == ("ok", "end\n")
        await follower.close()
        await until(lambda: status_is(second, followed, "killed"))
        await until(lambda: sandbox.activity.held == 0)
        assert await status(second, joined) == "ok"


@pytest.mark.real_guest
async def test_a_process_in_the_foreground_goes_on_and_holds_nothing(tmp_path: Path, driver: MemoryDriver) -> None:
    async with serving(tmp_path, driver, keep=True) as first:
        sandbox = await first.sandboxes.create(BASE, OPERATOR)
        left = await processes.start(sandbox, ProcessSpec(argv=shell_argv("until [ -e /tmp/gate ]; do sleep 0.05; done; echo end"), timeout_s=None))
    async with serving(tmp_path, driver, keep=True) as second:
        sandbox = await found(second, sandbox)
        await asyncio.sleep(1.0)
        assert (await status(second, left.id), sandbox.activity.held) == ("running", 0)
        await processes.run(sandbox, OPEN)
        await until(lambda: status_is(second, left.id, "exited"))


async def test_an_install_that_goes_on_has_the_indexes_open_until_it_is_over(tmp_path: Path, driver: MemoryDriver) -> None:
    manager = "#!/bin/sh\nuntil [ -e /tmp/gate ]; do sleep 0.05; done\n"
    async with serving(tmp_path, driver, keep=True) as first:
        sandbox = await first.sandboxes.create(replace(BASE, network="none"), OPERATOR)
        put = ProcessSpec(argv=shell_argv("cat > /usr/local/bin/uv; chmod 755 /usr/local/bin/uv"), user=User.ROOT, stdin=True)
        await processes.run(sandbox, put, stdin=manager.encode())
        await packages.start(sandbox, InstallParams(Manager.PIP, ("a",)), Quota())
        await processes.launch(sandbox, ProcessSpec(argv=shell_argv("sleep 1000"), timeout_s=None))
        assert packages.may_read(sandbox)
    async with serving(tmp_path, driver, keep=True) as second:
        sandbox = await found(second, sandbox)
        assert packages.may_read(sandbox)
        await processes.run(sandbox, OPEN)
        await until(lambda: not packages.may_read(sandbox))


async def wait_for_ever(_: object) -> None:
    """Run a cell or a program that does not end by itself."""
    await asyncio.Event().wait()


async def test_inherited_cell_counts_followers_before_its_sandbox_is_recovered(tmp_path: Path) -> None:
    state, id_ = NodeState(tmp_path), new_process_id()
    state.driver.scripts.cells["wait"] = wait_for_ever
    async with open_node(state, keep_sandboxes=True) as node:
        sandbox = await node.sandboxes.create(CreateSandboxParams(template="base"), OPERATOR)
        await code.start(sandbox, CellSpec("wait", timeout_s=None), id=id_)

    recovery = state.driver.hold("adopt")
    async with open_node(state) as node:
        again = node.sandboxes.find(sandbox.id, OPERATOR)
        assert id_ in again.present

        recovery.set()
        follower = await code.follow(again, id_)
        assert again.present[id_].people >= 1
        await follower.close()


async def test_inherited_install_has_package_access_before_its_sandbox_is_recovered(tmp_path: Path) -> None:
    state, gate = NodeState(tmp_path), asyncio.Event()

    async def manager(_: object) -> None:
        await gate.wait()

    state.driver.scripts.programs["/bin/sh"] = manager
    async with open_node(state, keep_sandboxes=True) as node:
        sandbox = await node.sandboxes.create(CreateSandboxParams(template="base", network="none"), OPERATOR)
        await packages.start(sandbox, InstallParams(Manager.PIP, ("a",)), Quota())

    recovery = state.driver.hold("adopt")
    async with open_node(state) as node:
        again = node.sandboxes.find(sandbox.id, OPERATOR)
        assert packages.may_read(again)

        recovery.set()
        gate.set()
        await settled(lambda: not packages.may_read(again))
