"""Who may talk to the service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sandlot.model.access import OPERATOR
from sandlot.model.errors import AuthenticationError
from sandlot.server.keys import KeyStore
from sandlot.web.auth import OWNER, authenticate, presented


@pytest.mark.parametrize(
    "headers,key",
    [
        ([], None),
        ([(b"authorization", b"Bearer abc")], "abc"),
        ([(b"authorization", b"bearer  abc ")], "abc"),
        ([(b"authorization", b"Basic abc")], None),
        ([(b"authorization", b"abc")], None),
        ([(b"x-api-key", b"abc")], "abc"),
        ([(b"cookie", b"abc")], None),
    ],
    ids=str,
)
def test_where_a_key_is_looked_for(headers: list[tuple[bytes, bytes]], key: str | None) -> None:
    assert presented(headers) == key


def test_the_owner_of_the_socket_needs_none(tmp_path: Path) -> None:
    assert authenticate(scope(peer=OWNER), KeyStore(tmp_path)) == OPERATOR


def test_health_needs_none(tmp_path: Path) -> None:
    assert authenticate(scope(path="/healthz"), KeyStore(tmp_path)) is None


def test_everybody_else_needs_one_that_is_known(tmp_path: Path) -> None:
    keys = KeyStore(tmp_path)
    key, secret = keys.create("a")
    found = authenticate(scope(key=secret), keys)
    assert found is not None
    assert found.owner == key.id
    for wrong in (scope(), scope(key=""), scope(key="x"), scope(key=secret + "x"), scope(path="/healthz/", key=None), scope(peer="somebody")):
        with pytest.raises(AuthenticationError) as refused:
            authenticate(wrong, keys)
        assert refused.value.status == 401
        assert refused.value.hint


def scope(*, path: str = "/v1/sandboxes", key: str | None = None, peer: str | None = None) -> dict[str, Any]:
    headers = [] if key is None else [(b"authorization", b"Bearer " + key.encode())]
    return {"path": path, "headers": headers, "state": {} if peer is None else {"peer": peer}}
