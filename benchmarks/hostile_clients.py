"""Delays of the service's event loop, and the memory of the service, under hostile clients.

    .venv/bin/python benchmarks/hostile_clients.py [--seconds 5] [--only NAME]

A service without sandboxes runs in a process of its own, beside a task that sleeps for 2 ms again and again: the time by which it wakes late is the
delay of the loop. Each arm runs one attack from another process, while a client with its own key sends a request every 10 ms over one connection.
Prints median, p99 and maximum of both in milliseconds, the peak of the service's resident memory, and the share of a core that the attacker used.
"""

from __future__ import annotations

import argparse
import array
import asyncio
import base64
import contextlib
import gc
import json
import multiprocessing
import os
import re
import resource
import shutil
import socket
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import uvloop

from sandlot.host.service_cgroup import service_cgroup
from sandlot.server import log_config
from sandlot.server.composition import control_groups, open_service
from sandlot.server.process import serve_in_background
from sandlot.server.settings import Settings
from sandlot.web import listener

MIB = 1024 * 1024
TICK_S = 0.002
REQUEST_S = 0.01
CLIENTS = 16
JSON_BYTES = 8 * MIB - 1000
HEAD = "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{more}\r\n"
ROUTES = ("/v1/sandboxes", "/v1/sandboxes/sb-aaaa-aaaaaaaaaaaaaaaa/code", "/v1/files", "/e2b/sandboxes", "/mcp", "/healthz")
UPGRADE = "GET /v1/sandboxes/x/processes/x/terminal HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n{more}\r\n"

Samples = list[tuple[float, float]]
"""Time on the monotonic clock and seconds."""


# ------------------------------------------------------------------------------------------------------------------------- the service


def serve(pipe: Connection, folder: Path) -> None:
    """Run the service until the pipe has a message, and answer it with the delays of the loop."""
    log_config.configure("error", "json")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    uvloop.run(_serve(pipe, folder))


async def _serve(pipe: Connection, folder: Path) -> None:
    settings = replace(Settings(), data_dir=folder / "data", cache_dir=folder / "cache", pools=())
    times, delays = array.array("d"), array.array("d")

    async def tick() -> None:
        while True:
            began_s = time.monotonic()
            await asyncio.sleep(TICK_S)
            times.append(time.monotonic())
            delays.append(times[-1] - began_s - TICK_S)

    async with open_service(settings) as service:
        tcp = listener.tcp_socket("127.0.0.1", 0)
        keys = [(await service.api_keys.create(name))[1] for name in ("victim", "attacker")]
        # The control group of a service has ten times the weight of others, as in `server/process.py`.
        with service_cgroup(control_groups(), service.node.id):
            async with serve_in_background(service, [tcp]):
                gc.freeze()  # as in `server/process.py`
                pipe.send((tcp.getsockname()[1], *keys))
                ticking = asyncio.create_task(tick())
                await asyncio.to_thread(pipe.poll, None)
                ticking.cancel()
                pipe.send((times.tobytes(), delays.tobytes()))


# ------------------------------------------------------------------------------------------------------------------------- attacks


def _request(path: str, body: bytes, key: str = "") -> bytes:
    more = f"content-length: {len(body)}\r\n" + (f"x-api-key: {key}\r\n" if key else "")
    return HEAD.format(path=path, more=more).encode() + body


async def _exchange(port: int, *pieces: bytes, pause_s: float = 0.0, address: str = "") -> None:
    """Send pieces on a new connection, and read until it is closed or a response has arrived."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0) if address else None)
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause_s)
            await reader.readuntil(b"\r\n")
        finally:
            writer.transport.abort()


async def idle(port: int, _key: str, number: int) -> None:
    """Open connections and send nothing, 2,500 in all."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        opened = [await asyncio.open_connection("127.0.0.1", port, local_addr=(f"127.0.{number}.1", 0)) for _ in range(2500 // CLIENTS)]
        await asyncio.sleep(0.5)
        for _, writer in opened:
            writer.transport.abort()


async def slow_heads(port: int, _key: str, number: int) -> None:
    """Send heads byte by byte."""
    head = b"GET /healthz HTTP/1.1\r\nhost: " + b"x" * 1000
    await asyncio.gather(*(_exchange(port, *(bytes([each]) for each in head), pause_s=0.005, address=f"127.0.{number}.1") for _ in range(16)))


async def keyless_bodies(port: int, _key: str, number: int) -> None:
    """Send bodies of 64 MiB without a key."""
    body = bytes(MIB)
    head = HEAD.format(path=ROUTES[number % len(ROUTES)], more=f"content-length: {64 * MIB}\r\n").encode()
    await _exchange(port, head, *[body] * 64)


async def large_bodies(port: int, key: str, number: int) -> None:
    """Send JSON of 64 MiB with a key."""
    head = HEAD.format(path=ROUTES[number % len(ROUTES)], more=f"transfer-encoding: chunked\r\nx-api-key: {key}\r\n").encode()
    await _exchange(port, head, *[b"100000\r\n" + b" " * MIB + b"\r\n"] * 64)


def _json_attack(body: bytes) -> Callable[[int, str, int], Awaitable[None]]:
    async def attack(port: int, key: str, number: int) -> None:
        await _exchange(port, _request(ROUTES[number % len(ROUTES)], body, key))

    return attack


async def one_byte_chunks(port: int, key: str, number: int) -> None:
    """Send a body in chunks of one byte."""
    head = HEAD.format(path=ROUTES[number % len(ROUTES)], more=f"transfer-encoding: chunked\r\nx-api-key: {key}\r\n").encode()
    await _exchange(port, head, *[b"1\r\n \r\n" * 10_000] * 50)


