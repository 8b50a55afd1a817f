"""The programs of the README, the tutorials, the guides and the examples run as they stand and print what their pages say."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.support.documented import Page, pages, run_page
from tests.support.environments import INSTALL, build_wheel, create_environment
from tests.support.localservice import LocalService
from tests.support.scripted_model.endpoint import scripted_model
from tests.support.scripted_model.steps import Call, Conversation, Say, Step

DEVELOPMENT = ""
"""Environment of the tests themselves."""
ENVIRONMENTS: Mapping[str, tuple[str, ...]] = {
    "anthropic": (DEVELOPMENT, "models-oldest"),
    "crewai": ("crewai",),
    "google-adk": ("google-adk",),
    "inspect": ("inspect", "inspect-oldest"),
    "langchain": ("deepagents", "langchain-oldest"),
    "llama-index": ("llama-index",),
    "mini-swe-agent": ("mini-swe-agent",),
    "openai-agents": (DEVELOPMENT, "openai-agents-oldest"),
    "openai-chat": (DEVELOPMENT, "models-oldest"),
    "openai-responses": (DEVELOPMENT, "models-oldest"),
    "pydantic-ai": (DEVELOPMENT, "pydantic-ai-oldest"),
    "smolagents": ("smolagents", "smolagents-oldest"),
}
"""Example -> locks in tests/environments with whose packages it runs. The oldest versions are the lower bounds of the extras in pyproject.toml."""

IN_EACH_RUN = ("README", "agent-loop", "first-sandbox")
"""Pages that ``scripts/test --all`` runs: those that a newcomer reads first. What the other guides use has tests of its own."""


def parameters() -> Iterator[object]:
    """Yield each page with its environments. Most pages run in ``scripts/soak``."""
    for page in pages():
        for environment in ENVIRONMENTS.get(page.path.stem, (DEVELOPMENT,)):
            is_soak = environment != DEVELOPMENT or page.path.stem not in IN_EACH_RUN
            name = f"{page.name}-{environment}" if environment else page.name
            yield pytest.param(page, environment, id=name, marks=pytest.mark.soak if is_soak else pytest.mark.slow)


OUTPUT = {
    "README.md": r"6\n\nLinux .*\n45\n\n\['0\\n', '45\\n', '90\\n'\]\n45\n\nThe sum is 5050.\nhello from inside\n.*",
    "docs/tutorial/agent-loop.md": r"There are 78498\.\n",
}
"""Output of pages that blocks of text cannot show, as a regular expression."""
SUM = "print(sum(range(101)))"
CALLS: Mapping[str, Mapping[str, str]] = {
    "run_code": {"code": SUM},
    "execute_python": {"code": SUM},
    "python_exec": {"code": SUM},
    "execute": {"command": f"python3 -c '{SUM}'"},
    "bash": {"command": f"python3 -c '{SUM}'"},
}
"""Tool of a page -> arguments that compute the sum."""
FINAL = "Thought: I compute.\n<code>\nfinal_answer(f'The sum is {sum(range(101))}.')\n</code>"
"""Answer of a model whose agent writes code instead of calling tools."""


def script(conversation: Conversation) -> Step:
    """Answer as the models of the pages: add numbers, and in the tutorial on agents correct the code after its first error."""
    results = [result.text for result in conversation.results]
    tools = conversation.tools
    if "run_python" in tools:
        return primes(results)
    if results:
        (total,) = set(re.findall(r"\b5050\b", results[-1]))
        if "COMPLETE_TASK" in conversation.system:
            return Call("bash", {"command": f"echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo The sum is {total}."})
        return Say(f"The sum is {total}.")
    for name, arguments in CALLS.items():
        if name in tools:
            return Call(name, arguments)
    return Say(FINAL)


def primes(results: list[str]) -> Step:
    """Answer as the model of the tutorial on agents."""
    match len(results):
        case 0:
            return Call("run_python", {"code": "limit = 10 ** 6\nprint(primes(limit))"})
        case 1 if "NameError" in results[0]:
            sieve = "s = bytearray([1]) * limit\nfor i in range(2, 1000):\n    s[i * i :: i] = bytes(len(s[i * i :: i]))\nprint(sum(s) - 2)"
            return Call("run_python", {"code": sieve})
        case _:
            return Say(f"There are {results[-1].strip()}.")


@pytest.fixture(scope="module")
def model_env() -> Iterator[Mapping[str, str]]:
    """Variables of an endpoint for the pages on agents. Its model is the only part that is not real."""
    with scripted_model(script) as endpoint:
        yield endpoint.env


@pytest.fixture(scope="module")
def environment_python(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path | None]:
    """Return the Python of an environment, which has the wheel of the repository as that of a user does; None for the environment of the tests."""

    @cache
    def wheel() -> Path:
        return build_wheel(tmp_path_factory.mktemp("wheel"))

    @cache
    def python(environment: str) -> Path | None:
        if environment == DEVELOPMENT:
            return None
        created = create_environment(f"tests/environments/{environment}.lock", tmp_path_factory.mktemp(environment) / "venv")
        subprocess.run([*INSTALL, created, wheel()], check=True, capture_output=True)
        return created

    return python


@pytest.mark.parametrize("page, environment", [*parameters()])
def test_programs_of_page_print_what_it_shows_and_leave_nothing(
    page: Page,
    environment: str,
    model_env: Mapping[str, str],
    environment_python: Callable[[str], Path | None],
    request: pytest.FixtureRequest,
) -> None:
    python = environment_python(environment)
    if page.starts_service():
        output = run_page(page, env=model_env, python=python)
    else:
        service: LocalService = request.getfixturevalue("service")
        output = run_page(page, service.data_dir, model_env, python)
    assert page.unprinted(output) is None, output
    assert re.fullmatch(OUTPUT.get(page.name, ".*"), output, re.DOTALL), output
