"""Signed URLs: the request that each allows, expiry, revoked keys, and refusal of every changed URL."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import pytest

from sandlot.core.files.signed_urls import UrlSigner
from sandlot.model.access import OwnerId, Principal
from sandlot.model.errors import ErrorCode, ForbiddenError, InvalidRequestError
from sandlot.model.signed_urls import MAX_URL_LIFETIME_S, URL_METHODS
from sandlot.model.specs import User

SIGNER = Principal(owner=OwnerId("0123456789ab"), name="someone")
SECRET = bytes(range(32))


class Rig:
    """A signer, its clock and its keys."""

    def __init__(self, secret: bytes = SECRET) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.owners = {SIGNER.owner: SIGNER}
        self.url_signer = UrlSigner(secret, lambda: self.now, self.owners.get)

    def sign(self, *, method: str = "GET", path: str = "/workspace/a b", user: User = User.USER, expires_in_s: float = 60) -> str:
        return self.url_signer.sign(SIGNER, sandbox="sb-abcd-1", method=method, path=path, user=user, expires_in_s=expires_in_s)[0]

    def check(self, query: str, method: str = "GET") -> Principal:
        return self.url_signer.principal(method, query.encode())


def refused(rig: Rig, query: str, method: str = "GET") -> str:
    with pytest.raises(ForbiddenError) as error:
        rig.check(query, method)
    assert error.value.code is ErrorCode.FORBIDDEN
    return error.value.message


@pytest.mark.parametrize("method", URL_METHODS)
def test_url_allows_the_signed_request_until_it_expires(method: str) -> None:
    rig = Rig()
    query = rig.sign(method=method)
    rig.now += timedelta(seconds=59)
    assert rig.check(query, method) == SIGNER
    rig.now += timedelta(seconds=1)
    assert "2026-01-01T00:01:00" in refused(rig, query, method)


def test_changing_any_character_invalidates_the_url() -> None:
    rig = Rig()
    query = rig.sign()
    for at, other in itertools.product(range(len(query)), "0A&=%+"):
        changed = query[:at] + other + query[at + 1 :]
        if changed != query and (query[at], other) != ("+", "%"):
            refused(rig, changed)


def test_url_allows_no_other_request() -> None:
    rig = Rig()
    query = rig.sign()
    for method in ("PUT", "HEAD", "DELETE", "POST", "get"):
        refused(rig, query, method)
    for more in ("&user=root", "&path=%2Fetc%2Fshadow", "&offset=1", "&path=%2Fworkspace%2Fa+b"):
        refused(rig, query + more)
        refused(rig, more[1:] + "&" + query)
    for name in ("sandbox", "path", "user", "key", "expires", "signature"):
        refused(rig, "&".join(pair for pair in query.split("&") if not pair.startswith(f"{name}=")))
    for old, new in (("a+b", "c"), ("user=user", "user=root"), ("sb-abcd-1", "sb-abcd-2"), ("expires=", "expires=+"), (SIGNER.owner, "local")):
        refused(rig, query.replace(old, new))
    refused(rig, "")


def test_url_of_another_secret_is_refused() -> None:
    refused(Rig(bytes(32)), Rig().sign())


def test_url_of_a_revoked_key_is_refused() -> None:
    rig = Rig()
    query = rig.sign()
    rig.owners.clear()
    assert "revoked" in refused(rig, query)


def test_values_that_could_run_into_each_other_have_different_signatures() -> None:
    signatures = {Rig().sign(path=path).rpartition("=")[2] for path in ("/a", "/a/", "/a%2F", '/a","user', "/a\n")}
    assert len(signatures) == 5


@pytest.mark.parametrize("expires_in_s", [0, -1, 0.5, MAX_URL_LIFETIME_S + 1, float("inf"), float("nan")])
def test_invalid_lifetime_is_refused(expires_in_s: float) -> None:
    with pytest.raises(InvalidRequestError):
        Rig().sign(expires_in_s=expires_in_s)


def test_invalid_path_or_method_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        Rig().sign(path="relative")
    with pytest.raises(InvalidRequestError):
        Rig().sign(method="DELETE")


def test_token_stands_for_the_key_in_requests_about_one_sandbox() -> None:
    rig = Rig()
    token = rig.url_signer.token(SIGNER.owner, "sb-a")
    assert rig.url_signer.bearer(token, "sb-a") == SIGNER
    assert rig.url_signer.bearer(token, "sb-b") is None
    assert Rig(bytes(32)).url_signer.bearer(token, "sb-a") is None
    for wrong in ("", ".", token[:-1], token + "x", token.replace(SIGNER.owner, "ba9876543210"), "é", "\udc80"):
        assert rig.url_signer.bearer(wrong, "sb-a") is None
    rig.owners.clear()
    assert rig.url_signer.bearer(token, "sb-a") is None, "the key was revoked"
