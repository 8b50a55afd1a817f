"""Create times of a template that a user has built, beside those of its base, with gVisor.

All variants take their turn in every round, and the order changes from round to round. Each row has the median of both, and the median of the ratios
of the rounds. The base is restored from its template snapshot, as with pools, and never claimed warm. ``Ready`` is the time until a server in the
sandbox responds, from the snapshot of the build and, with a memory limit for which there is no snapshot, by a boot and the start command. Run
``python -m benchmarks.templates [--rounds N] [--json]`` as root.

With ``--builtin``, ``code-interpreter`` is compared with ``code-interpreter-slim`` instead: size, creates, idle memory, and imports of the packages
that both have, in new sandboxes. Build both images first (``sandlot image build builder code-interpreter code-interpreter-slim`` prints the times).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.paired import PairedRows
from sandlot import Client, Sandbox, SandlotError
from sandlot.images.store import ImageStore
from tests.support.cache import CACHE_DIR

MIB = 1 << 20
DOCKERFILE = "FROM base\nRUN mkdir /opt/app && head -c 50000000 /dev/urandom > /opt/app/data\nWORKDIR /opt/app\n"
SERVER = DOCKERFILE + "CMD python3 -m http.server 8000\n"
READY = "curl -sf localhost:8000"
START_S = 120.0
"""Maximum seconds until the service responds, and until the template snapshots of the pools are made."""
BUILTIN = ("code-interpreter-slim", "code-interpreter")
PACKAGES = ("numpy", "pandas", "matplotlib.pyplot", "scipy.stats", "sklearn.linear_model", "PIL.Image", "IPython", "requests")
"""Modules of the packages that both templates have."""
IMPORT_ROUNDS = 5
"""Number of rounds that import the packages."""


@contextmanager
def service(*templates: str) -> Iterator[Client]:
    """Run a service with pools of templates that have a template snapshot and no warm sandbox."""
    data_dir = Path(tempfile.mkdtemp(prefix="sandlot-bench-"))
    pools = ",".join(f"{template}=0:0" for template in templates)
    env = {**os.environ, "SANDLOT_DATA_DIR": str(data_dir), "SANDLOT_POOLS": pools, "SANDLOT_TEMPLATE_ALIASES": ""}
    with (data_dir / "output.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "sandlot.server"], env=env, stdout=log, stderr=log)
    try:
        client = Client(data_dir=data_dir, autostart=False)
        _wait(lambda: bool(client.templates.list()))
        _wait(lambda: all(pool.snapshot is not None for pool in client.pools.list()))
        yield client
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(data_dir, ignore_errors=True)


def _wait(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        try:
            if condition():
                return
        except (SandlotError, OSError):
            pass
        time.sleep(0.1)
    raise TimeoutError


def create(rows: PairedRows, client: Client, template: str, column: int, modules: Sequence[str] = ()) -> None:
    """Create a sandbox, run a first command, read its memory, and import modules."""
    with rows.timed("create", column):
        sandbox = Sandbox.create(template=template, client=client)
    with sandbox:
        with rows.timed("first command", column):
            sandbox.commands.run("true")
        rows.rows["memory after it, MiB"][column].append(sandbox.usage().memory_bytes / MIB)
        for module in modules:
            with rows.timed(f"python3 -c 'import {module}'", column):
                sandbox.commands.run(["python3", "-c", f"import {module}"]).check()


def start(rows: PairedRows, client: Client, memory: int, column: int) -> None:
    """Create a sandbox with a server, and wait until the server responds."""
    with rows.timed("create with a start command, ready", column), Sandbox.create(template="bench-server", client=client, memory=memory) as sandbox:
        assert sandbox.commands.run(READY).exit_code == 0


def compare_built(rows: PairedRows, rounds: int) -> None:
    """Compare a template that a user has built with its base."""
    with service("base") as client:
        client.templates.build("bench-files", dockerfile=DOCKERFILE)
        client.templates.build("bench-server", dockerfile=SERVER, ready_command=READY, memory=1024 * MIB)
        for number in range(rounds):
            variants = [("base", 0), ("bench-files", 1)]
            for template, column in variants if number % 2 else reversed(variants):
                create(rows, client, template, column)
            # There is no snapshot for another limit than that of the template, so the first of these boots.
            sizes = [((1025 + number) * MIB, 0), (1024 * MIB, 1)]
            for memory, column in sizes if number % 2 else reversed(sizes):
                start(rows, client, memory, column)


def compare_builtin(rows: PairedRows, rounds: int) -> None:
    """Compare the two built-in templates for code."""
    store = ImageStore(CACHE_DIR)
    for column, template in enumerate(BUILTIN):
        image = store.ensure(template)
        rows.rows["size, MiB"][column].append(image.size_bytes / MIB)
        rows.rows["entries"][column].append(image.files)
    with service(*BUILTIN) as client:
        for number in range(rounds):
            variants = list(enumerate(BUILTIN))
            for column, template in variants if number % 2 else reversed(variants):
                create(rows, client, template, column, PACKAGES if number < IMPORT_ROUNDS else ())


def main(arguments: list[str]) -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--builtin", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)
    rows = PairedRows(*BUILTIN) if args.builtin else PairedRows("base, or a boot", "built")
    (compare_builtin if args.builtin else compare_built)(rows, args.rounds)
    sys.stdout.write((json.dumps(rows.rows) if args.json else rows.table()) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
