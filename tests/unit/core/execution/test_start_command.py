"""Sandboxes of a template get its limits, user and working directory, and run its start command."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandlot.model.access import OPERATOR
from sandlot.model.errors import ErrorCode, NotFoundError
from sandlot.model.sandboxes import CreateSandboxParams, LimitsChange
from sandlot.model.specs import GIB, Limits, ProcessSpec, User
from sandlot.model.templates import TemplateDefaults
from sandlot.testing.memory import files
from sandlot.testing.memory.process import ProgramContext
from tests.support.node import MemoryNode

READY = TemplateDefaults(limits=Limits(memory_bytes=2 * GIB), cwd="/home/user", user=User.ROOT, start_command="sleep 1000")
BASE = CreateSandboxParams(template="base")


@pytest.fixture(autouse=True)
def ready(node: MemoryNode) -> None:
    node.state.templates.defaults_of["base"] = READY


async def test_sandbox_has_the_defaults_of_its_template(node: MemoryNode) -> None:
    sandbox = await node.sandboxes.create(OPERATOR, BASE)
    assert (sandbox.spec.limits, sandbox.spec.cwd, sandbox.spec.user) == (READY.limits, "/home/user", User.ROOT)
    result = await node.services.processes.run(OPERATOR, sandbox.id, ProcessSpec(("whoami",)))
    assert result.stdout.text() == "root\n"
    named = await node.services.processes.run(OPERATOR, sandbox.id, ProcessSpec(("whoami",), user=User.USER))
    assert named.stdout.text() == "user\n"


async def test_request_overrides_the_defaults(node: MemoryNode) -> None:
    params = CreateSandboxParams(template="base", cwd="/srv", limits=LimitsChange(memory_bytes=GIB))
    sandbox = await node.sandboxes.create(OPERATOR, params)
    assert (sandbox.spec.limits.memory_bytes, sandbox.spec.cwd) == (GIB, "/srv")


async def test_start_command_runs_when_the_sandbox_is_ready(node: MemoryNode) -> None:
    sandbox = await node.sandboxes.create(OPERATOR, BASE)
    (process,) = await node.services.processes.list(OPERATOR, sandbox.id)
    assert process.argv == ("/bin/sh", "-c", "sleep 1000")
    assert process.running


@pytest.fixture
def shell_less(node: MemoryNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sandboxes of the node have no shell."""
    for name in ("sh", "bash"):
        del node.state.driver.scripts.programs[name]
        monkeypatch.delitem(files._FILES, f"/bin/{name}")  # noqa: SLF001 - there is no other way to take files from a new guest


@pytest.mark.usefixtures("shell_less")
async def test_commands_run_without_a_shell_if_the_image_has_none(node: MemoryNode) -> None:
    tries = list[list[str]]()

    async def check(context: ProgramContext) -> int:
        tries.append(context.argv)
        return 0 if len(tries) > 1 else 1

    node.state.driver.scripts.programs["check"] = check
    node.state.templates.defaults_of["base"] = replace(READY, start_command="/bin/sleep '1000'", ready_command="check -q 'two words'")
    sandbox = await node.sandboxes.create(OPERATOR, BASE)
    (process,) = await node.services.processes.list(OPERATOR, sandbox.id)
    assert (process.argv, process.running) == (("/bin/sleep", "1000"), True)
    assert tries == [["check", "-q", "two words"]] * 2


@pytest.mark.usefixtures("shell_less")
@pytest.mark.parametrize("command", ["no-such-program", "'no end", " "])
async def test_command_that_no_program_can_run_is_an_error_in_an_image_without_a_shell(node: MemoryNode, command: str) -> None:
    node.state.templates.defaults_of["base"] = replace(READY, start_command="sleep 1000", ready_command=command)
    with pytest.raises(NotFoundError) as refused:
        await node.sandboxes.create(OPERATOR, BASE)
    assert refused.value.code is ErrorCode.PROGRAM_NOT_FOUND