async def websockets(port: int, key: str, _number: int) -> None:
    """Ask for WebSockets that do not exist."""
    more = f"sec-websocket-version: 13\r\nsec-websocket-key: {base64.b64encode(bytes(16)).decode()}\r\nx-api-key: {key}\r\n"
    await _exchange(port, UPGRADE.format(more=more).encode())


async def quiet(_port: int, _key: str, _number: int) -> None:
    """Do nothing."""
    await asyncio.sleep(0.1)


ATTACKS: dict[str, Callable[[int, str, int], Awaitable[None]]] = {
    "quiet": quiet,
    "2,500 idle connections": idle,
    "slow heads": slow_heads,
    "64 MiB without a key": keyless_bodies,
    "64 MiB with a key": large_bodies,
    "8 MiB of text": _json_attack(json.dumps({"code": "x" * JSON_BYTES}).encode()),
    "8 MiB of wide text": _json_attack(json.dumps({"code": "x" * JSON_BYTES + "\U0001f600"}, ensure_ascii=False).encode()),
    "8 MiB of escapes": _json_attack(b'{"code": "' + b"\\n" * (JSON_BYTES // 2) + b'"}'),
    "a million keys": _json_attack(b'{"metadata": {' + b",".join(b'"%d":""' % key for key in range(700_000)) + b"}}"),
    "24,000 keys": _json_attack(b'{"metadata": {' + b",".join(b'"%d":"%s"' % (key, b"x" * 100) for key in range(23_990)) + b"}}"),
    "deep lists": _json_attack(b"[" * JSON_BYTES),
    "64 KiB of keys": _json_attack(b'{"metadata": {' + b",".join(b'"%d":""' % key for key in range(6_500)) + b"}}"),
    "chunks of one byte": one_byte_chunks,
    "WebSocket upgrades": websockets,
}


def attack(pipe: Connection, name: str, port: int, key: str, until_s: float) -> None:
    """Run an attack from several clients until a time, and report its number and the processor time that it took."""

    async def repeat(number: int) -> int:
        count = 0
        while time.monotonic() < until_s:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, until_s - time.monotonic()) + 1):
                    await ATTACKS[name](port, key, number)
            count += 1
        return count

    async def run() -> int:
        return sum(await asyncio.gather(*(repeat(number) for number in range(1, CLIENTS + 1))))

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    count = asyncio.run(run())
    pipe.send((count, time.process_time()))


# ------------------------------------------------------------------------------------------------------------------------- the victim


def victim(port: int, key: str, until_s: float) -> Samples:
    """Return the durations of requests over one connection. A connection that was closed is a failure of the benchmark."""
    request = f"GET /v1/keys/current HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\n\r\n".encode()
    samples: Samples = []
    with socket.create_connection(("127.0.0.1", port)) as link, link.makefile("rb") as answers:
        while (began_s := time.monotonic()) < until_s:
            link.sendall(request)
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                line = answers.readline()
                assert line, "the service closed the connection"
                head += line
            found = re.search(rb"content-length: (\d+)", head.lower())
            assert found is not None, head
            answers.read(int(found[1]))
            assert head.startswith(b"HTTP/1.1 200"), head
            samples.append((began_s, time.monotonic() - began_s))
            time.sleep(REQUEST_S)
    return samples


def peak_mib(pid: int) -> int:
    """Return the peak of a process's resident memory since it was last reset, and reset it (proc(5), clear_refs)."""
    found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return 0 if found is None else int(found[1]) // 1024


def figures(values: Sequence[float]) -> str:
    """Return median, p99 and maximum in milliseconds."""
    ordered = sorted(values)
    return " ".join(f"{1000 * each:7.1f}" for each in (statistics.median(ordered), ordered[int(len(ordered) * 0.99)], ordered[-1]))


def main() -> None:
    """Run all arms and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--only", choices=ATTACKS, action="append")
    given = parser.parse_args()
    fork = multiprocessing.get_context("fork")
    folder = Path(tempfile.mkdtemp(prefix="sandlot-bench-"))
    pipe, other = fork.Pipe()
    service = fork.Process(target=serve, args=(other, folder))
    service.start()
    assert service.pid is not None
    arms: list[tuple[str, float, float, Samples, int, int, float]] = []
    try:
        port, victims_key, attackers_key = pipe.recv()
        for name in given.only or ATTACKS:
            peak_mib(service.pid)
            began_s = time.monotonic()
            until_s = began_s + given.seconds
            results, theirs = fork.Pipe()
            attacker = fork.Process(target=attack, args=(theirs, name, port, attackers_key, until_s))
            attacker.start()
            samples = victim(port, victims_key, until_s)
            count, cpu_s = results.recv()
            attacker.join()
            arms.append((name, began_s, until_s, samples, peak_mib(service.pid), count, cpu_s))
        pipe.send("end")
        times, delays = (array.array("d", each) for each in pipe.recv())
    finally:
        service.join(30)
        if service.is_alive():
            service.kill()
        shutil.rmtree(folder)
    print(f"{os.cpu_count()} cores, {given.seconds:g} s each, load {os.getloadavg()[0]:.1f}; milliseconds: median, p99, maximum")
    print(f"{'attack':24} {'delay of the loop':>23} {'request of another key':>24} {'peak MiB':>9} {'attacks':>8} {'cores':>6}")
    for name, began_s, until_s, samples, peak, count, cpu_s in arms:
        late = [delay for at, delay in zip(times, delays, strict=True) if began_s <= at <= until_s]
        took = [seconds for _, seconds in samples]
        print(f"{name:24} {figures(late)} {figures(took):>24} {peak:9} {count:8} {cpu_s / given.seconds:6.2f}")


if __name__ == "__main__":
    main()
