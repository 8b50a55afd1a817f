"""Who may talk to the service."""

from __future__ import annotations

from typing import Any

import pytest

from sandlot.model.access import OPERATOR, OwnerId, Principal
from sandlot.model.errors import AuthenticationError
from sandlot.web.auth import OWNER, authenticate, presented

KEY = "sandlot_x"
ANYBODY = Principal(owner=OwnerId("0123456789ab"), name="a")


class OneKey:
    """Knows one key."""

    def verify(self, secret: str) -> Principal | None:
        return ANYBODY if secret == KEY else None


@pytest.mark.parametrize(
    "headers,key",
    [
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
    ],
    ids=str,
)
def test_where_a_key_is_looked_for(headers: list[tuple[bytes, bytes]], key: str | None) -> None:
    assert presented(headers) == key


def test_the_owner_of_the_socket_needs_none() -> None:
    assert authenticate(scope(peer=OWNER), OneKey()) == OPERATOR


def test_health_needs_none() -> None:
    assert authenticate(scope(path="/healthz"), OneKey()) is None


def test_everybody_else_needs_one_that_is_known() -> None:
    assert authenticate(scope(key=KEY), OneKey()) == ANYBODY
    for wrong in (scope(), scope(key=""), scope(key="x"), scope(key=KEY + "x"), scope(path="/healthz/", key=None), scope(peer="somebody")):
        with pytest.raises(AuthenticationError) as refused:
            authenticate(wrong, OneKey())
        assert refused.value.status == 401
        assert refused.value.hint


def scope(*, path: str = "/v1/sandboxes", key: str | None = None, peer: str | None = None) -> dict[str, Any]:
    headers = [] if key is None else [(b"authorization", b"Bearer " + key.encode())]
    return {"path": path, "headers": headers, "state": {} if peer is None else {"peer": peer}}
