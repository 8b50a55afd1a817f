"""Access to ports from browsers: tokens, public ports, expiry, revoked keys, and strangers that learn nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from sandlot.core.files.signed_urls import TokenService
from sandlot.core.forwarding.previews import PreviewService
from sandlot.model.access import OwnerId, Principal
from sandlot.model.errors import AuthenticationError, InvalidRequestError, NotFoundError
from sandlot.model.ids import SandboxId
from sandlot.model.previews import MAX_PREVIEW_LIFETIME_S, PreviewAccess
from sandlot.model.sandboxes import CreateSandboxParams, UpdateSandboxParams
from tests.support.node import MemoryNode

SIGNER = Principal(owner=OwnerId("0123456789ab"), name="someone")
MAY_BE_PUBLIC = replace(SIGNER, quota=replace(SIGNER.quota, public_ports=True))
STRANGER = Principal(owner=OwnerId("ba9876543210"), name="another")


class Rig:
    """A preview service with a clock and keys of its own, on the sandboxes of a node."""

    def __init__(self, node: MemoryNode) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.node = node
        self.owners = {SIGNER.owner: SIGNER, STRANGER.owner: STRANGER}
        registry = node.internals.registry
        self.tokens = TokenService(bytes(32), registry, lambda: self.now, self.owners.get)
        self.previews = PreviewService(registry, self.tokens, self.owners.get)

    async def create(self, owner: Principal = SIGNER, **params: bool | str) -> SandboxId:
        return (await self.node.sandboxes.create(owner, CreateSandboxParams(**params))).id  # type: ignore[arg-type]

    def token(self, sandbox: str, port: int = 3000, lifetime_s: float = 60) -> str:
        return self.previews.sign(SIGNER, sandbox, port, lifetime_s).value

    def denied(self, sandbox: str, port: int, *tokens: str) -> str:
        with pytest.raises(AuthenticationError) as raised:
            self.previews.authorize(sandbox, port, tokens)
        return str(raised.value)


@pytest.fixture
def rig(node: MemoryNode) -> Rig:
    return Rig(node)


async def test_a_token_opens_its_port_only(rig: Rig) -> None:
    sandbox, other = await rig.create(), await rig.create()
    token = rig.token(sandbox)
    assert rig.previews.authorize(sandbox, 3000, ["wrong", token]) == PreviewAccess(SIGNER, sandbox, 3000, "localhost:3000", True, token, 60.0)
    rig.denied(sandbox, 3001, token)
    rig.denied(other, 3000, token)
    rig.denied(sandbox, 3000)


async def test_strangers_cannot_tell_a_private_sandbox_from_a_missing_one(rig: Rig) -> None:
    sandbox = await rig.create()
    assert rig.denied(sandbox, 3000, "wrong") == rig.denied("sb-aaaa-aaaaaaaaaaaaaaaa", 3000, "wrong")


async def test_the_token_of_the_sandbox_opens_all_ports_of_it(rig: Rig) -> None:
    sandbox, other = await rig.create(), await rig.create()
    token = rig.tokens.sandbox_token(SIGNER, sandbox)
    assert rig.previews.authorize(sandbox, 4000, [], [token]).lifetime_s is None
    rig.denied(other, 4000, token)
    rig.denied(sandbox, 4000, token)  # in a URL or a cookie


async def test_a_changed_token_opens_nothing(rig: Rig) -> None:
    sandbox = await rig.create()
    token = rig.token(sandbox)
    label, owner, expires, signature = token.split(".")
    for changed in (
        f"{label}.{owner}.{int(expires) + 1}.{signature}",
        f"{label}.{STRANGER.owner}.{expires}.{signature}",
        f"{label}.{owner}.0{expires}.{signature}",
        f"{label}.{owner}.{expires}.{signature[:-1]}",
        f"{label}.{owner}.{expires}",
        f"{token}.",
        f"{label}.{owner}.{'9' * 5000}.{signature}",
        f"{label}.{owner}.²{expires[1:]}.{signature}",
        "\0",
        "",
    ):
        rig.denied(sandbox, 3000, changed)


async def test_a_token_ends_with_its_time_and_with_its_key(rig: Rig) -> None:
    sandbox = await rig.create()
    token = rig.token(sandbox)
    rig.now += timedelta(seconds=59)
    rig.previews.authorize(sandbox, 3000, [token])
    rig.now += timedelta(seconds=1)
    rig.denied(sandbox, 3000, token)
    fresh = rig.token(sandbox)
    del rig.owners[SIGNER.owner]
    rig.denied(sandbox, 3000, fresh)


@pytest.mark.parametrize("port", [0, -1, 65536])
async def test_ports_out_of_range_are_refused(rig: Rig, port: int) -> None:
    sandbox = await rig.create()
    with pytest.raises(InvalidRequestError, match="from 1 to 65535"):
        rig.token(sandbox, port)


@pytest.mark.parametrize("lifetime_s", [0.0, MAX_PREVIEW_LIFETIME_S + 1, float("nan")])
async def test_lifetimes_out_of_range_are_refused(rig: Rig, lifetime_s: float) -> None:
    sandbox = await rig.create()
    with pytest.raises(InvalidRequestError, match="expires_in"):
        rig.token(sandbox, lifetime_s=lifetime_s)


async def test_a_token_is_signed_for_own_sandboxes_only(rig: Rig) -> None:
    sandbox = await rig.create()
    with pytest.raises(NotFoundError):
        rig.previews.sign(STRANGER, sandbox, 3000, 60)


async def test_public_ports_need_no_token_while_the_quota_allows_them(rig: Rig) -> None:
    rig.owners[SIGNER.owner] = MAY_BE_PUBLIC
    sandbox = await rig.create(MAY_BE_PUBLIC, public_ports=True)
    access = rig.previews.authorize(sandbox, 3000, ["wrong"])
    assert (access.principal, access.token) == (MAY_BE_PUBLIC, None)
    assert rig.previews.sign(MAY_BE_PUBLIC, sandbox, 3000, 60).public
    rig.owners[SIGNER.owner] = SIGNER  # the operator has changed the quota
    rig.denied(sandbox, 3000)
    rig.owners[SIGNER.owner] = MAY_BE_PUBLIC
    await rig.node.sandboxes.update(MAY_BE_PUBLIC, sandbox, UpdateSandboxParams(public_ports=False))
    rig.denied(sandbox, 3000)


async def test_the_host_can_be_masked(rig: Rig) -> None:
    sandbox = await rig.create(mask_request_host="app-${PORT}.example.com")
    assert rig.previews.authorize(sandbox, 3000, [rig.token(sandbox)]).host == "app-3000.example.com"


async def test_a_suspended_sandbox_is_not_running(rig: Rig) -> None:
    sandbox = await rig.create()
    await rig.node.sandboxes.pause(SIGNER, sandbox)
    assert not rig.previews.authorize(sandbox, 3000, [rig.token(sandbox)]).is_running
