"""All examples of the standard library, run through kernels and graded as doctest grades them, on both kinds of kernel of Python."""

from __future__ import annotations

import pytest

from tests.support import doctesting
from tests.support.localservice import local_service

pytestmark = pytest.mark.soak


@pytest.mark.timeout(1800)
@pytest.mark.may_skip("this machine's python is another version than the template's")
@pytest.mark.parametrize("template, isolation", [("code-interpreter", "gvisor"), ("base", "container")])
def test_every_example_is_graded_as_doctest_grades_it(template: str, isolation: str) -> None:
    version, docstrings = doctesting.corpus()
    with local_service(isolation=isolation) as service, service.create(template, timeout=1800) as sandbox:
        if not sandbox.run_code("import sys; print(sys.version)").stdout.startswith(version.split()[0] + " "):
            pytest.skip(f"this machine has Python {version.split()[0]}")
        print(doctesting.check(sandbox, docstrings))
