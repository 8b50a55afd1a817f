"""The programs of the README, the tutorials and the guides run as they stand and print what their pages say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import pytest

from tests.support.documented import Page, pages, run_page
from tests.support.localservice import LocalService
from tests.support.scripted_model.endpoint import scripted_model
from tests.support.scripted_model.steps import Call, Conversation, Say, Step

PAGES = [
    pytest.param(page, id=page.name, marks=pytest.mark.soak if page.path.name.startswith("move-from-") else pytest.mark.slow) for page in pages()
]
"""All pages with programs. Those about a vendor install its packages."""
OUTPUT = {
    "README.md": r"6\n\nLinux .*\n45\n\n\['0\\n', '45\\n', '90\\n'\]\n45\n\nThe sum is 5050.\nhello from inside\n.*",
    "docs/tutorial/agent-loop.md": r"There are 78498\.\n",
}
"""Output of pages that blocks of text cannot show, as a regular expression."""


def script(conversation: Conversation) -> Step:
    """Answer as the models of the pages: add numbers, and in the tutorial on agents correct the code after its first error."""
    results = [result.text for result in conversation.results]
    if "run_code" in conversation.tools:
        return Say(f"The sum is {results[-1].strip()}.") if results else Call("run_code", {"code": "print(sum(range(101)))"})
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


@pytest.mark.parametrize("page", PAGES)
def test_programs_of_page_print_what_it_shows_and_leave_nothing(page: Page, model_env: Mapping[str, str], request: pytest.FixtureRequest) -> None:
    if page.starts_service():
        output = run_page(page, env=model_env)
    else:
        service: LocalService = request.getfixturevalue("service")
        output = run_page(page, service.data_dir, model_env)
    assert page.unprinted(output) is None, output
    assert re.fullmatch(OUTPUT.get(page.name, ".*"), output, re.DOTALL), output
