"""A sandbox that misuses its connections: its neighbour's calls and transfers, the memory of the service, and the time of a policy change.

    .venv/bin/python -m benchmarks.hostile_network [ATTACK...] [--isolation gvisor] [--rounds 3] [--mib 64]

A service runs in a network namespace with a public address, and a server in another one, as in `benchmarks/network.py`. One sandbox attacks, and
another one works, with and without the attack in turn. Prints medians over all rounds with their ratio, and the most resident memory of the
service. `processors` only uses up the processor time of its sandbox, for comparison. `policy` is no attack: with 1,024 open connections,
a policy of 1,000 rules replaces the one that allows them.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.network import NAME, PORT, in_sandbox, resident_mib, running
from sandlot import Network, Sandbox
from tests.support.localservice import LocalService

CONNECTIONS, RULES = 1024, 1000
ATTACKER = f"""
import resource, selectors, socket, sys, threading, time
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
attack, host, count, port = sys.argv[1], "{NAME}", {CONNECTIONS}, {PORT}
REQUEST = b"GET / HTTP/1.1\\r\\nHost: {NAME}:{PORT}\\r\\nX: x\\r\\n"
def connect(first):
    connection = socket.create_connection((host, port))
    connection.sendall(first)
    return connection
def flood(first, data):
    "Open all connections, and send on each of them until nothing more is taken. Open those that are cut again."
    selector, left = selectors.DefaultSelector(), dict()
    def add():
        connection = connect(first)
        connection.setblocking(False)
        left[connection] = memoryview(data)
        selector.register(connection, selectors.EVENT_WRITE if data else selectors.EVENT_READ)
    def drop(connection):
        selector.unregister(connection)
        connection.close()
        del left[connection]
    while True:
        while len(left) < count:
            try:
                add()
            except OSError:
                time.sleep(0.01)
        if not getattr(flood, "is_told", False):
            flood.is_told = True
            print("open", flush=True)
        for key, _ in selector.select(1):
            connection = key.fileobj
            try:
                if left[connection]:
                    left[connection] = left[connection][connection.send(left[connection][:65536]):]
                elif not data and connection.recv(65536):
                    continue
                else:
                    selector.modify(connection, selectors.EVENT_READ)
                    if not connection.recv(1):
                        drop(connection)
            except BlockingIOError:
                pass
            except OSError:
                drop(connection)
if attack == "unread":
    flood(b"\\x04", bytes(1 << 20))
elif attack == "requests":
    flood(b"", REQUEST + b"Y: " + bytes([121]) * 60000)
elif attack == "responses":
    flood(REQUEST + b"\\r\\n", b"")
elif attack == "processors":
    print("open", flush=True)
    while True:
        pass
elif attack == "downloads":
    held = [connect(b"\\x02%020d" % (1 << 30)) for _ in range(count)]
    print("open", flush=True)
    threading.Event().wait()
elif attack == "opens":
    def work():
        while True:
            try:
                with connect(b"\\x01") as connection:
                    connection.recv(1)
            except OSError:
                time.sleep(0.01)
    for _ in range(64):
        threading.Thread(target=work, daemon=True).start()
    print("open", flush=True)
    threading.Event().wait()
elif attack == "policy":
    held = [connect(b"\\x01") for _ in range(count)]
    for connection in held:
        connection.recv(1)
    print("open", flush=True)
    for connection in held:
        try:
            connection.recv(1)
        except OSError:
            pass
    print("reset", flush=True)
