"""Response times of one key while another key attacks the service.

    .venv/bin/python benchmarks/fairness.py [--rounds 3] [--seconds 4] [--isolation gvisor] [ATTACK...]

Each attack has its own table. In each round, the calls of the victim are timed without the attack and during it. Figures are medians and 99th
percentiles of all rounds, and their ratios. ``idle`` is no attack: its ratios are the noise of the machine. ``processors`` keeps the attacker's
sandboxes busy and sends no requests: its ratios are the share of the processors that the limits of these sandboxes allow.

The attacker is a separate process on the same machine. It has the lowest priority, because the processors of a real attacker are those of
another machine. The last line of each table has the processor time that the attacker's process, its
sandboxes and the service used during the attack, in percent of one core.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from sandlot.protocol import frames
from sandlot.sdk import AsyncClient, Quota

SANDBOXES = 4
"""Sandboxes of the attacker."""
LIMITS = {"cpus": 0.25, "memory_bytes": 256 << 20, "disk_bytes": 1 << 30}
"""Limits of each of them."""
CONNECTIONS = 600
QUOTA = Quota(sandboxes=8)
"""A key without a quota may use the whole node, and leave no room for a sandbox of the other key."""
CREATES = 200
MIB = 1 << 20
FLOOD_FRAMES = frames.encode(frames.RESET, 1, b"") * 300
"""Frames of a stream that has ended. The service ignores each of them."""
FLOOD = f"""
import os
ends = [number for number in os.listdir("/proc/1/fd") if os.readlink("/proc/1/fd/" + number).startswith("host:")]
flood, link = bytes.fromhex({FLOOD_FRAMES.hex()!r}), os.open("/proc/1/fd/" + max(ends), os.O_WRONLY)
while True: os.write(link, flood)
"""
"""The link to the service is the last descriptor of the guest that is a pipe of the host."""

Attack = Callable[["Attacker"], Awaitable[None]]


@dataclass(frozen=True)
class Attacker:
    """The attacker's key and sandboxes."""

    http: httpx.AsyncClient
    port: int
    key: str
    sandboxes: Sequence[str]

    @property
    def head(self) -> str:
        """Fields of each request."""
        return f"host: x\r\nauthorization: Bearer {self.key}\r\n"

    async def storm(self, width: int, *requests: tuple[str, str, Any]) -> None:
        """Send requests without end, ``width`` at a time, and drop the responses."""

        async def send() -> None:
            for method, path, body in itertools.cycle(requests):
                content = {"json": body} if isinstance(body, dict) else {"content": body}
                with contextlib.suppress(httpx.HTTPError):
                    await self.http.request(method, path, **content)

        await asyncio.gather(*(send() for _ in range(width)))

    async def follow(self, code: str, *, user: str = "user") -> None:
        """Run a program in each sandbox, and read its output."""

        async def read(sandbox: str) -> None:
            body = {"argv": ["python3", "-c", code], "user": user, "timeout": 3600}
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    events = {"Accept": "text/event-stream"}
                    async with self.http.stream("POST", f"/v1/sandboxes/{sandbox}/processes", json=body, headers=events) as response:
                        async for _ in response.aiter_raw():
                            pass
                await asyncio.sleep(0.1)

        await asyncio.gather(*(read(sandbox) for sandbox in self.sandboxes))

    async def hold(self, count: int, talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> None:
        """Keep connections open, and open each of them again when it is closed."""

        async def one() -> None:
            while True:
                with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                    reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                    try:
                        await talk(reader, writer)
                    finally:
                        writer.close()
                await asyncio.sleep(0.05)

        await asyncio.gather(*(one() for _ in range(count)))


async def idle(_: Attacker) -> None:
    """Do nothing."""
    await asyncio.Event().wait()


async def processors(at: Attacker) -> None:
    """Use up the processor time of the sandboxes."""
    await at.follow("while True: pass")


async def connections(at: Attacker) -> None:
    """Open many connections with the key."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"GET /v1/sandboxes/{at.sandboxes[0]} HTTP/1.1\r\n{at.head}\r\n".encode())
        await reader.read()

    await at.hold(CONNECTIONS, talk)


async def heads(at: Attacker) -> None:
    """Send heads of requests without a key, one byte after the other."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del reader
        for byte in itertools.chain(b"GET / HTTP/1.1\r\nx: ", itertools.repeat(ord("x"))):
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.2)

    await at.hold(CONNECTIONS, talk)


