"""Signed URLs: the request that each allows, expiry, revoked keys, and refusal of every changed URL."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import pytest

from sandlot.core.files.signed_urls import TokenService
from sandlot.model.access import OPERATOR, OwnerId, Principal
from sandlot.model.errors import ErrorCode, ForbiddenError, InvalidRequestError, NotFoundError
from sandlot.model.sandboxes import CreateSandboxParams
from sandlot.model.signed_urls import MAX_URL_LIFETIME_S, URL_METHODS, Grant, TokenScope
from sandlot.model.specs import User
from tests.support.node import MemoryNode

SIGNER = Principal(owner=OwnerId("0123456789ab"), name="someone")
STRANGER = Principal(owner=OwnerId("ba9876543210"), name="another")
SECRET = bytes(range(32))


class Rig:
    """A token service with a clock and keys of its own, on the sandboxes of a node."""

    def __init__(self, node: MemoryNode, sandbox: str, secret: bytes = SECRET) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.owners = {SIGNER.owner: SIGNER}
        self.sandbox = sandbox
        self.tokens = TokenService(secret, node.internals.registry, lambda: self.now, self.owners.get)

    def sign(self, *, method: str = "GET", path: str = "/workspace/a b", user: User = User.USER, lifetime_s: float = 60) -> str:
        return self.tokens.sign_url(SIGNER, Grant(method, self.sandbox, path, user, lifetime_s)).query

    def check(self, query: str, method: str = "GET") -> Principal:
        return self.tokens.principal_of_url(method, query.encode())


async def make(node: MemoryNode, name: str | None = None, owner: Principal = SIGNER) -> str:
    return (await node.sandboxes.create(owner, CreateSandboxParams(name=name))).id


@pytest.fixture
async def sandbox(node: MemoryNode) -> str:
    return await make(node)


@pytest.fixture
def rig(node: MemoryNode, sandbox: str) -> Rig:
    return Rig(node, sandbox)


def refused(rig: Rig, query: str, method: str = "GET") -> str:
    with pytest.raises(ForbiddenError) as error:
        rig.check(query, method)
    assert error.value.code is ErrorCode.FORBIDDEN
    return error.value.message


@pytest.mark.parametrize("method", URL_METHODS)
async def test_url_allows_the_signed_request_until_it_expires(method: str, rig: Rig) -> None:
    query = rig.sign(method=method)
    rig.now += timedelta(seconds=59)
    assert rig.check(query, method) == SIGNER
    rig.now += timedelta(seconds=1)
    assert "2026-01-01T00:01:00" in refused(rig, query, method)


async def test_changing_any_character_invalidates_the_url(rig: Rig) -> None:
    query = rig.sign()
    for at, other in itertools.product(range(len(query)), "0A&=%+"):
        changed = query[:at] + other + query[at + 1 :]
        if changed != query and (query[at], other) != ("+", "%"):
            refused(rig, changed)


async def test_url_allows_no_other_request(rig: Rig) -> None:
    query = rig.sign()
    for method in ("PUT", "HEAD", "DELETE", "POST", "get"):
        refused(rig, query, method)
    for more in ("&user=root", "&path=%2Fetc%2Fshadow", "&offset=1", "&path=%2Fworkspace%2Fa+b"):
        refused(rig, query + more)
        refused(rig, more[1:] + "&" + query)
    for name in ("sandbox", "path", "user", "key", "expires", "signature"):
        refused(rig, "&".join(pair for pair in query.split("&") if not pair.startswith(f"{name}=")))
    for old, new in (
        ("a+b", "c"),
        ("user=user", "user=root"),
        (rig.sandbox, "sb-other"),
        ("expires=", "expires=+"),
        (SIGNER.owner, "local"),
    ):
        refused(rig, query.replace(old, new))
    refused(rig, "")


async def test_url_of_another_secret_is_refused(node: MemoryNode, rig: Rig) -> None:
    refused(Rig(node, rig.sandbox, bytes(32)), rig.sign())


async def test_url_of_a_revoked_key_is_refused(rig: Rig) -> None:
    query = rig.sign()
    rig.owners.clear()
    assert "revoked" in refused(rig, query)


async def test_values_that_could_run_into_each_other_have_different_signatures(rig: Rig) -> None:
    signatures = {rig.sign(path=path).rpartition("=")[2] for path in ("/a", "/a/", "/a%2F", '/a","user', "/a\n")}
    assert len(signatures) == 5


@pytest.mark.parametrize("lifetime_s", [0, -1, 0.5, MAX_URL_LIFETIME_S + 1, float("inf"), float("nan")])
async def test_invalid_lifetime_is_refused(lifetime_s: float, rig: Rig) -> None:
    with pytest.raises(InvalidRequestError):
        rig.sign(lifetime_s=lifetime_s)


async def test_invalid_path_or_method_is_refused(rig: Rig) -> None:
    with pytest.raises(InvalidRequestError):
        rig.sign(path="")
    with pytest.raises(InvalidRequestError):
        rig.sign(method="DELETE")


async def test_url_is_signed_only_for_a_sandbox_of_the_principal(rig: Rig) -> None:
    for principal, sandbox in ((STRANGER, rig.sandbox), (SIGNER, "sb-none"), (SIGNER, "")):
        with pytest.raises(NotFoundError) as error:
            rig.tokens.sign_url(principal, Grant("GET", sandbox, "/workspace/a"))
        assert error.value.code is ErrorCode.SANDBOX_NOT_FOUND
        with pytest.raises(NotFoundError):
            rig.tokens.sandbox_token(principal, sandbox)


async def test_token_stands_for_the_key_in_requests_about_one_sandbox(node: MemoryNode, rig: Rig) -> None:
    token, other = rig.tokens.sandbox_token(SIGNER, rig.sandbox), await make(node)
    assert rig.tokens.principal_of_token(token, rig.sandbox) == SIGNER
    assert rig.tokens.principal_of_token(token, other) is None
    assert rig.tokens.sandbox_of_token(token) == rig.sandbox
    assert [rig.tokens.sandbox_of_token(text) for text in ("", ".", "owner.digest", "\udc80")] == [""] * 4
    assert Rig(node, rig.sandbox, bytes(32)).tokens.principal_of_token(token, rig.sandbox) is None
    for wrong in ("", ".", token[:-1], token + "x", token.replace(SIGNER.owner, "ba9876543210"), "é", "\udc80"):
        assert rig.tokens.principal_of_token(wrong, rig.sandbox) is None
    assert rig.tokens.sandbox_token(OPERATOR, rig.sandbox) == token, "an operator gets the token of the owner"
    await node.sandboxes.kill(SIGNER, rig.sandbox)
    assert rig.tokens.principal_of_token(token, rig.sandbox) == SIGNER, "the request itself reports that the sandbox has ended"
    rig.owners.clear()
    assert rig.tokens.principal_of_token(token, rig.sandbox) is None, "the key was revoked"


async def test_token_of_one_scope_is_refused_in_another(rig: Rig) -> None:
    terminals = rig.tokens.sandbox_token(SIGNER, rig.sandbox, TokenScope.TERMINALS)
    assert rig.tokens.principal_of_token(terminals, rig.sandbox, TokenScope.TERMINALS) == SIGNER
    assert rig.tokens.principal_of_token(terminals, rig.sandbox) is None
    assert rig.tokens.principal_of_token(rig.tokens.sandbox_token(SIGNER, rig.sandbox), rig.sandbox, TokenScope.TERMINALS) is None


async def test_token_is_refused_for_another_sandbox_of_the_same_name(node: MemoryNode, rig: Rig) -> None:
    rig.owners[STRANGER.owner] = STRANGER
    named, foreign = await make(node, "worker"), await make(node, "worker", STRANGER)
    token, foreign_token = rig.tokens.sandbox_token(SIGNER, named), rig.tokens.sandbox_token(STRANGER, foreign)
    assert rig.tokens.principal_of_token(token, "worker") == SIGNER
    assert rig.tokens.principal_of_token(foreign_token, "worker") == STRANGER
    await node.sandboxes.kill(SIGNER, named)
    again = await make(node, "worker")
    assert rig.tokens.principal_of_token(token, "worker") is None
    assert rig.tokens.principal_of_token(rig.tokens.sandbox_token(SIGNER, again), "worker") == SIGNER


async def test_upload_url_names_the_upload_and_its_key_until_it_expires(rig: Rig) -> None:
    query = rig.tokens.sign_upload(SIGNER, "a" * 64, 60)
    assert rig.tokens.principal_of_upload(query.encode()) == (SIGNER, "a" * 64)
    rig.now += timedelta(seconds=61)
    with pytest.raises(ForbiddenError, match="expired"):
        rig.tokens.principal_of_upload(query.encode())


async def test_changed_or_foreign_upload_urls_are_refused(node: MemoryNode, rig: Rig) -> None:
    query = rig.tokens.sign_upload(SIGNER, "a", 60)
    changed = (
        query.replace("upload=a", "upload=b"),
        query.replace(SIGNER.owner, STRANGER.owner),
        query + "&x=1",
        query + "&upload=b",
        rig.sign(),
        "",
    )
    for each in (*changed, Rig(node, rig.sandbox, bytes(32)).tokens.sign_upload(SIGNER, "a", 60), query.replace("signature=", "signature=%FF")):
        with pytest.raises(ForbiddenError):
            rig.tokens.principal_of_upload(each.encode())
    with pytest.raises(ForbiddenError):  # an upload is no file of a sandbox
        rig.check(query, "PUT")
    rig.owners.clear()
    with pytest.raises(ForbiddenError, match="revoked"):
        rig.tokens.principal_of_upload(query.encode())
