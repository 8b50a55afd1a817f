"""What a kernel costs: a warm cell, a new context from the spare, by a fork and from nothing, and the first import of pandas.

Every variant takes its turn in every round, on both kinds of isolation, so that what else the machine does falls on all of them alike. Medians
are what counts; ratios are between medians of this one run. ``--json`` prints the figures for programs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from sandlot.model.specs import DEFAULT_TEMPLATE
from sandlot.sdk import AsyncClient, AsyncSandbox, Execution

CALLS = 20
"""Warm cells, in each round."""
REFILL_S = 3.0
"""How long a sandbox is left alone, so that it has a spare again."""
ISOLATIONS = ("gvisor", "container")
PLAIN: Mapping[str, str] = {"OMP_NUM_THREADS": "1"}
"""An environment that must be there before anything is imported: such a kernel comes from no fork server."""

#: figure -> (what it is, the figure that it is compared with).
ONCE: dict[str, tuple[str, str | None]] = {
    "bare http": ("a request to a handler of a few lines, by the SDK's HTTP client", None),
    "native python": ("python3 -c 'print(1)' on the host", None),
}
EACH: dict[str, tuple[str, str | None]] = {
    "run_code": ("run_code('print(1)'), warm", "bare http"),
    "run_code, streamed": ("the same with on_stdout", "bare http"),
    "spare": ("contexts.create() and its first cell, out of the spare", "native python"),
    "fork": ("the same while there is no spare: forked from the fork server", "native python"),
    "direct": ("the same with an environment that must precede imports: started from nothing", "native python"),
    "import pandas, warmed": ("the first one of a context, imported by the fork server before", "{isolation} import pandas, plain"),
    "import pandas, plain": ("the first one of a context that was started from nothing", None),
}
FIGURES = ONCE | {
    f"{isolation} {name}": (what, beside.format(isolation=isolation) if beside else None)
    for isolation in ISOLATIONS
    for name, (what, beside) in EACH.items()
}


class Rounds:
    """Collected milliseconds by figure."""

    def __init__(self) -> None:
        self.values: dict[str, list[float]] = {name: [] for name in FIGURES}

    async def timed(self, name: str, work: Callable[[], Awaitable[object]]) -> None:
        """Do some work; how long it took."""
        began_s = time.perf_counter()
        await work()
        self.values[name].append((time.perf_counter() - began_s) * 1000)


@asynccontextmanager
async def server(argv: tuple[str, ...], socket: Path, env: Mapping[str, str]) -> AsyncIterator[None]:
    """A server of its own, while the body runs; it listens when that begins."""
    with (socket.parent / "service.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(*argv, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        while True:
            try:
                (await asyncio.open_unix_connection(str(socket)))[1].close()
            except OSError:
                assert process.returncode is None, f"it did not start: see {socket.parent}/service.log"
                await asyncio.sleep(0.01)
            else:
                break
        yield
    finally:
        process.terminate()
        await process.wait()


async def native() -> None:
    """A python on the host, from spawn to reaped."""
    process = await asyncio.create_subprocess_exec("/usr/bin/python3", "-c", "print(1)", stdout=subprocess.DEVNULL)
    await process.wait()


async def right(running: Awaitable[Execution]) -> Execution:
    """What came of a cell that must do well."""
    done = await running
    assert done.ok, done
    return done


async def new_context(box: AsyncSandbox, envs: Mapping[str, str] | None = None) -> str:
    """A context that has answered; its id."""
    made = await box.contexts.create(envs=envs)
    await right(box.run_code("print(1)", context=made))
    return made.id


async def kernels(rounds: Rounds, name: str, box: AsyncSandbox) -> None:
    """New contexts, and their first import of pandas."""
    await asyncio.sleep(REFILL_S)
    made: list[str] = []

    async def make(envs: Mapping[str, str] | None = None) -> None:
        made.append(await new_context(box, envs))

    await rounds.timed(f"{name} spare", make)
    await rounds.timed(f"{name} fork", make)  # the refill waits until the sandbox is idle
    await rounds.timed(f"{name} direct", lambda: make(PLAIN))
    for figure, context in (("warmed", made[0]), ("plain", made[2])):
        await rounds.timed(f"{name} import pandas, {figure}", lambda context=context: right(box.run_code("import pandas", context=context)))  # type: ignore[misc]
    for context in made:
        await box.contexts.delete(context)


async def measure(rounds: Rounds, count: int, folder: Path, template: str) -> None:
    """All figures, round by round."""
    env = {"SANDLOT_POOLS": "none", **os.environ, "SANDLOT_DATA_DIR": str(folder), "SANDLOT_ISOLATION_ALLOWED": ",".join(ISOLATIONS)}
    (folder / "bare").mkdir()
    bare = folder / "bare/sock"
    async with (
        server((sys.executable, "-P", "-m", "sandlot.server", "--local"), folder / "sandlot.sock", env),
        server((sys.executable, "-P", "-m", "sandlot.cli.bench.bare_http", str(bare), str(bare.parent)), bare, env),
        httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(bare)), base_url="http://x") as http,
        AsyncClient(data_dir=folder, autostart=False) as client,
    ):
        boxes: dict[str, AsyncSandbox] = {}
        try:
            for name in ISOLATIONS:
                boxes[name] = await AsyncSandbox.create(template, client=client, timeout=3600, isolation=name)
                await right(boxes[name].run_code("print(1)"))  # what only the first one pays for is in no figure
            for number in range(count):
                for _ in range(CALLS):
                    await rounds.timed("bare http", lambda: http.get("/"))
                    for name, box in boxes.items():
                        await rounds.timed(f"{name} run_code", lambda box=box: right(box.run_code("print(1)")))  # type: ignore[misc]
                        streamed = lambda box=box: right(box.run_code("print(1)", on_stdout=len))  # noqa: E731 - it is this box
                        await rounds.timed(f"{name} run_code, streamed", streamed)
                await rounds.timed("native python", native)
                for name, box in boxes.items():
                    await kernels(rounds, name, box)
                if sys.stderr.isatty():
                    print(f"\rround {number + 1} of {count}", end="\n" if number + 1 == count else "", file=sys.stderr, flush=True)
        finally:
            for box in boxes.values():
                await client.sandboxes.kill(box.id)


def summary(rounds: Rounds) -> dict[str, dict[str, float | int | str]]:
    """Median, least and most of each figure in milliseconds, and the ratio to what it is compared with."""
    medians = {name: statistics.median(values) for name, values in rounds.values.items()}

    def row(name: str, what: str, beside: str | None) -> dict[str, float | int | str]:
        values = rounds.values[name]
        told: dict[str, float | int | str] = {"what": what, "n": len(values), "median": round(medians[name], 3)}
        told |= {"min": round(min(values), 3), "max": round(max(values), 3)}
        return told | ({"beside": beside, "ratio": round(medians[name] / medians[beside], 2)} if beside else {})

    return {name: row(name, *figure) for name, figure in FIGURES.items()}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--n", type=int, default=5, help="rounds (default 5, about two minutes)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--template", default=DEFAULT_TEMPLATE, help=f"one with pandas (default {DEFAULT_TEMPLATE})")
    options = parser.parse_args()
    rounds, before = Rounds(), os.getloadavg()[0]
    # Not the system's default name, whose path may be too long for a unix socket (unix(7): 107 bytes).
    folder = Path(tempfile.mkdtemp(prefix="sandlot-bench-", dir="/tmp"))
    try:
        asyncio.run(measure(rounds, options.n, folder, options.template))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    told = summary(rounds)
    machine = f"cores {os.cpu_count()}  kernel {os.uname().release}  load before {before:.1f} after {os.getloadavg()[0]:.1f}"
    if options.json:
        print(json.dumps({"machine": machine, "figures": told}, indent=2))
        return
    print(f"{machine}  (ms)")
    print(f"{'':35}{'median':>9}{'min':>9}{'max':>9}{'n':>5}   ratio")
    for name, row in told.items():
        ratio = f"{row['ratio']:>7} x {row['beside']}" if "ratio" in row else ""
        print(f"{name:35}{row['median']:>9}{row['min']:>9}{row['max']:>9}{row['n']:>5} {ratio:44} {row['what']}")


if __name__ == "__main__":
    main()