async def bodies(at: Attacker) -> None:
    """Send large bodies of JSON."""
    body = json.dumps({"code": "'é'" + "#" * (7 * MIB)}, ensure_ascii=False).encode()
    many = json.dumps({"code": "1", "env": {str(number): "x" for number in range(23_000)}}).encode()
    path = f"/v1/sandboxes/{at.sandboxes[0]}/code"
    at.http.headers["content-type"] = "application/json"
    await at.storm(8, ("POST", path, body), ("POST", path, many))


async def creates(at: Attacker) -> None:
    """Create as many sandboxes as the service allows, and kill them."""

    async def create() -> None:
        while True:
            with contextlib.suppress(httpx.HTTPError):
                made = await at.http.post("/v1/sandboxes", json={"limits": LIMITS, "timeout": 60})
                if made.is_success:
                    await at.http.delete(f"/v1/sandboxes/{made.json()['id']}")
            await asyncio.sleep(0.1)

    await asyncio.gather(*(create() for _ in range(CREATES)))


async def output(at: Attacker) -> None:
    """Follow programs that print without end."""
    await at.follow("import os\nwhile True: os.write(1, b'x' * 65536)")


async def links(at: Attacker) -> None:
    """Flood the links of the sandboxes with the smallest frames."""
    await at.follow(FLOOD, user="root")


async def listings(at: Attacker) -> None:
    """List everything."""
    paths = [f"/v1/sandboxes/{at.sandboxes[0]}/files?path=/usr/bin", "/v1/sandboxes?limit=1000", "/v1/executions?limit=200", "/v1/events?limit=1000"]
    await at.storm(32, *(("GET", path, None) for path in paths))


async def webhooks(at: Attacker) -> None:
    """Cause events for many webhooks whose receiver is slow."""
    receiver = await asyncio.start_server(lambda *_: asyncio.sleep(5), "127.0.0.1", 0)
    port = receiver.sockets[0].getsockname()[1]
    hooks = [("POST", "/v1/webhooks", {"url": f"http://127.0.0.1:{port}/{number}"}) for number in range(10)]
    for method, path, body in hooks:
        await at.http.request(method, path, json=body)
    await at.storm(16, *(("PATCH", f"/v1/sandboxes/{sandbox}", {"metadata": {"n": str(n)}}) for n, sandbox in enumerate(at.sandboxes)))


async def uploads(at: Attacker) -> None:
    """Upload large files, into a sandbox and into the file store."""
    content = bytes(32 * MIB)
    paths = [("PUT", f"/v1/sandboxes/{sandbox}/files/content?path=/tmp/f") for sandbox in at.sandboxes]
    await at.storm(8, *((method, path, content) for method, path in paths), ("POST", "/v1/files?name=f", content))


ATTACKS: dict[str, Attack] = {
    attack.__name__: attack for attack in (idle, processors, connections, heads, bodies, creates, output, links, listings, webhooks, uploads)
}


