"""URLs that open one file: what they are good for, and that nobody changes one."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import pytest

from sandlot.core.files.signed_urls import METHODS, MOST_S, UrlSigner
from sandlot.model.access import OwnerId, Principal
from sandlot.model.errors import ErrorCode, ForbiddenError, InvalidRequestError
from sandlot.model.specs import User

WHO = Principal(owner=OwnerId("0123456789ab"), name="someone")
SECRET = bytes(range(32))


class Here:
    """A signer, its time, and those who have a key."""

    def __init__(self, secret: bytes = SECRET) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.owners = {WHO.owner: WHO}
        self.url_signer = UrlSigner(secret, lambda: self.now, self.owners.get)

    def sign(self, *, method: str = "GET", path: str = "/workspace/a b", user: User = User.USER, expires_in_s: float = 60) -> str:
        return self.url_signer.sign(WHO, sandbox="sb-abcd-1", method=method, path=path, user=user, expires_in_s=expires_in_s)[0]

    def check(self, query: str, method: str = "GET") -> Principal:
        return self.url_signer.principal(method, query.encode())


def refused(here: Here, query: str, method: str = "GET") -> str:
    with pytest.raises(ForbiddenError) as told:
        here.check(query, method)
    assert told.value.code is ErrorCode.FORBIDDEN
    return told.value.message


@pytest.mark.parametrize("method", METHODS)
def test_it_is_good_for_what_it_was_signed_for_until_it_expires(method: str) -> None:
    here = Here()
    query = here.sign(method=method)
    here.now += timedelta(seconds=59)
    assert here.check(query, method) == WHO
    here.now += timedelta(seconds=1)
    assert "2026-01-01T00:01:00" in refused(here, query, method)


def test_no_character_of_it_can_be_changed() -> None:
    here = Here()
    query = here.sign()
    for at, other in itertools.product(range(len(query)), "0A&=%+"):
        changed = query[:at] + other + query[at + 1 :]
        if changed != query and (query[at], other) != ("+", "%"):
            refused(here, changed)


def test_it_is_good_for_nothing_else() -> None:
    here = Here()
    query = here.sign()
    for method in ("PUT", "HEAD", "DELETE", "POST", "get"):
        refused(here, query, method)
    for more in ("&user=root", "&path=%2Fetc%2Fshadow", "&offset=1", "&path=%2Fworkspace%2Fa+b"):
        refused(here, query + more)
        refused(here, more[1:] + "&" + query)
    for name in ("sandbox", "path", "user", "key", "expires", "signature"):
        refused(here, "&".join(word for word in query.split("&") if not word.startswith(f"{name}=")))
    for was, becomes in (("a+b", "c"), ("user=user", "user=root"), ("sb-abcd-1", "sb-abcd-2"), ("expires=", "expires=+"), (WHO.owner, "local")):
        refused(here, query.replace(was, becomes))
    refused(here, "")


def test_another_secret_signs_otherwise() -> None:
    refused(Here(bytes(32)), Here().sign())


def test_it_ends_with_the_key_that_made_it() -> None:
    here = Here()
    query = here.sign()
    here.owners.clear()
    assert "revoked" in refused(here, query)


def test_parts_that_run_into_each_other_are_not_the_same() -> None:
    signatures = {Here().sign(path=path).rpartition("=")[2] for path in ("/a", "/a/", "/a%2F", '/a","user', "/a\n")}
    assert len(signatures) == 5


@pytest.mark.parametrize("expires_in_s", [0, -1, 0.5, MOST_S + 1, float("inf"), float("nan")])
def test_a_time_that_is_none_is_refused(expires_in_s: float) -> None:
    with pytest.raises(InvalidRequestError):
        Here().sign(expires_in_s=expires_in_s)


def test_what_is_no_path_or_no_method_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        Here().sign(path="relative")
    with pytest.raises(InvalidRequestError):
        Here().sign(method="DELETE")


def test_token_stands_for_the_key_in_requests_about_one_sandbox() -> None:
    here = Here()
    token = here.url_signer.token(WHO.owner, "sb-a")
    assert here.url_signer.bearer(token, "sb-a") == WHO
    assert here.url_signer.bearer(token, "sb-b") is None
    assert Here(bytes(32)).url_signer.bearer(token, "sb-a") is None
    for wrong in ("", ".", token[:-1], token + "x", token.replace(WHO.owner, "ba9876543210"), "é", "\udc80"):
        assert here.url_signer.bearer(wrong, "sb-a") is None
    here.owners.clear()
    assert here.url_signer.bearer(token, "sb-a") is None, "the key was revoked"
