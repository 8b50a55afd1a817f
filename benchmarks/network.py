"""Connections of sandboxes to a server outside: set-up, round trip and throughput, beside a direct connection of the host.

    .venv/bin/python -m benchmarks.network [--isolation gvisor,container] [--rounds 4] [--mib 256]

A service runs in a network namespace with a public address, and the server in another one, over a pair of virtual network cards. The same client
program runs in the namespace of the service (`direct`) and in a sandbox of each isolation, in turn. Prints medians over all rounds: the time of a
connection with one byte there and back, of one byte there and back on an open connection, and megabytes per second. With `--load`, also prints the
times of other calls to a sandbox while it downloads or uploads, and the memory of the service with 1,000 open connections.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from sandlot import Network, Sandbox
from tests.support.internet import RESOLVER, internet
from tests.support.internet_service import NETNS, RESOLV_CONF
from tests.support.localservice import LocalService, local_service

ADDRESS, NAME, PORT = "23.7.0.1", "server.example.com", 5000
CLIENT = """
import json, socket, sys, time
ECHO, DOWN, UP = b"\\x01", b"\\x02", b"\\x03"
host, work, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
def connect(first):
    connection = socket.create_connection((host, 5000))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(first)
    return connection
def median(times):
    return sorted(times)[len(times) // 2]
times = []
if work == "set-up":
    for _ in range(count):
        began = time.perf_counter()
        with connect(ECHO) as connection:
            connection.recv(1)
        times.append(time.perf_counter() - began)
    print(median(times) * 1e3)
elif work == "round trip":
    with connect(ECHO) as connection:
        connection.recv(1)
        for _ in range(count):
            began = time.perf_counter()
            connection.sendall(ECHO)
            connection.recv(1)
            times.append(time.perf_counter() - began)
    print(median(times) * 1e3)
elif work == "down":
    began = time.perf_counter()
    with connect(DOWN + b"%020d" % count) as connection:
        buffer, left = bytearray(1 << 18), count
        while left:
            size = connection.recv_into(buffer)
            if not size:
                raise SystemExit("the connection ended early")
            left -= size
    print(count / (time.perf_counter() - began) / 1e6)
elif work == "up":
    began, piece, left = time.perf_counter(), bytes(1 << 18), count
    with connect(UP + b"%020d" % count) as connection:
        while left:
            connection.sendall(piece[:left])
            left -= min(left, len(piece))
        connection.recv(1)
    print(count / (time.perf_counter() - began) / 1e6)
elif work == "hold":
    began = time.perf_counter()
    held = [connect(ECHO) for _ in range(count)]
    opened = time.perf_counter()
    for connection in held:
        connection.recv(1)
    print(json.dumps([opened - began, time.perf_counter() - opened]), flush=True)
    sys.stdin.readline()
"""
SERVER = """
import contextlib, select, socket, sys, threading
ECHO, DOWN, UP, STALL, REQUEST = b"\\x01", b"\\x02", b"\\x03", b"\\x04", b"G"
def wait_for_reset(connection):
    polled = select.poll()
    polled.register(connection, 0)
    polled.poll()
def serve(connection):
    with contextlib.suppress(ConnectionError), connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        buffer = bytearray(1 << 18)
        while kind := connection.recv(1):
            if kind == ECHO:
                connection.sendall(kind)
                continue
            if kind in {STALL, REQUEST}:
                if kind == REQUEST:
                    while b"\\r\\n\\r\\n" not in connection.recv(4096):
                        pass
                    connection.sendall(b"HTTP/1.1 200 OK\\r\\nX: " + b"x" * 60_000)
                wait_for_reset(connection)
                return
            left = int(connection.recv(20, socket.MSG_WAITALL))
            while left:
                if kind == DOWN:
                    left -= connection.send(memoryview(buffer)[:left])
                else:
                    size = connection.recv_into(buffer)
                    if not size:
                        return
                    left -= size
            if kind == UP:
                connection.sendall(ECHO)
listener = socket.socket(fileno=int(sys.argv[1]))
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
WORK = ("set-up", "round trip", "down", "up")
UNITS = {"set-up": "ms", "round trip": "ms", "down": "MB/s", "up": "MB/s"}


@contextlib.contextmanager
def running(isolations: list[str]) -> Iterator[tuple[LocalService, str]]:
    """Run a service and a server; yield the service and the path of its network namespace."""
    with internet({NAME: [ADDRESS]}) as net, tempfile.TemporaryDirectory() as folder:
        listener = net.listen(net.outside, ADDRESS, PORT)
        server = subprocess.Popen([sys.executable, "-c", SERVER, str(listener.fileno())], pass_fds=(listener.fileno(),))
        resolv_conf = Path(folder) / "resolv.conf"
        resolv_conf.write_text(f"nameserver {RESOLVER}\n")
        env = {NETNS: net.inside.path, RESOLV_CONF: str(resolv_conf), "SANDLOT_POOLS": "none"}
        try:
            with local_service(env, isolation=isolations[0], program="tests.support.internet_service", preloaded=False) as service:
                yield service, net.inside.path
        finally:
            server.kill()
            server.wait()


def in_sandbox(sandbox: Sandbox, work: str, count: int) -> float:
    """Run the client in a sandbox."""
    return float(sandbox.commands.run(["python3", "-c", CLIENT, NAME, work, str(count)], timeout=600).check().stdout)


def direct(namespace: str, work: str, count: int) -> float:
    """Run the client in the network namespace of the service."""
    done = subprocess.run(["nsenter", f"--net={namespace}", "python3", "-c", CLIENT, ADDRESS, work, str(count)], capture_output=True, check=True)
    return float(done.stdout)


def compare(arms: dict[str, Callable[[str, int], float]], rounds: int, mib: int) -> None:
    """Measure all arms in turn, and print medians."""
    counts = {"set-up": 200, "round trip": 300, "down": mib << 20, "up": mib << 20}
    found: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for work in WORK:
            for name, arm in arms.items():
                found.setdefault((work, name), []).append(arm(work, counts[work]))
    print(" " * 16 + "".join(f"{name:>24}" for name in arms))
    for work in WORK:
        cells = []
        for name in arms:
            values = found[work, name]
            cells.append(f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})")
        label = f"{work} {UNITS[work]}"
        print(f"{label:16}" + "".join(f"{cell:>24}" for cell in cells))


