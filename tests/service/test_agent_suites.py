"""Suites that agent packages publish for providers of sandboxes, each in an environment with its package, against a real service on gVisor."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sandlot.sdk.config import SOCKET
from tests.meta.tree import ROOT
from tests.support.documented import Page
from tests.support.environments import create_environment
from tests.support.localservice import TEMPLATE, LocalService

DEVELOPMENT = ""
"""Environment of the tests themselves."""
COMMAND = {"command": "echo $((6 * 7))"}
SYNCHRONOUS = """
from sandlot.agents import SandboxTools
with SandboxTools(template={template!r}, images=False) as tools:
    schema = next(each for each in tools.schemas if each["name"] == "run_command")
    print({call})
"""
ASYNCHRONOUS = """
import asyncio
from functools import partial
from sandlot.agents import AsyncSandboxTools
async def main():
    async with AsyncSandboxTools(template={template!r}, images=False) as tools:
        schema = next(each for each in tools.schemas if each["name"] == "run_command")
        print(await {call})
asyncio.run(main())
"""
IN_SANDBOX = """
from sandlot import Sandbox
with Sandbox.create({template!r}) as sandbox:
    print({call})
"""


@pytest.fixture(scope="module")
def pythons() -> dict[str, Path]:
    """Python of each environment that was created."""
    return {DEVELOPMENT: Path(sys.executable)}


def environ(service: LocalService) -> dict[str, str]:
    """Return the environment of programs that use the service."""
    return {
        **os.environ,
        "SANDLOT_URL": f"unix://{service.data_dir / SOCKET}",
        "SUITE_TEMPLATE": TEMPLATE,
        "PYTHONPATH": f"{ROOT}/src:{ROOT}",
        "NO_PROXY": "127.0.0.1",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "CREWAI_DISABLE_TELEMETRY": "true",
    }


def run_suite(service: LocalService, python: Path, suite: str, *options: str) -> str:
    """Run a suite in a process, and return its summary."""
    command: list[str | Path] = [python, "-m", "pytest", "-q", "-ra", "-c", os.devnull, "--noconftest", "--import-mode=importlib"]
    command += ["-p", "no:cacheprovider", "-o", "anyio_mode=auto"]
    command += ["-W", "ignore::pytest.PytestRemovedIn10Warning", "-W", "ignore::pytest.PytestUnknownMarkWarning"]
    done = subprocess.run(
        [*command, *options, ROOT / "tests" / "support" / "suites" / f"{suite}_suite.py"],
        env=environ(service),
        capture_output=True,
        text=True,
        check=False,
        cwd=service.data_dir,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return str(done.stdout.strip().splitlines()[-1])


def passed(summary: str) -> int:
    """Return the number of tests that passed, of which there may be no other ones than expected failures."""
    found = re.fullmatch(r"(\d+) passed(?:, \d+ (?:deselected|xfailed|warnings?))*(?: in .*)?", summary)
    assert found, summary
    return int(found[1])


def environment(name: str, pythons: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    if name not in pythons:
        pythons[name] = create_environment(f"tests/environments/{name}.lock", tmp_path_factory.mktemp(name) / "venv")
    return pythons[name]


@pytest.mark.soak
@pytest.mark.parametrize(
    "name, suite, count",
    [
        pytest.param("deepagents-0.6", "deepagents", 89, id="deepagents-0.6"),
        pytest.param("deepagents", "deepagents", 82, id="deepagents"),
        pytest.param("inspect", "inspect", 45, id="inspect_ai"),
        pytest.param(DEVELOPMENT, "openai_agents", 6, id="openai_agents"),
        pytest.param(DEVELOPMENT, "pydantic_ai", 40, id="pydantic_ai"),
        pytest.param("smolagents", "smolagents", 5, id="smolagents"),
    ],
)
def test_suite_passes(
    service: LocalService, pythons: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, name: str, suite: str, count: int
) -> None:
    assert passed(run_suite(service, environment(name, pythons, tmp_path_factory), suite)) == count


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, suite, test",
    [
        pytest.param("deepagents", "deepagents", "test_agent_with_tools_runs_to_its_answer", id="deepagents"),
        pytest.param("inspect", "inspect", "test_task_runs_in_a_sandbox_for_each_sample", id="inspect_ai"),
        pytest.param(DEVELOPMENT, "openai_agents", "test_runner_uses_shell_patch_and_terminals", id="openai_agents"),
        pytest.param(DEVELOPMENT, "pydantic_ai", "test_file_as_parent_raises_not_a_directory", id="pydantic_ai"),
        pytest.param("smolagents", "smolagents", "test_state_output_and_values_of_code", id="smolagents"),
    ],
)
def test_one_test_of_the_suite_passes(
    service: LocalService, pythons: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, name: str, suite: str, test: str
) -> None:
    assert passed(run_suite(service, environment(name, pythons, tmp_path_factory), suite, "-k", test)) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, program, call",
    [
        pytest.param("crewai", SYNCHRONOUS, f"sandbox_tool(tools, schema).run(**{COMMAND})", id="crewai"),
        pytest.param("google-adk", ASYNCHRONOUS, f"SandboxTool(tools, **schema).run_async(args={COMMAND}, tool_context=None)", id="google-adk"),
        pytest.param(
            "llama-index",
            f"from llama_index.core.tools import FunctionTool\n{ASYNCHRONOUS}",
            f"FunctionTool(async_fn=partial(call, tools, 'run_command'), metadata=Metadata(**schema)).acall(**{COMMAND})",
            id="llama-index",
        ),
        pytest.param("mini-swe-agent", IN_SANDBOX, f"SandboxEnvironment(sandbox).execute({COMMAND})['output']", id="mini-swe-agent"),
    ],
)
def test_tool_of_an_example_runs_in_a_sandbox(
    service: LocalService, pythons: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, name: str, program: str, call: str
) -> None:
    python = environment(name, pythons, tmp_path_factory)
    text = f"{Page(ROOT / 'examples' / f'{name}.md').definitions()}\n{program.format(template=TEMPLATE, call=call)}"
    done = subprocess.run([python, "-c", text], env=environ(service), capture_output=True, text=True, check=False, cwd=service.data_dir)
    assert done.returncode == 0, done.stderr[-6000:]
    assert done.stdout.strip().splitlines()[-1] == "42"