"""
ATTACKS = ("processors", "unread", "downloads", "requests", "responses", "opens")


@dataclass
class Arm:
    """Measurements of the neighbour by name, and the most memory of the service."""

    found: dict[str, list[float]] = field(default_factory=dict)
    memory_mib: float = 0.0


def measure(service: LocalService, neighbour: Sandbox, arm: Arm, mib: int) -> None:
    """Add the measurements of one round."""

    def add(name: str, value: float) -> None:
        arm.found.setdefault(name, []).append(value)
        arm.memory_mib = max(arm.memory_mib, resident_mib(service.pid))

    for _ in range(100):
        add("stat ms", stat_ms(neighbour))
    for work, unit, count in (("set-up", "ms", 100), ("round trip", "ms", 200), ("down", "MB/s", mib << 20), ("up", "MB/s", mib << 20)):
        add(f"{work} {unit}", in_sandbox(neighbour, work, count))


def stat_ms(sandbox: Sandbox) -> float:
    """Return the milliseconds of one call."""
    began_s = time.perf_counter()
    sandbox.files.stat("/workspace")
    return (time.perf_counter() - began_s) * 1e3


@contextmanager
def attacking(attacker: Sandbox, attack: str) -> Iterator[Iterator[str]]:
    """Run an attack, from the time on at which its connections are open."""
    process = attacker.commands.run(["python3", "-c", ATTACKER, attack], background=True)
    lines = (part.data.decode().strip() for part in process.output())
    try:
        first = next(lines)
        assert first == "open", first
        yield lines
    finally:
        process.kill()


def socket_mib() -> float:
    """Return the memory of all TCP sockets of the machine, as the kernel counts it."""
    words = next(line for line in Path("/proc/net/sockstat").read_text().splitlines() if line.startswith("TCP:")).split()
    return int(words[words.index("mem") + 1]) * 4096 / 2**20


def compare(service: LocalService, attacker: Sandbox, neighbour: Sandbox, attack: str, options: argparse.Namespace) -> None:
    """Measure with and without an attack in turn, and print the table."""
    quiet, attacked = Arm(), Arm()
    sockets_mib = 0.0
    for _ in range(options.rounds):
        measure(service, neighbour, quiet, options.mib)
        with attacking(attacker, attack):
            time.sleep(3)
            sockets_mib = max(sockets_mib, socket_mib())
            measure(service, neighbour, attacked, options.mib)
    print(f"{attack:<16}{'quiet':>10}{'attack':>10}{'ratio':>8}")
    for name, values in quiet.found.items():
        medians = statistics.median(values), statistics.median(attacked.found[name])
        print(f"  {name:<14}{medians[0]:>10.2f}{medians[1]:>10.2f}{medians[1] / medians[0]:>8.2f}")
    print(
        f"  service {quiet.memory_mib:.0f} MiB, {attacked.memory_mib:.0f} MiB with the attack; TCP of the machine {sockets_mib:.0f} MiB", flush=True
    )


def change(attacker: Sandbox, neighbour: Sandbox, rounds: int) -> None:
    """Print the time of a policy change with many connections and rules, and the neighbour's calls meanwhile."""
    allowed = Network("allowlist", allow=[f"{NAME}:*"])
    others = Network("allowlist", allow=[f"**.zone{number}.example.org" for number in range(RULES)])
    cut_ms, call_ms, idle_ms, meanwhile_ms = [], [], [stat_ms(neighbour) for _ in range(200)], []
    for _ in range(rounds):
        attacker.update(network=allowed)
        with attacking(attacker, "policy") as lines:
            has_ended = threading.Event()
            calls: list[float] = []

            def call(has_ended: threading.Event = has_ended, calls: list[float] = calls) -> None:
                while not has_ended.is_set():
                    calls.append(stat_ms(neighbour))

            calling = threading.Thread(target=call)
            calling.start()
            began_s = time.perf_counter()
            attacker.update(network=others)
            call_ms.append((time.perf_counter() - began_s) * 1e3)
            assert next(lines) == "reset"
            cut_ms.append((time.perf_counter() - began_s) * 1e3)
            has_ended.set()
            calling.join()
            meanwhile_ms += calls
    attacker.update(network=allowed)
    cut = f"{statistics.median(cut_ms):.0f} ms ({min(cut_ms):.0f} to {max(cut_ms):.0f})"
    print(f"policy: {CONNECTIONS} connections reset {cut} after the update to {RULES} rules, response after {statistics.median(call_ms):.0f} ms")
    for name, values in (("idle", idle_ms), ("meanwhile", meanwhile_ms)):
        print(f"  the neighbour's stat {name}: {statistics.median(values):.2f} ms, at most {max(values):.1f} ms", flush=True)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help=f"of {', '.join(ATTACKS)}, policy; all of them by default")
    parser.add_argument("--isolation", default="gvisor")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mib", type=int, default=64, help="size of a transfer")
    options = parser.parse_args()
    for attack in options.attacks or (*ATTACKS, "policy"):
        with running([options.isolation]) as (service, _), ExitStack() as opened:
            network = Network("allowlist", allow=[f"{NAME}:*"])
            attacker, neighbour = (opened.enter_context(service.create(network=network, memory="2G", timeout=3600)) for _ in range(2))
            if attack == "policy":
                change(attacker, neighbour, options.rounds)
            else:
                compare(service, attacker, neighbour, attack, options)


if __name__ == "__main__":
    main()
