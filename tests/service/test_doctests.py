"""Some of the standard library's own examples, run through kernels and graded; tests/soak runs all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandlot import Sandbox
from tests.support import doctesting
from tests.support.localservice import local_service

EVERY = 23
"""One docstring of so many, by name."""


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with local_service() as service, service.create("code-interpreter", timeout=600) as made:
        yield made


@pytest.mark.may_skip("this machine's python is another version than the template's")
def test_examples_are_graded_as_doctest_grades_them(sandbox: Sandbox) -> None:
    version, docstrings = doctesting.corpus()
    if not sandbox.run_code("import sys; print(sys.version)").stdout.startswith(version.split()[0] + " "):
        pytest.skip(f"this machine has Python {version.split()[0]}")
    assert len(docstrings) > 200
    doctesting.check(sandbox, docstrings[::EVERY])
