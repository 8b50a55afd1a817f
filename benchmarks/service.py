"""What a service costs: requests, runs alone and sixteen at a time, transfers, a restart; each beside the same without Sandlot.

Every variant takes its turn in every round, so that what else the machine does falls on all of them alike. Medians are what counts;
ratios are between medians of this one run. ``--json`` prints the figures for programs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from sandlot.sdk import AsyncClient, AsyncSandbox

MB = 1_000_000
REQUESTS = 200
"""Of those that do nothing, in each round."""
CALLS = 20
"""Of those that run something, in each round."""
IN_FLIGHT = 16
TRANSFER_BYTES = 100 * MB
LARGE_BYTES = 1000 * MB
PIECE = bytes(range(256)) * 256
ISOLATIONS = ("gvisor", "container")
PYTHON = ("/usr/bin/python3", "-c", "print(1)")
TRUE = ("/bin/true",)

#: figure -> (unit, what it is, the figure that it is compared with).
ONCE: dict[str, tuple[str, str, str | None]] = {
    "bare http": ("ms", "a request to a handler of a few lines on the same server", None),
    "http": ("ms", "GET /healthz", "bare http"),
    "http core": ("ms", "GET /v1/sandboxes: who asks, and a list", "bare http"),
    "native python": ("ms", "python3 -c 'print(1)' on the host", None),
    "native spawn": ("ms", "/bin/true on the host", None),
    "native python x16": ("ms", "each of 16 at a time", None),
    "native spawn x16": ("ms", "each of 16 at a time", None),
    "bare upload": ("MB/s", "100 MB into a file of the host, through the same server", None),
    "bare download": ("MB/s", "the same file back", None),
}
EACH: dict[str, tuple[str, str, str | None]] = {
    "run_code": ("ms", "run_code('print(1)')", "native python"),
    "commands.run": ("ms", "commands.run('true')", "native spawn"),
    "run_code x16": ("ms", "each of 16 at a time, in one kernel", "native python x16"),
    "commands.run x16": ("ms", "each of 16 at a time, in one sandbox", "native spawn x16"),
    "upload": ("MB/s", "100 MB into a sandbox", "bare upload"),
    "download": ("MB/s", "the same file back", "bare download"),
    "run_code p99": ("ms", "the slowest of a hundred, while nothing else is done", None),
    "run_code p99, upload": ("ms", "the same during an upload of 1 GB into another sandbox", "{isolation} run_code p99"),
    "restart": ("ms", "SIGKILL, a new start, and an answer from inside of a sandbox that lived on", None),
}


def figures() -> dict[str, tuple[str, str, str | None]]:
    """All of them; what is measured for each kind of isolation has its name in front."""
    each = {
        f"{isolation} {name}": (unit, what, beside.format(isolation=isolation) if beside else None)
        for isolation in ISOLATIONS
        for name, (unit, what, beside) in EACH.items()
    }
    return ONCE | each


FIGURES = figures()


class Rounds:
    """Collected values by figure."""

    def __init__(self) -> None:
        self.values: dict[str, list[float]] = {name: [] for name in FIGURES}

    async def timed(self, name: str, work: Callable[[], Awaitable[object]], share: int = 1) -> None:
        """Do some work; its milliseconds, or a share of them."""
        began_s = time.perf_counter()
        await work()
        self.values[name].append((time.perf_counter() - began_s) * 1000 / share)

    async def moved(self, name: str, size_bytes: int, work: Callable[[], Awaitable[object]]) -> None:
        """Move some bytes; megabytes in a second."""
        began_s = time.perf_counter()
        await work()
        self.values[name].append(size_bytes / MB / (time.perf_counter() - began_s))


class Wire:
    """One connection that is kept, and as little of a client as can be, so that the server is what is measured."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
        self._reader = reader
        self._writer = writer
        self._request = f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode()

    async def ask(self) -> None:
        """A request and its whole answer."""
        self._writer.write(self._request)
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        assert head.startswith(b"http/1.1 200")
        await self._reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))

    def close(self) -> None:
        """Hang up."""
        self._writer.close()


@dataclass
class Process:
    """A server that was started here."""

    argv: tuple[str, ...]
    socket: Path
    env: dict[str, str]
    popen: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Start it, and wait until it listens."""
        with (self.socket.parent / "service.log").open("ab") as log:
            self.popen = subprocess.Popen(self.argv, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # noqa: ASYNC220 - a moment
        while True:
            try:
                (await asyncio.open_unix_connection(str(self.socket)))[1].close()
            except OSError:
                assert self.popen.poll() is None, f"it did not start: see {self.socket.parent}/service.log"
                await asyncio.sleep(0.005)
            else:
                return

    async def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it."""
        if self.popen is not None:
            self.popen.send_signal(number)
            await asyncio.to_thread(self.popen.wait)


