"""Authentication of requests."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sandlot.model.access import OPERATOR, OwnerId, Principal
from sandlot.model.errors import AuthenticationError, UnavailableError
from sandlot.web.auth import OWNER, admit, authenticate, request_api_key
from sandlot.web.connections import CONNECTION, RETRY_AFTER_S, ConnectionShares
from tests.support.simulation import simulate

KEY = "sandlot_x"
ANYBODY = Principal(owner=OwnerId("0123456789ab"), name="a")


class OneKey:
    """Knows one key."""

    def verify(self, secret: str) -> Principal | None:
        return ANYBODY if secret == KEY else None


PRESENTED: list[tuple[list[tuple[bytes, bytes]], str | None]] = [
    ([], None),
    ([(b"authorization", b"Bearer abc")], "abc"),
    ([(b"authorization", b"bearer  abc ")], "abc"),
    ([(b"authorization", b"Basic abc")], None),
    ([(b"authorization", b"abc")], None),
    ([(b"x-api-key", b"abc")], "abc"),
    ([(b"x-api-key", b"abc"), (b"authorization", b"Bearer other")], "abc"),
    ([(b"authorization", b"Bearer other"), (b"x-api-key", b"abc")], "abc"),
    ([(b"authorization", b"Bearer abc"), (b"authorization", b"Bearer other")], "abc"),
    ([(b"x-rapidapi-host", b"host"), (b"x-rapidapi-key", b"abc")], "abc"),
    ([(b"x-rapidapi-proxy-secret", b" abc")], "abc"),
    ([(b"cookie", b"abc")], None),
    ([(b"x-api-key", b"")], None),
    ([(b"authorization", b"Bearer ")], None),
    ([(b"authorization", b"Bearer abc"), (b"x-api-key", b"")], "abc"),
    ([(b"x-api-key", b" "), (b"authorization", b"Bearer abc")], "abc"),
    ([(b"x-api-key", b""), (b"x-rapidapi-key", b"abc")], "abc"),
    ([(b"authorization", b"Bearer "), (b"authorization", b"Bearer abc")], "abc"),
]
"""Headers of a request, and the key in them."""


def test_key_is_read_from_any_header_that_clients_use() -> None:
    assert [(headers, request_api_key(headers)) for headers, _ in PRESENTED] == PRESENTED


async def test_owner_of_the_unix_socket_needs_no_key() -> None:
    assert await authenticate(scope(peer=OWNER), OneKey()) == OPERATOR


def test_key_whose_share_of_connections_is_used_up_is_refused_after_a_second() -> None:
    async def program() -> None:
        shares = ConnectionShares(8, asyncio.get_running_loop().time)
        for _ in range(shares.share):
            used = shares.open("192.0.2.1", lambda: None)
            used.count_for_key(ANYBODY.owner)
            used.begin_request()
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(UnavailableError):
            await admit({**scope(key=KEY), "state": {CONNECTION: shares.open("192.0.2.1", lambda: None)}}, OneKey())
        assert asyncio.get_running_loop().time() == began_s + RETRY_AFTER_S

    simulate(program, seed=1)


async def test_health_check_needs_no_key() -> None:
    assert await authenticate(scope(path="/healthz"), OneKey()) is None


async def test_all_other_requests_need_a_known_key() -> None:
    assert await authenticate(scope(key=KEY), OneKey()) == ANYBODY
    for wrong in (scope(), scope(key=""), scope(key="x"), scope(key=KEY + "x"), scope(path="/healthz/", key=None), scope(peer="somebody")):
        with pytest.raises(AuthenticationError) as refused:
            await authenticate(wrong, OneKey())
        assert refused.value.status == 401
        assert refused.value.hint


def scope(*, path: str = "/v1/sandboxes", key: str | None = None, peer: str | None = None) -> dict[str, Any]:
    headers = [] if key is None else [(b"authorization", b"Bearer " + key.encode())]
    return {"path": path, "headers": headers, "state": {} if peer is None else {"peer": peer}}
