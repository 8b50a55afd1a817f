"""What the protocol itself costs: two connections in one process, no pipe, no kernel, no sandbox.

    .venv/bin/python benchmarks/protocol.py [--rounds 7]

Every figure takes its turn in every round; medians are printed. The guest's side runs on the same interpreter but inside of
gVisor, where arithmetic costs the same; so a figure here is what the link could reach if system calls were free.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

from sandlot.protocol import events, values
from sandlot.protocol.connection import GUEST, HOST, Connection

MB = 1_000_000
BULK_BYTES = 64 * MB
CHUNK_BYTES = 64 * 1024
LINES = 20_000
CALLS = 2_000
START: dict[str, object] = {"argv": ["/bin/true"], "env": {}, "cwd": None, "user": "user", "stdin": False, "timeout_s": 60.0, "attach": True}
RESULT = {"process": "0" * 32, "pid": 7, "reason": "exited", "exit_code": 0, "signal": None, "duration_s": 0.1}
ENTRY = {"name": "file", "path": "/f", "kind": "file", "size": 1, "mode": 420, "uid": 1000, "gid": 1000, "modified_ns": 1 << 60, "target": None}


def pair() -> tuple[Connection, Connection]:
    """A host and a guest that have greeted."""
    host, guest = Connection(HOST), Connection(GUEST, asleep=False)
    host.hello(os.urandom(16))
    to_guest(host, guest)
    host.receive(guest.next_batch())
    return host, guest


def to_guest(host: Connection, guest: Connection) -> list[events.Event]:
    """Frame by frame, as the host writes them."""
    happened = []
    while (frame := host.next_frame()) is not None:
        happened += guest.receive(frame)
    host.take_events()
    return happened


def download() -> float:
    """Output of a process: megabytes a second from the guest to the host."""
    host, guest = pair()
    stream = host.open({})
    to_guest(host, guest)
    chunk, sent, got = bytes(CHUNK_BYTES), 0, 0
    began_s = time.perf_counter()
    while got < BULK_BYTES:
        while sent < BULK_BYTES and guest.room(stream):
            guest.send_bytes(stream, 1, chunk)
            sent += len(chunk)
        for event in host.receive(guest.next_batch()):
            if isinstance(event, events.Bytes):
                got += len(event.data)
                host.consumed(stream, event.credit)
        to_guest(host, guest)
        guest.take_events()
    return got / MB / (time.perf_counter() - began_s)


def upload() -> float:
    """A file's body: megabytes a second from the host to the guest, in frames of 4 KiB."""
    host, guest = pair()
    stream = host.open({})
    to_guest(host, guest)
    chunk, sent, got = bytes(CHUNK_BYTES), 0, 0
    began_s = time.perf_counter()
    while got < BULK_BYTES:
        while sent < BULK_BYTES and host.room(stream):
            host.send_bytes(stream, 0, chunk)
            sent += len(chunk)
        for event in to_guest(host, guest):
            if isinstance(event, events.Bytes):
                got += len(event.data)
                guest.consumed(stream, event.credit)
        host.receive(guest.next_batch())
    return got / MB / (time.perf_counter() - began_s)


def lines() -> float:
    """Lines of a program that flushes each: frames a second."""
    host, guest = pair()
    stream = host.open({})
    to_guest(host, guest)
    began_s = time.perf_counter()
    for _ in range(LINES // 50):
        for _ in range(50):
            guest.send_bytes(stream, 1, b"hello, world\n")
        for event in host.receive(guest.next_batch()):
            if isinstance(event, events.Bytes):
                host.consumed(stream, event.credit)
        to_guest(host, guest)
    return LINES / (time.perf_counter() - began_s)


def calls() -> float:
    """Whole calls a second: started, a result, both ends; encoding and decoding on both sides."""
    host, guest = pair()
    began_s = time.perf_counter()
    for _ in range(CALLS):
        stream = host.open({"call": "process.start", "id": bytes(16), "args": START})
        host.end(stream)
        to_guest(host, guest)
        guest.send(stream, {"event": "started", "pid": 7})
        guest.send(stream, {"result": RESULT})
        guest.end(stream)
        host.receive(guest.next_batch())
    return CALLS / (time.perf_counter() - began_s)


def listings() -> float:
    """Folders of 1,000 entries a second, encoded and decoded once."""
    listing = {"entries": [ENTRY] * 1000, "more": False}
    began_s = time.perf_counter()
    for _ in range(5):
        values.decode(values.encode(listing))
    return 5 / (time.perf_counter() - began_s)


FIGURES: dict[str, tuple[str, Callable[[], float]]] = {
    "download": ("MB/s", download),
    "upload": ("MB/s", upload),
    "lines": ("frames/s", lines),
    "calls": ("calls/s", calls),
    "listings": ("listings/s", listings),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    found: dict[str, list[float]] = {name: [] for name in FIGURES}
    for _ in range(rounds):
        for name, (_, measure) in FIGURES.items():
            found[name].append(measure())
    for name, (unit, _) in FIGURES.items():
        print(f"{name:10} {statistics.median(found[name]):12,.0f} {unit:11} best {max(found[name]):12,.0f}")


if __name__ == "__main__":
    main()
