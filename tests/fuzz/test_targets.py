"""A moment of fuzzing in the ordinary tests: random bytes, and true traffic with bytes changed, dropped and repeated."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandlot.protocol import frames, handshake, schema, values
from tests.fuzz import targets

ROUNDS = 100
TRUE = [
    handshake.hello(targets.NONCE, 1, 1),
    handshake.welcome(targets.NONCE, 1, asleep=False),
    *(frames.encode(frames.DATA, id_, b"output" * 9, 1) for id_ in (1, 3, 5)),
    *(frames.encode(frames.DATA, id_, b"x" * 65000, 1) for id_ in (1, 5)),
    frames.encode(frames.MESSAGE, 1, values.encode({"event": "started", "pid": 7})),
    frames.encode(frames.MESSAGE, 5, values.encode({"result": dict.fromkeys(schema.RECORDS["entry"], 1)}), more=True),
    frames.encode(frames.MESSAGE, 5, b"\xc0"),
    frames.encode(frames.OPEN, 2, values.encode({"service": "x", "args": {}})),
    frames.encode(frames.OPEN, 4, values.encode({"service": "x", "args": {}})),
    frames.encode(frames.END, 1),
    frames.encode(frames.RESET, 5, values.encode({"code": "conflict", "message": "no"})),
    frames.encode(frames.CREDIT, 1, b"\0\0\0\x20"),
    frames.encode(frames.QUIESCE, 0),
    frames.encode(frames.QUIESCED, 0),
    frames.encode(frames.LOST, 0, b"why"),
]
WORDS = [
    {"name": "f", "path": "/f", "kind": "file", "size": 1, "mode": 0o644, "uid": 0, "gid": 0, "modified_ns": 1, "target": None},
    {"entries": [{"name": "f"}], "more": False},
    {"data": {"text/plain": "1", "image/png": b"\x89PNG"}, "main": True},
    {"name": "ValueError", "value": "x", "traceback": ["a", "b"]},
    {"status": "ok", "execution_count": 1, "duration_s": 0.5},
    {"code": "conflict", "message": "no", "hint": "try", "path": "/f"},
    {"processes": [{"process": "0" * 32, "pid": 1, "argv": ["a"], "running": True}]},
]


def mutated(source: random.Random, parts: list[bytes]) -> bytes:
    """True parts in any order, with a few bytes changed, dropped, repeated or put in."""
    raw = bytearray(b"".join(source.choice(parts) for _ in range(source.randrange(1, 12))))
    for _ in range(source.randrange(4)):
        at = source.randrange(len(raw) + 1)
        change = source.randrange(4)
        if change == 0 and at < len(raw):
            raw[at] = source.randrange(256)
        elif change == 1:
            del raw[at : at + source.randrange(1, 20)]
        elif change == 2:
            raw[at:at] = raw[at : at + source.randrange(1, 200)]
        else:
            raw[at:at] = source.randbytes(source.randrange(1, 8))
    return bytes(raw)


@pytest.mark.parametrize("target", targets.TARGETS.values(), ids=targets.TARGETS.keys())
def test_any_bytes(target: Callable[[bytes], None]) -> None:
    @settings(max_examples=50)
    @given(st.binary(max_size=2000))
    def run(data: bytes) -> None:
        target(data)

    run()


@pytest.mark.parametrize("target", targets.TARGETS.values(), ids=targets.TARGETS.keys())
def test_true_traffic_with_bytes_changed(target: Callable[[bytes], None]) -> None:
    parts = [values.encode(word) for word in WORDS] if target in {targets.reply, targets.value} else TRUE
    for seed in range(ROUNDS):
        data = mutated(random.Random(seed), parts)
        try:
            target(data)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
