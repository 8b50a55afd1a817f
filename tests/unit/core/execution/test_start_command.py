"""Sandboxes of a template get its limits, user and working directory, and run its start command."""

from __future__ import annotations

import pytest

from sandlot.model.access import OPERATOR
from sandlot.model.sandboxes import CreateSandboxParams, LimitsChange
from sandlot.model.specs import GIB, Limits, ProcessSpec, User
from sandlot.model.templates import TemplateDefaults
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
