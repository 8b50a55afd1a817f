"""Plant defects in a copy of the source, one at a time, and report which tests detect them.

    python -m tests.mutants.run                          every mutant of the catalogue, with the tests that it names
    python -m tests.mutants.run NAME...                  some mutants
    python -m tests.mutants.run NAME --tests tests/unit  one mutant with other tests, for example to find out which folders detect it

Run it as root from the root of the repository, with the interpreter of `.venv`. The catalogue is described in catalogue.py. Each worker has a
copy of the repository of its own, so the tests of this checkout can run meanwhile.

A mutant is detected if a test fails, crashes or exceeds ``TIMEOUT_S``. The same tests are run first on a copy without a defect: what fails
there as well detects nothing, and ends the run.
"""

from __future__ import annotations

import argparse
import itertools
import os
import queue
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.mutants.catalogue import ROOT, Mutant, load

TIMEOUT_S = 120
"""Limit of one test: a mutant may make it wait forever."""
FAST, ALL = "not soak and not slow", "not soak"
"""Selections of `scripts/test` and of `scripts/test --all`."""
PASSED, NOTHING_RUN = 0, 5
"""Exit statuses of pytest. Any other one counts as a failure: tests fail, crash or hang."""
_LEFT_OUT = (".git", ".venv", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".import_linter_cache", "__pycache__")


class MutantError(Exception):
    """A mutant that does not apply, or tests that do not pass without it."""


@dataclass
class Result:
    """Tests that detected one mutant.

    Attributes:
        mutant: The mutant.
        fast: Folders whose tests detected it in the selection of `scripts/test`.
        slow: Folders whose tests detected it in the selection of `scripts/test --all` only.
    """

    mutant: Mutant
    fast: set[str] = field(default_factory=set)
    slow: set[str] = field(default_factory=set)


class Copy:
    """A copy of the repository, in which one defect at a time is planted.

    Attributes:
        root: The copy.
        output: Output of the last run of pytest.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder / "sandlot"
        shutil.copytree(ROOT, self.root, ignore=shutil.ignore_patterns(*_LEFT_OUT), symlinks=True)
        (self.root / ".venv").symlink_to(ROOT / ".venv")
        self.output = ""
        self._generation = itertools.count(1)

    @contextmanager
    def planted(self, mutant: Mutant) -> Iterator[None]:
        """Plant a defect, and remove it at the end."""
        path = self.root / mutant.file
        original, mutated = path.read_text(encoding="utf-8"), mutant.apply()
        try:
            self._write(path, mutated)
            yield
        finally:
            self._write(path, original)

    def fails(self, tests: Sequence[str], selection: str) -> bool:
        """Run tests of the copy until the first one fails.

        Raises:
            MutantError: pytest could not run the tests, or selected none of them.
        """
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", selection, "--override-ini", f"timeout={TIMEOUT_S}", "-p", "no:cacheprovider"]
        environ = {**os.environ, "PYTHONPATH": str(self.root / "src")}
        done = subprocess.run([*command, *tests], cwd=self.root, env=environ, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        self.output = done.stdout + done.stderr
        if done.returncode == NOTHING_RUN or "no tests ran" in done.stdout:
            raise MutantError(f"no test ran: {' '.join(tests)} with -m {selection!r}\n{self.output[-2000:]}")
        return done.returncode != PASSED

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        # Byte code is valid for one size and one second of modification: each version gets a second of its own.
        seconds = path.stat().st_mtime + 10 * next(self._generation)
        os.utime(path, (seconds, seconds))


def folder_of(test: str) -> str:
    """Return the folder that a test is counted for: tests/unit/core, tests/service."""
    parts = test.partition("::")[0].split("/")
    return "/".join(parts[: 3 if parts[1] == "unit" else 2])


def by_folder(tests: Iterable[str]) -> dict[str, list[str]]:
    """Group tests by the folder that they are counted for."""
    groups: dict[str, list[str]] = {}
    for test in tests:
        groups.setdefault(folder_of(test), []).append(test)
    return groups


def examine(copy: Copy, mutant: Mutant, tests: Sequence[str] | None) -> Result:
    """Plant one mutant and run the tests that it names, or others."""
    result = Result(mutant)
    with copy.planted(mutant):
        for folder, named in by_folder(mutant.tests if tests is None else tests).items():
            if copy.fails(named, FAST if tests is None else ALL):
                result.fast.add(folder)
        for folder, named in by_folder(mutant.slow_tests if tests is None else ()).items():
            if copy.fails(named, ALL):
                result.slow.add(folder)
    return result


def check_sound(copy: Copy, mutants: Iterable[Mutant], tests: Sequence[str] | None) -> None:
    """Run all tests that the mutants name on a copy without a defect.

    Raises:
        MutantError: One of them fails.
    """
    named = dict.fromkeys(test for mutant in mutants for test in (*mutant.tests, *mutant.slow_tests)) if tests is None else tests
    for folder, group in by_folder(named).items():
        if copy.fails(group, ALL):
            raise MutantError(f"tests of {folder} fail without a mutant:\n{copy.output[-4000:]}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Plant defects and report which tests detect them.")
    parser.add_argument("names", nargs="*", help="mutants; default: all")
    parser.add_argument("--tests", nargs="+", help="run these tests on each mutant instead of those that it names")
    parser.add_argument("--jobs", type=int, default=2, help="mutants examined at the same time; default: 2")
    arguments = parser.parse_args()
    catalogue = load()
    unknown = set(arguments.names) - {mutant.name for mutant in catalogue}
    if unknown:
        parser.error(f"no such mutants: {', '.join(sorted(unknown))}")
    mutants = [mutant for mutant in catalogue if not arguments.names or mutant.name in arguments.names]

    with tempfile.TemporaryDirectory(prefix="sandlot-mutants-") as folder:
        copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for number in range(min(arguments.jobs, len(mutants))):
            copies.put(Copy(Path(folder) / str(number)))

        def examine_next(mutant: Mutant) -> Result:
            copy = copies.get()
            try:
                result = examine(copy, mutant, arguments.tests)
            except (MutantError, ValueError) as error:
                print(f"{mutant.name}: {error}", file=sys.stderr)
                return Result(mutant)
            finally:
                copies.put(copy)
            detected = ", ".join([*sorted(result.fast), *(f"{slow} (--all)" for slow in sorted(result.slow))])
            print(f"{mutant.name:50} {detected or 'SURVIVED'}", flush=True)
            return result

        first = copies.get()
        check_sound(first, mutants, arguments.tests)
        copies.put(first)
        with ThreadPoolExecutor(arguments.jobs) as pool:
            results = list(pool.map(examine_next, mutants))

    fast, detected = sum(bool(result.fast) for result in results), sum(bool(result.fast or result.slow) for result in results)
    folders = Counter(folder for result in results for folder in result.fast | result.slow)
    print(f"\n{len(results)} mutants: {fast} detected by scripts/test, {detected} by scripts/test --all")
    print("\n".join(f"  {count:3} by {folder}" for folder, count in folders.most_common()))
    return 0 if detected == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
