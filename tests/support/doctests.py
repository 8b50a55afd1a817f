"""The doctests of Python's own standard library, and what doctest itself says of each: ``python doctests.py`` prints them as JSON.

It is run by the machine's python, which is the sandboxes' (Debian's), where nothing can be reached: examples of network modules must not.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import json
import os
import pkgutil
import signal
import sys
import sysconfig
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

ASIDE = frozenset({"antigravity", "this", "idlelib", "lib2to3", "test", "turtle", "turtledemo", "tkinter", "__main__"})
"""What opens windows or browsers, or is no part of the library but its tests."""
WAITING = frozenset({"socket.create_server"})
"""What waits for somebody who never comes."""

PATIENCE_S = 10
"""For the examples of one docstring."""


class Recorder(doctest.DocTestRunner):
    """Runs examples as doctest does, and remembers which went well."""

    def __init__(self) -> None:
        super().__init__(verbose=False)
        self.right: set[int] = set()

    def report_start(self, *_: object) -> None:
        pass

    def report_success(self, out: object, test: doctest.DocTest, example: doctest.Example, got: str) -> None:  # noqa: ARG002
        self.right.add(example.lineno)

    def report_failure(self, *_: object) -> None:
        pass

    def report_unexpected_exception(self, *_: object) -> None:
        pass


def modules() -> Iterator[str]:
    """The names of all modules of the standard library."""
    found = {info.name for info in pkgutil.walk_packages([sysconfig.get_path("stdlib")], onerror=lambda _: None)} | sys.stdlib_module_names
    for name in sorted(found):
        parts = name.split(".")
        if parts[0] in sys.stdlib_module_names and not ASIDE.intersection(parts):
            yield name


def docstrings() -> Iterator[tuple[str, doctest.DocTest]]:
    """Every docstring that has examples, with the module that it is of; the same text once."""
    finder, seen = doctest.DocTestFinder(exclude_empty=True), set()
    for name in modules():
        try:
            module = importlib.import_module(name)
            tests = finder.find(module, name)
        except (ImportError, ValueError):
            continue  # of another system, or of a package that this machine has not
        for test in tests:
            if test.examples and test.docstring not in seen and test.name not in WAITING:
                seen.add(test.docstring)
                yield name, test


def told(module: str, test: doctest.DocTest) -> dict[str, Any]:
    """A docstring as JSON: its examples, and whether each went well when doctest ran it."""
    runner = Recorder()
    signal.alarm(PATIENCE_S)
    with contextlib.redirect_stdout(io.StringIO()):
        runner.run(test, out=lambda _: None)
    signal.alarm(0)
    names = {flag: name for name, flag in doctest.OPTIONFLAGS_BY_NAME.items()}
    examples = [
        {
            "source": example.source,
            "want": example.want,
            "raises": example.exc_msg,
            "options": sorted(names[flag] for flag, on in example.options.items() if on),
            "line": example.lineno,
            "right": example.lineno in runner.right,
        }
        for example in test.examples
        if not example.options.get(doctest.SKIP)
    ]
    return {"module": module, "name": test.name, "examples": examples}


def late(*_: object) -> None:
    """It takes too long."""
    raise TimeoutError


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, late)
    sys.path.pop(0)
    with contextlib.redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        everything = [told(*found) for found in docstrings()]
        os.chdir("/")
    print(json.dumps({"version": sys.version, "docstrings": everything}))