async def native(argv: tuple[str, ...]) -> None:
    """A program on the host, from spawn to reaped."""
    await asyncio.to_thread(subprocess.run, argv, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def at_once(work: Callable[[], Awaitable[object]], count: int = IN_FLIGHT) -> Callable[[], Awaitable[object]]:
    """So many of it at a time."""

    async def all_of_them() -> None:
        await asyncio.gather(*(work() for _ in range(count)))

    return all_of_them


async def requests(rounds: Rounds, service: Process, bare: Process) -> None:
    """Those that do nothing."""
    wires = {
        name: Wire(*await asyncio.open_unix_connection(str(server.socket)), path)
        for name, server, path in (("bare http", bare, "/"), ("http", service, "/healthz"), ("http core", service, "/v1/sandboxes"))
    }
    for wire in wires.values():
        await wire.ask()
    for _ in range(REQUESTS):
        for name, wire in wires.items():
            await rounds.timed(name, wire.ask)
    for wire in wires.values():
        wire.close()


async def runs(rounds: Rounds, boxes: dict[str, AsyncSandbox]) -> None:
    """Code and commands, one after the other and sixteen at a time."""
    for _ in range(CALLS):
        await rounds.timed("native python", lambda: native(PYTHON))
        await rounds.timed("native spawn", lambda: native(TRUE))
        for name, box in boxes.items():
            await rounds.timed(f"{name} run_code", lambda box=box: box.run_code("print(1)"))  # type: ignore[misc]
            await rounds.timed(f"{name} commands.run", lambda box=box: box.commands.run("true"))  # type: ignore[misc]
    await rounds.timed("native python x16", at_once(lambda: native(PYTHON)), IN_FLIGHT)
    await rounds.timed("native spawn x16", at_once(lambda: native(TRUE)), IN_FLIGHT)
    for name, box in boxes.items():
        await rounds.timed(f"{name} run_code x16", at_once(lambda box=box: box.run_code("print(1)")), IN_FLIGHT)  # type: ignore[misc]
        await rounds.timed(f"{name} commands.run x16", at_once(lambda box=box: box.commands.run("true")), IN_FLIGHT)  # type: ignore[misc]


async def content(size_bytes: int) -> AsyncIterator[bytes]:
    """A body of that size."""
    for _ in range(0, size_bytes, len(PIECE)):
        yield PIECE


async def put(http: httpx.AsyncClient, url: str, size_bytes: int) -> None:
    """Upload."""
    size_bytes = -(-size_bytes // len(PIECE)) * len(PIECE)
    answer = await http.put(url, content=content(size_bytes), headers={"Content-Length": str(size_bytes)})
    assert answer.is_success, answer.text


async def get(http: httpx.AsyncClient, url: str) -> None:
    """Download, and throw away."""
    async with http.stream("GET", url) as answer:
        assert answer.is_success
        taken = 0
        async for piece in answer.aiter_raw():
            taken += len(piece)
        assert taken >= TRANSFER_BYTES


@asynccontextmanager
async def http_to(server: Process) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server."""
    async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(server.socket)), base_url="http://x", timeout=600) as http:
        yield http


def content_of(box: AsyncSandbox) -> str:
    """The address of a file in a sandbox."""
    return f"/v1/sandboxes/{box.id}/files/content?path=/workspace/file"


async def transfers(rounds: Rounds, service: Process, bare: Process, boxes: dict[str, AsyncSandbox]) -> None:
    """100 MB there and back."""
    async with http_to(service) as ours, http_to(bare) as theirs:
        await rounds.moved("bare upload", TRANSFER_BYTES, lambda: put(theirs, "/file", TRANSFER_BYTES))
        await rounds.moved("bare download", TRANSFER_BYTES, lambda: get(theirs, "/file"))
        for name, box in boxes.items():
            url = content_of(box)
            await rounds.moved(f"{name} upload", TRANSFER_BYTES, lambda url=url: put(ours, url, TRANSFER_BYTES))  # type: ignore[misc]
            await rounds.moved(f"{name} download", TRANSFER_BYTES, lambda url=url: get(ours, url))  # type: ignore[misc]
            await box.files.remove("/workspace/file")


async def crowded(rounds: Rounds, service: Process, boxes: dict[str, AsyncSandbox], others: dict[str, AsyncSandbox]) -> None:
    """The slowest cells of a hundred, alone and beside a large upload."""
    for name, box in boxes.items():
        for figure in ("run_code p99", "run_code p99, upload"):
            taken: list[float] = []
            async with http_to(service) as http:
                upload = asyncio.create_task(put(http, content_of(others[name]), LARGE_BYTES)) if "upload" in figure else None
                while len(taken) < 100 or (upload is not None and not upload.done()):
                    began_s = time.perf_counter()
                    await box.run_code("print(1)")
                    taken.append((time.perf_counter() - began_s) * 1000)
                if upload is not None:
                    await upload
            rounds.values[f"{name} {figure}"].append(statistics.quantiles(taken, n=100)[-1])
        await others[name].files.remove("/workspace/file")


async def restarts(rounds: Rounds, service: Process, boxes: dict[str, AsyncSandbox]) -> None:
    """From the end of one service to the first answer out of a sandbox of its."""
    for name, box in boxes.items():

        async def back(box: AsyncSandbox = box) -> None:
            await service.end(signal.SIGKILL)
            await service.start()
            async with http_to(service) as http:
                while not (answer := await http.post(f"/v1/sandboxes/{box.id}/processes", json={"command": "true"})).is_success:
                    assert answer.status_code == 503, answer.text
                    await asyncio.sleep(0.005)

        await rounds.timed(f"{name} restart", back)


async def measure(rounds: Rounds, count: int, folder: Path) -> None:
    """All figures, round by round."""
    env = {
        "SANDLOT_POOLS": "none",
        **os.environ,
        "SANDLOT_DATA_DIR": str(folder),
        "SANDLOT_ISOLATION_ALLOWED": ",".join(ISOLATIONS),
        "SANDLOT_UPLOAD_MAX_BYTES": str(2 << 30),
    }
    service = Process((sys.executable, "-P", "-m", "sandlot.server", "--local"), folder / "sandlot.sock", env)
    (folder / "bare").mkdir()
    argv = (sys.executable, "-P", "-m", "sandlot.cli.bench.bare_http", str(folder / "bare/sock"), str(folder / "bare"))
    bare = Process(argv, folder / "bare/sock", env)
    await service.start()
    await bare.start()
    try:
        async with AsyncClient(data_dir=folder, autostart=False) as client:
            boxes, others = [
                {name: await AsyncSandbox.create("base", client=client, timeout=3600, isolation=name, disk="2G") for name in ISOLATIONS}
                for _ in range(2)
            ]
            try:
                for box in boxes.values():  # what only the first one pays for is in no figure
                    await box.run_code("print(1)")
                    await box.commands.run("true")
                for number in range(count):
                    await requests(rounds, service, bare)
                    await runs(rounds, boxes)
                    await transfers(rounds, service, bare, boxes)
                    if number < 3:
                        await crowded(rounds, service, boxes, others)
                    await client.aclose()
                    await restarts(rounds, service, boxes)
                    if sys.stderr.isatty():
                        print(f"\rround {number + 1} of {count}", end="\n" if number + 1 == count else "", file=sys.stderr, flush=True)
            finally:
                for box in (*boxes.values(), *others.values()):
                    await client.sandboxes.kill(box.id)
    finally:
        await bare.end()
        await service.end()


def summary(rounds: Rounds) -> dict[str, dict[str, float | int | str]]:
    """Median, least and most of each figure, and the ratio to what it is compared with: above 1 is slower."""
    medians = {name: statistics.median(values) for name, values in rounds.values.items()}

    def row(name: str, unit: str, what: str, beside: str | None) -> dict[str, float | int | str]:
        values = rounds.values[name]
        told: dict[str, float | int | str] = {"what": what, "unit": unit, "n": len(values)}
        told |= {"median": round(medians[name], 3), "min": round(min(values), 3), "max": round(max(values), 3)}
        if beside:
            ratio = medians[name] / medians[beside] if unit == "ms" else medians[beside] / medians[name]
            told |= {"beside": beside, "ratio": round(ratio, 2)}
        return told

    return {name: row(name, *figure) for name, figure in FIGURES.items()}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--n", type=int, default=5, help="rounds (default 5, about two minutes)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    rounds, before = Rounds(), os.getloadavg()[0]
    # Not the system's default name, whose path may be too long for a unix socket (unix(7): 107 bytes).
    folder = Path(tempfile.mkdtemp(prefix="sandlot-bench-", dir="/tmp"))
    try:
        asyncio.run(measure(rounds, options.n, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    told = summary(rounds)
    machine = f"cores {os.cpu_count()}  kernel {os.uname().release}  load before {before:.1f} after {os.getloadavg()[0]:.1f}"
    if options.json:
        print(json.dumps({"machine": machine, "figures": told}, indent=2))
        return
    print(machine)
    print(f"{'':31}{'median':>9}{'min':>9}{'max':>9}{'':>6}{'n':>5}   ratio")
    for name, row in told.items():
        ratio = f"{row['ratio']:>7} x {row['beside']}" if "ratio" in row else ""
        print(f"{name:31}{row['median']:>9}{row['min']:>9}{row['max']:>9}{row['unit']:>6}{row['n']:>5} {ratio:34} {row['what']}")


if __name__ == "__main__":
    main()