def load(service: LocalService, sandbox: Sandbox, isolation: str, mib: int) -> None:
    """Print the times of other calls during transfers, and the memory of the service with many connections."""

    def call_ms(count: int) -> float:
        times = []
        for _ in range(count):
            began_s = time.perf_counter()
            sandbox.files.stat("/workspace")
            times.append((time.perf_counter() - began_s) * 1e3)
        return statistics.median(times)

    idle_ms, memory = call_ms(200), resident_mib(service.pid)
    line = [f"stat {idle_ms:.2f} ms idle"]
    for work in ("down", "up"):
        transfer = threading.Thread(target=in_sandbox, args=(sandbox, work, mib << 22))
        transfer.start()
        time.sleep(0.5)
        line.append(f"{call_ms(200):.2f} {work}")
        transfer.join()
        line.append(f"service {resident_mib(service.pid) - memory:+.1f} MiB after {mib * 4} MiB")
    held = sandbox.commands.run(["python3", "-c", CLIENT, NAME, "hold", "1000"], background=True, stdin=True)
    opened_s, answered_s = json.loads(next(iter(held.output())).data)
    line.append(
        f"1,000 connections: opened in {opened_s:.2f} s, answered in {answered_s:.2f} s, service {resident_mib(service.pid) - memory:+.1f} MiB"
    )
    held.kill()
    print(f"{isolation}: " + ", ".join(line))


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isolation", default="gvisor,container", help="isolations to measure")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--mib", type=int, default=256, help="size of a transfer")
    parser.add_argument("--load", action="store_true", help="measure other calls and memory under load as well")
    options = parser.parse_args()
    isolations = options.isolation.split(",")
    with running(isolations) as (service, namespace), contextlib.ExitStack() as opened:
        network = Network("allowlist", allow=[f"{NAME}:*"])
        sandboxes = {name: opened.enter_context(service.create(isolation=name, network=network, timeout=3600)) for name in isolations}
        arms: dict[str, Callable[[str, int], float]] = {"direct": lambda work, count: direct(namespace, work, count)}
        for name, sandbox in sandboxes.items():
            arms[name] = lambda work, count, sandbox=sandbox: in_sandbox(sandbox, work, count)  # type: ignore[misc]
        compare(arms, options.rounds, options.mib)
        if options.load:
            for name, sandbox in sandboxes.items():
                load(service, sandbox, name, options.mib)


if __name__ == "__main__":
    main()