async def attack(name: str, port: int, key: str, sandboxes: Sequence[str]) -> None:
    """Attack between two lines of standard input, again and again."""
    os.nice(19)
    loop = asyncio.get_running_loop()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    while await loop.run_in_executor(None, sys.stdin.readline):
        headers = {"Authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60, limits=limits) as http:
            attacking = asyncio.ensure_future(ATTACKS[name](Attacker(http, port, key, sandboxes)))
            await loop.run_in_executor(None, sys.stdin.readline)
            attacking.cancel()
            await asyncio.gather(attacking, return_exceptions=True)
        print("stopped", flush=True)


@dataclass
class Arm:
    """Times of the victim's calls in milliseconds, and the processor time of others in seconds."""

    times_ms: dict[str, list[float]] = field(default_factory=dict)
    processor_s: dict[str, float] = field(default_factory=dict)
    length_s: float = 0.0
    failures: int = 0


@dataclass(frozen=True)
class Victim:
    """A key with one sandbox."""

    http: httpx.AsyncClient
    sandbox: str

    async def call(self, arm: Arm, seconds: float) -> None:
        """Send calls one after the other, and time them."""
        path, ends_s = f"/v1/sandboxes/{self.sandbox}", time.perf_counter() + seconds
        for number in itertools.count():
            await self._time(arm, "run_code", "POST", f"{path}/code", {"code": "print(1)"})
            await self._time(arm, "command", "POST", f"{path}/processes", {"argv": ["/bin/true"]})
            await self._time(arm, "stat", "GET", f"{path}/files/stat?path=/etc/passwd")
            if number % 10 == 0:
                made = await self._time(arm, "create", "POST", "/v1/sandboxes", {"limits": LIMITS, "timeout": 60})
                if made is not None:
                    await self.http.delete(f"/v1/sandboxes/{made['id']}")
            if time.perf_counter() >= ends_s:
                return

    async def _time(self, arm: Arm, name: str, method: str, path: str, body: object = None) -> dict[str, Any] | None:
        began_s = time.perf_counter()
        try:
            response = await self.http.request(method, path, json=body)
        except httpx.HTTPError:
            response = None
        arm.times_ms.setdefault(name, []).append((time.perf_counter() - began_s) * 1000)
        if response is not None and response.is_success:
            found: dict[str, Any] = response.json()
            return found
        arm.failures += 1
        return None


def process_s(pid: int) -> float:
    """Return the processor time of a process."""
    values = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")


def sandbox_groups(id_: str) -> set[Path]:
    """Return the control groups of all sandboxes on the node of a sandbox."""
    groups, node = Path("/sys/fs/cgroup"), id_.split("-")[1]
    version_1 = groups / "cpuacct" / "sandlot"
    return {usage.parent for usage in ((version_1 if version_1.exists() else groups / "sandlot") / node).glob("*/cpu*.*")}


def group_s(group: Path) -> float:
    """Return the processor time of a control group, of either version."""
    if (usage := group / "cpuacct.usage").exists():
        return int(usage.read_text()) / 1e9
    return int((group / "cpu.stat").read_text().split()[1]) / 1e6


async def measure(name: str, service: int, port: int, keys: tuple[str, str], args: argparse.Namespace) -> tuple[Arm, Arm]:
    """Time the victim's calls with and without one attack."""
    quiet, attacked = Arm(), Arm()
    base = f"http://127.0.0.1:{port}"
    clients = [httpx.AsyncClient(base_url=base, headers={"Authorization": f"Bearer {key}"}, timeout=60) for key in keys]
    made: list[tuple[httpx.AsyncClient, str]] = []

    async def create(http: httpx.AsyncClient, **body: object) -> str:
        response = await http.post("/v1/sandboxes", json={"timeout": 3600, **body})
        assert response.is_success, response.text
        made.append((http, response.json()["id"]))
        return made[-1][1]

    try:
        victim = Victim(clients[1], await create(clients[1], limits={"disk_bytes": 1 << 30}))
        victims = sandbox_groups(victim.sandbox)
        sandboxes = [await create(clients[0], limits=LIMITS) for _ in range(SANDBOXES)]
        groups = sandbox_groups(victim.sandbox) - victims
        await victim.call(Arm(), 1)
        argv = (sys.executable, __file__, "--attack", name, "--port", str(port), "--key", keys[0], *sandboxes)
        attacker = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220 - a moment
        assert attacker.stdin is not None
        assert attacker.stdout is not None

        def used() -> dict[str, float]:
            return {"attacker": process_s(attacker.pid), "sandboxes": sum(map(group_s, groups)), "service": process_s(service)}

        try:
            for _ in range(args.rounds):
                await victim.call(quiet, args.seconds)
                print("start", file=attacker.stdin, flush=True)
                await asyncio.sleep(1)
                before, began_s = used(), time.perf_counter()
                await victim.call(attacked, args.seconds)
                attacked.length_s += time.perf_counter() - began_s
                for kind, now_s in used().items():
                    attacked.processor_s[kind] = attacked.processor_s.get(kind, 0.0) + now_s - before[kind]
                print("stop", file=attacker.stdin, flush=True)
                await asyncio.to_thread(attacker.stdout.readline)
                await asyncio.sleep(1)
        finally:
            attacker.kill()
            attacker.communicate()
    finally:
        for http, id_ in made:
            await http.delete(f"/v1/sandboxes/{id_}")
        for http in clients:
            await http.aclose()
    return quiet, attacked


def table(name: str, quiet: Arm, attacked: Arm) -> str:
    """Return the table of one attack."""
    lines = [f"{name:<12}{'n':>6}{'quiet':>9}{'attack':>9}{'ratio':>7}{'p99 quiet':>11}{'attack':>9}{'ratio':>7}"]
    for call, before in quiet.times_ms.items():
        after = attacked.times_ms[call]
        medians = statistics.median(before), statistics.median(after)
        p99 = [statistics.quantiles(times, n=100, method="inclusive")[-1] for times in (before, after)]
        lines.append(
            f"  {call:<10}{len(after):>6}{medians[0]:>9.1f}{medians[1]:>9.1f}{medians[1] / medians[0]:>7.2f}"
            f"{p99[0]:>11.1f}{p99[1]:>9.1f}{p99[1] / p99[0]:>7.2f}"
        )
    shares = ", ".join(f"{kind} {100 * spent_s / attacked.length_s:.0f} %" for kind, spent_s in attacked.processor_s.items())
    lines.append(f"  processors: {shares}; failed calls of the victim: {quiet.failures} quiet, {attacked.failures} attacked")
    return "\n".join(lines)


@contextlib.asynccontextmanager
async def service(folder: Path, isolation: str) -> AsyncIterator[tuple[int, int]]:
    """Start a service on TCP, and yield its process id and its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    env = {
        "SANDLOT_POOLS": "none",
        **os.environ,
        "SANDLOT_DATA_DIR": str(folder),
        "SANDLOT_ISOLATION_DEFAULT": isolation,
        "SANDLOT_ISOLATION_ALLOWED": isolation,
        "SANDLOT_NETWORK_PRIVATE": "127.0.0.1",
    }
    argv = (sys.executable, "-P", "-m", "sandlot.server", "--host", "127.0.0.1", "--port", str(port))
    with (folder / "service.log").open("ab") as log:
        process = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # noqa: ASYNC220 - a moment
    try:
        while True:
            try:
                (await asyncio.open_connection("127.0.0.1", port))[1].close()
                break
            except OSError:
                assert process.poll() is None, (folder / "service.log").read_text()
                await asyncio.sleep(0.05)
        yield process.pid, port
    finally:
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait)


async def run(args: argparse.Namespace) -> None:
    """Start a service with two keys, and measure each attack."""
    with tempfile.TemporaryDirectory(prefix="sandlot-fair-") as folder:
        async with service(Path(folder), args.isolation) as (pid, port), AsyncClient(data_dir=folder, autostart=False) as operator:
            keys = [(await operator.keys.create(name, quota=QUOTA)).key for name in ("attacker", "victim")]
            try:
                for name in args.names or ATTACKS:
                    print(table(name, *await measure(name, pid, port, (keys[0], keys[1]), args)), flush=True)
            finally:  # they would outlive the service
                for sandbox in await operator.sandboxes.list():
                    await operator.sandboxes.kill(sandbox.id)


def main() -> None:
    """Run the benchmark, or the attacker's process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="ATTACK", help=f"attacks to measure: {', '.join(ATTACKS)}; all of them by default")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each attack")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of each arm")
    parser.add_argument("--isolation", default="gvisor", help="isolation of all sandboxes")
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--key", help=argparse.SUPPRESS)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # leave nothing behind
    asyncio.run(attack(args.attack, args.port, args.key, args.names) if args.attack else run(args))


if __name__ == "__main__":
    main()
