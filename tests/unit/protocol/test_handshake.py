"""Finding HELLO and WELCOME in arbitrary bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.protocol import frames, handshake

NONCE = b"n" * 16
OTHER = b"o" * 16
PIECES = st.sampled_from(
    [handshake.MAGIC, NONCE, handshake.MAGIC + OTHER, b"\x93", b"\x93SAND", b"\xa5\x02", b"\0" * 40, handshake.welcome(OTHER, 1, asleep=True)]
)


@given(st.lists(st.one_of(st.binary(max_size=50), PIECES), max_size=12), st.binary(max_size=60), st.integers(1, 200))
def test_host_finds_only_the_echo_of_its_nonce(noise: list[bytes], after: bytes, chunk: int) -> None:
    before = b"".join(noise)
    if handshake.MAGIC + NONCE in before + handshake.MAGIC:
        return
    raw = before + handshake.welcome(NONCE, 1, asleep=False) + after
    search = handshake.Search.for_welcome(NONCE)
    found = rest = b""
    for at in range(0, len(raw), chunk):
        if found:
            rest += raw[at : at + chunk]
            continue
        found, rest = search.feed(raw[at : at + chunk])
    assert handshake.parse_welcome(found) == (NONCE, 1, False)
    assert rest == after


def test_search_buffers_at_most_one_payload() -> None:
    search = handshake.Search.for_hello()
    for _ in range(100):
        assert search.feed(b"\x93SANDLT" * 1000) == (b"", b"")
    assert len(search._seen) < len(handshake.MAGIC)  # noqa: SLF001 - what is kept is the promise
    assert search.feed(handshake.MAGIC + b"x" * 1000) == (b"", b"")
    assert len(search._seen) < frames.HOST_FRAME_MAX  # noqa: SLF001
    payload, rest = search.feed(b"y" * 4000)
    assert len(payload) == frames.HOST_FRAME_MAX - frames.HEADER_BYTES
    assert len(payload) + len(rest) == 8 + 1000 + 4000


@pytest.mark.parametrize(
    "payload",
    [b"", handshake.MAGIC, handshake.MAGIC + NONCE + b"\0\1\1", handshake.MAGIC + NONCE + b"\0\1\1\0\0", b"\x93SANDLTx" + NONCE + b"\0\1\1\0"],
)
def test_invalid_payload_is_not_a_handshake(payload: bytes) -> None:
    assert handshake.parse_welcome(payload) is None
    assert handshake.parse_hello(payload[:20]) is None
