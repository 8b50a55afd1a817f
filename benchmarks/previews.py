"""Requests to a server in a sandbox through a preview, beside the same client inside the sandbox and through a tunnel.

    .venv/bin/python -m benchmarks.previews [--isolation gvisor] [--rounds 6] [--mib 64]

The same client program runs in the sandbox (`inside`), on the host through the preview listener (`preview`) and on the host through
`sandbox.forward` (`forward`), in turn. Prints medians over all rounds, with the lowest and the highest one: the time of a request on a kept
connection, of a request on a new connection, of a WebSocket message there and back, and megabytes per second in both directions. Then prints the
memory of the service with 1,000 idle client connections, each of which has made a request.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

from sandlot import Network
from tests.support.localservice import LocalService, local_service

PORT = 8000
SERVER = """
import socket, threading
def serve(connection):
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream, piece = connection.makefile("rb"), bytes(1 << 18)
    with connection, stream:
        while line := stream.readline():
            fields = {}
            while (field := stream.readline()) != b"\\r\\n":
                name, _, value = field.partition(b":")
                fields[name.lower()] = value.strip()
            path = line.split()[1]
            if b"upgrade" in fields:
                connection.sendall(b"HTTP/1.1 101 Switch\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n\\r\\n")
                while data := stream.read1(65536):
                    connection.sendall(data)
                return
            left = int(fields.get(b"content-length", 0))
            while left:
                left -= len(stream.read1(min(left, 1 << 18)))
            count = int(path[6:]) if path.startswith(b"/down/") else 2
            connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % count)
            while count:
                count -= connection.send(memoryview(piece)[:count])
listener = socket.create_server(("127.0.0.1", 8000), backlog=128)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
CLIENT = """
import socket, sys, time
port, host, work, count = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
def connect():
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection
def head(line, *fields):
    return "\\r\\n".join([line + " HTTP/1.1", *host.split("|"), *fields, "", ""]).encode()
def receive(connection):
    data = b""
    while b"\\r\\n\\r\\n" not in data:
        data += connection.recv(65536) or exit("the connection ended early")
    start, _, body = data.partition(b"\\r\\n\\r\\n")
    if b" 101 " in start:
        return
    assert b" 200 " in start, data
    left = int(start.lower().split(b"content-length:")[1].split()[0]) - len(body)
    buffer = bytearray(1 << 18)
    while left:
        left -= connection.recv_into(buffer)
def median(times):
    return sorted(times)[len(times) // 2] * 1e3
times = []
if work == "kept":
    with connect() as connection:
        for number in range(count + 1):
            began = time.perf_counter()
            connection.sendall(head("GET /"))
            receive(connection)
            times.append(time.perf_counter() - began)
    print(median(times[1:]))
elif work == "new":
    for _ in range(count):
        began = time.perf_counter()
        with connect() as connection:
            connection.sendall(head("GET /"))
            receive(connection)
        times.append(time.perf_counter() - began)
    print(median(times))
elif work == "WebSocket":
    with connect() as connection:
        connection.sendall(head("GET /", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: x"))
        receive(connection)
        for _ in range(count):
            began = time.perf_counter()
            connection.sendall(b"\\x81\\x85maskhello")
            connection.recv(64)
            times.append(time.perf_counter() - began)
    print(median(times))
elif work == "down":
    with connect() as connection:
        began = time.perf_counter()
        connection.sendall(head(f"GET /down/{count}"))
        receive(connection)
        print(count / (time.perf_counter() - began) / 1e6)
elif work == "up":
    with connect() as connection:
        began = time.perf_counter()
        connection.sendall(head("POST /", f"Content-Length: {count}"))
        piece, left = bytes(1 << 18), count
        while left:
            connection.sendall(piece[:left])
            left -= min(left, len(piece))
        receive(connection)
        print(count / (time.perf_counter() - began) / 1e6)
"""
UNITS = {"kept": "ms", "new": "ms", "WebSocket": "ms", "down": "MB/s", "up": "MB/s"}
IDLE = 1000


def on_host(port: int, host: str, work: str, count: int) -> float:
    """Run the client on the host."""
    return float(subprocess.run([sys.executable, "-c", CLIENT, str(port), host, work, str(count)], capture_output=True, check=True).stdout)


def compare(arms: dict[str, Callable[[str, int], float]], rounds: int, mib: int) -> None:
    """Measure all arms in turn, and print medians."""
    counts = {"kept": 300, "new": 100, "WebSocket": 300, "down": mib << 20, "up": mib << 20}
    found: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for work, count in counts.items():
            for name, arm in arms.items():
                found.setdefault((work, name), []).append(arm(work, count))
    print(" " * 16 + "".join(f"{name:>26}" for name in arms))
    for work, unit in UNITS.items():
        cells = [f"{statistics.median(found[work, name]):.2f} ({min(found[work, name]):.2f} to {max(found[work, name]):.2f})" for name in arms]
        print(f"{f'{work} {unit}':16}" + "".join(f"{cell:>26}" for cell in cells))


def hold(service: LocalService, port: int, host: str) -> None:
    """Print the memory of the service with many idle connections, and the time of a request beside them."""
    head = "\r\n".join(["GET / HTTP/1.1", *host.split("|"), "", ""]).encode()
    before_mib, began_s = resident_mib(service.pid), time.perf_counter()
    with ExitStack() as opened:
        for _ in range(IDLE):
            connection = opened.enter_context(socket.create_connection(("127.0.0.1", port)))
            connection.sendall(head)
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        took_s, memory_mib = time.perf_counter() - began_s, resident_mib(service.pid) - before_mib
        beside_ms = on_host(port, host, "kept", 300)
    print(f"{IDLE} idle connections: opened in {took_s:.1f} s, service {memory_mib:+.1f} MiB, a request beside them {beside_ms:.2f} ms")


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isolation", default="gvisor")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--mib", type=int, default=64, help="size of a transfer")
    options = parser.parse_args()
    settings = {"SANDLOT_POOLS": "none", "SANDLOT_LOG_LEVEL": "warning", "SANDLOT_MAX_CONNECTIONS": str(5 * IDLE)}
    with (
        local_service(settings, isolation=options.isolation, preloaded=False) as service,
        service.create(network=Network("none"), timeout=3600) as sandbox,
    ):
        sandbox.commands.run(["python3", "-c", SERVER], background=True)
        while not any(each.port == PORT for each in sandbox.ports()):
            time.sleep(0.05)
        url = urlsplit(sandbox.get_url(PORT))
        port, host = url.port or 0, f"Host: {url.netloc}|X-Sandlot-Preview-Token: {url.query.partition('=')[2]}"
        with sandbox.forward(PORT) as forward:
            arms: dict[str, Callable[[str, int], float]] = {
                "inside": lambda work, count: float(
                    sandbox.commands.run(["python3", "-c", CLIENT, str(PORT), "Host: localhost", work, str(count)], timeout=600).check().stdout
                ),
                "preview": lambda work, count: on_host(port, host, work, count),
                "forward": lambda work, count: on_host(forward.local_port, "Host: localhost", work, count),
            }
            compare(arms, options.rounds, options.mib)
        hold(service, port, host)


if __name__ == "__main__":
    main()
