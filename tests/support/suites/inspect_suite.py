"""inspect_ai's suite of sandboxes, and a task; run in an environment of tests/environments."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from inspect_ai import Task
from inspect_ai import eval as inspect_eval
from inspect_ai.dataset import Sample
from inspect_ai.scorer import exact
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.util import SandboxEnvironment, sandbox
from inspect_ai.util._sandbox.self_check import *  # noqa: F403 - as the suite wants it

from sandlot import Sandbox
from sandlot.agents.inspect import SandlotSandboxEnvironment


@pytest.fixture
async def sandbox_env() -> AsyncIterator[SandboxEnvironment]:
    environments = await SandlotSandboxEnvironment.sample_init("suite", os.environ["SUITE_TEMPLATE"], {})
    yield environments["default"]
    await SandlotSandboxEnvironment.sample_cleanup("suite", None, environments, False)


@solver  # type: ignore[untyped-decorator]  # not in every environment
def compute() -> Solver:
    """Compute the answer in the sandbox, without a model."""

    async def solve(state: TaskState, _: Generate) -> TaskState:
        state.output.completion = (await sandbox().exec(["python3", "-c", "print(6 * 7)"])).stdout.strip()
        return state

    return solve


def test_task_runs_in_a_sandbox_for_each_sample(tmp_path: Path) -> None:
    dataset = [Sample(input="six times seven", target="42"), Sample(input="seven times six", target="42")]
    task = Task(dataset=dataset, solver=compute(), scorer=exact(), sandbox=("sandlot", os.environ["SUITE_TEMPLATE"]))
    (log,) = inspect_eval(task, model="mockllm/model", display="none", log_dir=str(tmp_path))
    assert log.status == "success", log.error
    assert log.results.scores[0].metrics["mean"].value == 1.0
    assert [info for info in Sandbox.list() if info.metadata.get("inspect_ai") == "sample"] == []
