"""What stands for a key in requests about one sandbox."""

from __future__ import annotations

from datetime import UTC, datetime

from sandlot.core.content.signing import Signer
from sandlot.model.access import OwnerId, Principal

WHO = Principal(owner=OwnerId("0123456789ab"), name="a")
KEYS = {WHO.owner: WHO}


def signer(secret: bytes = b"x" * 32) -> Signer:
    return Signer(secret, lambda: datetime(2026, 1, 1, tzinfo=UTC), KEYS.get)


def test_it_is_good_for_its_sandbox_and_no_other() -> None:
    token = signer().token(WHO.owner, "sb-a")
    assert signer().bearer(token, "sb-a") == WHO
    assert signer().bearer(token, "sb-b") is None
    assert signer(b"y" * 32).bearer(token, "sb-a") is None


def test_what_nobody_was_given_is_nobodys() -> None:
    token = signer().token(WHO.owner, "sb-a")
    for wrong in ("", ".", token[:-1], token + "x", token.replace(WHO.owner, "ba9876543210"), "é", "\udc80"):
        assert signer().bearer(wrong, "sb-a") is None


def test_one_whose_key_was_revoked_is_nobodys() -> None:
    gone = OwnerId("ba9876543210")
    assert signer().bearer(signer().token(gone, "sb-a"), "sb-a") is None
