"""Creates from a template that a user has built, beside creates from the built-in template on which it is based, with gVisor.

All variants take their turn in every round, and the order changes from round to round. Each row has the median of both, and the median of the ratios
of the rounds. The base is restored from its template snapshot, as with pools, and never claimed warm. ``Ready`` is the time until a server in the
sandbox responds, from the snapshot of the build and, with a memory limit for which there is no snapshot, by a boot and the start command. Run
``python -m benchmarks.templates [--rounds N] [--json]`` as root.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sandlot import Client, Sandbox, SandlotError

MIB = 1 << 20
DOCKERFILE = "FROM base\nRUN mkdir /opt/app && head -c 50000000 /dev/urandom > /opt/app/data\nWORKDIR /opt/app\n"
SERVER = DOCKERFILE + "CMD python3 -m http.server 8000\n"
READY = "curl -sf localhost:8000"
START_S = 60.0
"""Maximum seconds until the service responds, and until the template snapshot of the base is made."""


class Rows:
    """Values by row: those of the built-in template or of a boot first, those of the built template second."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))

    @contextmanager
    def timed(self, row: str, column: int) -> Iterator[None]:
        """Add the milliseconds that a block takes."""
        began_s = time.perf_counter()
        yield
        self.rows[row][column].append((time.perf_counter() - began_s) * 1000)

    def table(self) -> str:
        """Return the results for people."""
        lines = [f"{'':50}{'compared with':>16}{'built':>16}{'ratio':>8}{'n':>5}"]
        for row, (before, after) in self.rows.items():
            ratio = statistics.median(one / other for other, one in zip(before, after, strict=True))
            lines.append(f"{row:50}{_short(before):>16}{_short(after):>16}{ratio:8.2f}{len(after):5}")
        return "\n".join(lines)


def _short(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f})"


@contextmanager
def service() -> Iterator[Client]:
    """Run a service with a pool of ``base`` that has a template snapshot and no warm sandbox."""
    data_dir = Path(tempfile.mkdtemp(prefix="sandlot-bench-"))
    env = {**os.environ, "SANDLOT_DATA_DIR": str(data_dir), "SANDLOT_POOLS": "base=0:0"}
    with (data_dir / "output.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "sandlot.server"], env=env, stdout=log, stderr=log)
    try:
        client = Client(data_dir=data_dir, autostart=False)
        _wait(lambda: bool(client.templates.list()))
        _wait(lambda: client.pools.list()[0].snapshot is not None)
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


def create(rows: Rows, client: Client, template: str, column: int) -> None:
    """Create a sandbox, run a first command, and read its memory."""
    with rows.timed("create", column):
        sandbox = Sandbox.create(template=template, client=client)
    with sandbox:
        with rows.timed("first command", column):
            sandbox.commands.run("true")
        rows.rows["memory after it, MiB"][column].append(sandbox.usage().memory_bytes / MIB)


def start(rows: Rows, client: Client, memory: int, column: int) -> None:
    """Create a sandbox with a server, and wait until the server responds."""
    with rows.timed("create with a start command, ready", column), Sandbox.create(template="bench-server", client=client, memory=memory) as sandbox:
        assert sandbox.commands.run(READY).exit_code == 0


def main(arguments: list[str]) -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    rows = Rows()
    with service() as client:
        client.templates.build("bench-files", dockerfile=DOCKERFILE)
        client.templates.build("bench-server", dockerfile=SERVER, ready_command=READY, memory=1024 * MIB)
        for number in range(asked.rounds):
            variants = [("base", 0), ("bench-files", 1)]
            for template, column in variants if number % 2 else reversed(variants):
                create(rows, client, template, column)
            sizes = [((1025 + number) * MIB, 0), (1024 * MIB, 1)]
            for memory, column in sizes if number % 2 else reversed(sizes):
                start(rows, client, memory, column)
    sys.stdout.write((json.dumps(rows.rows) if asked.json else rows.table()) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
