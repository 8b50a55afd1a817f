"""Time to compile and to run a program of each language with gVisor, beside the same compiler on the host.

Two programs: ``hello`` prints a line, and ``factors`` computes (the corpus' solution of ``prime-factors``, with as many numbers as take about half a
second). On the host, the programs run in a chroot of the tree from which the template's root file system image is made, so that the compilers,
libraries and files are the same. Both take their turn in every round, and the order changes from round to round. Times are from the start of a
process to its end, as the guest and the host measure them. Run ``python -m benchmarks.languages [--rounds N] [--json] [LANGUAGE...]`` as root.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sandlot import Sandbox
from sandlot.images.store import ImageStore
from sandlot.model.languages import LANGUAGES, Language
from sandlot.model.paths import WORKSPACE
from tests.support.cache import CACHE_DIR
from tests.support.corpus import problems
from tests.support.localservice import local_service

TEMPLATE = "languages"
UID = 1000
PRIME = "999999999989\n"
PRIME_COUNTS = {"bash": 1, "javascript": 3, "perl": 6, "python": 6, "r": 3, "ruby": 6, "php": 30, "typescript": 40}
"""Language -> number of primes to factorize, each of which takes a million divisions; all other languages: ``DEFAULT_PRIME_COUNT``."""
DEFAULT_PRIME_COUNT = 100
CGROUPS = next((path for path in (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/cpu,cpuacct")) if path.exists()), Path("/sys/fs/cgroup"))
"""Control groups of the processors, version 1 or 2. The chroot has a group of its own, as the sandbox has, so that other work slows both alike."""
Run = Callable[[Sequence[str], str], float]
"""Runs a command with an input, and returns the seconds from its start to its end."""


class Rows:
    """Seconds by language and column: with gVisor first, on the host second."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, tuple[list[float], list[float]]]] = defaultdict(lambda: defaultdict(lambda: ([], [])))

    def table(self) -> str:
        """Return the results as a table in Markdown: medians with gVisor and on the host, and the median of the ratios of the rounds."""
        columns = ("compile hello", "compile factors", "run hello", "run factors")
        lines = [f"| Language | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
        for language in LANGUAGES:
            if language.name in self.rows:
                cells = (_cell(*self.rows[language.name][column]) for column in columns)
                lines.append(f"| {language.title} | {' | '.join(cells)} |")
        return "\n".join(lines)


def _cell(inside: list[float], outside: list[float]) -> str:
    if not inside:
        return "-"
    ratio = statistics.median(one / other for one, other in zip(inside, outside, strict=True))
    return f"{_short(inside)} / {_short(outside)} ({ratio:.1f})"


def _short(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2g}"


class Place:
    """Place where programs run: a sandbox, or the chroot on the host.

    Args:
        run: Runs a command.
        write: Writes a file of the folder of the program.
    """

    def __init__(self, run: Run, write: Callable[[str, str], object]) -> None:
        self.run, self.write = run, write


@contextmanager
def sandbox() -> Iterator[Place]:
    """Run programs in a sandbox."""
    with local_service() as service, service.create(TEMPLATE, isolation="gvisor", cpus=2, memory="2G", timeout=3600, network="none") as running:
        yield Place(lambda argv, stdin: _run_inside(running, argv, stdin), lambda name, code: running.files.write(f"{WORKSPACE}/{name}", code))


def _run_inside(running: Sandbox, argv: Sequence[str], stdin: str) -> float:
    return running.commands.run(argv, stdin=stdin, cwd=WORKSPACE, check=True).duration_s


@contextmanager
def chroot() -> Iterator[Place]:
    """Run programs on the host, in a writable copy of the template's tree."""
    store = ImageStore(CACHE_DIR)
    tree, env = store.ensure(TEMPLATE).path, {"HOME": "/home/user", **store.environment(TEMPLATE)}
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="sandlot-bench-"))
        stack.callback(shutil.rmtree, folder)
        upper, work, root = (folder / name for name in ("upper", "work", "root"))
        for each in (upper, work, root):
            each.mkdir(mode=0o755)
        folder.chmod(0o755)
        mounts = (
            ("-t", "overlay", "-o", f"lowerdir={tree},upperdir={upper},workdir={work}", "overlay", root),
            ("-t", "proc", "proc", root / "proc"),
            ("--rbind", "/dev", root / "dev"),
        )
        for mount in mounts:
            subprocess.run(["mount", *mount], check=True)
            stack.callback(_unmount, mount[-1])
        programs = root / WORKSPACE.strip("/")
        programs.mkdir(exist_ok=True)
        os.chown(programs, UID, UID)
        group = CGROUPS / f"sandlot-bench-{os.getpid()}"
        group.mkdir()
        stack.callback(group.rmdir)
        # Enters the chroot once, so that no time of a run is spent on it.
        pool = stack.enter_context(ProcessPoolExecutor(1, multiprocessing.get_context("fork"), _enter, (str(root), str(group))))
        pool.submit(os.getpid).result()  # forks the process now, before this process has threads
        yield Place(lambda argv, stdin: pool.submit(_run_outside, argv, stdin, env).result(), lambda name, code: (programs / name).write_text(code))


def _unmount(path: Path | str) -> None:
    subprocess.run(["umount", "--recursive", "--lazy", path], check=True)


def _enter(root: str, group: str) -> None:
    Path(group, "cgroup.procs").write_text("0", encoding="ascii")
    os.chroot(root)
    os.chdir("/")


def _run_outside(argv: Sequence[str], stdin: str, env: Mapping[str, str]) -> float:
    began_s = time.perf_counter()
    done = subprocess.run(argv, input=stdin.encode(), capture_output=True, env=env, cwd=WORKSPACE, user=UID, group=UID, extra_groups=[], check=False)
    taken_s = time.perf_counter() - began_s
    assert done.returncode == 0, (argv, done.stderr)
    return taken_s


def measure(rows: Rows, language: Language, places: Sequence[tuple[int, Place]]) -> None:
    """Compile and run both programs of a language in both places.

    Args:
        rows: Results.
        language: Language of the programs.
        places: Column of the results and place, in the order in which they take their turn.
    """
    (factors,) = (each for each in problems() if each.name == "prime-factors")
    count = PRIME_COUNTS.get(language.name, DEFAULT_PRIME_COUNT)
    programs = {
        "hello": (language.example, ""),
        "factors": (factors.solution(language), PRIME * count),
    }
    for name, (code, stdin) in programs.items():
        source = language.source_of(code)
        for column, place in places:
            place.write(source.filename, code)
            if language.compile_argv:
                rows.rows[language.name][f"compile {name}"][column].append(place.run(language.expand(language.compile_argv, source), ""))
        for column, place in places:
            rows.rows[language.name][f"run {name}"][column].append(place.run(language.expand(language.run_argv, source), stdin))


def main(arguments: list[str]) -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("languages", nargs="*", metavar="LANGUAGE")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)
    rows = Rows()
    with chroot() as outside, sandbox() as inside:
        for number in range(args.rounds):
            places = [(0, inside), (1, outside)]
            for language in LANGUAGES:
                if not args.languages or language.name in args.languages:
                    measure(rows, language, places if number % 2 else places[::-1])
    sys.stdout.write((json.dumps(rows.rows) if args.json else rows.table()) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
