"""Sandbase's words into ours and back."""

from __future__ import annotations

import pytest

from sandlot.compat.sandbase import translate, webhook_payload
from sandlot.compat.sandbase.schemas import SandboxBody
from sandlot.model.errors import InvalidRequestError, UnsupportedError
from sandlot.model.records import EVENT_TYPES
from sandlot.model.states import State
from sandlot.testing.stores.webhooks import webhook

KNOWN = ("base", "code-interpreter")


def body(**fields: object) -> SandboxBody:
    return SandboxBody.model_validate({"templateID": "code_interpreter", **fields})


def test_unsupported_create_options_are_refused() -> None:
    with pytest.raises(UnsupportedError):
        translate.new_sandbox(body(allowInternetAccess=True), KNOWN)
    with pytest.raises(InvalidRequestError):
        translate.new_sandbox(body(metadata={"sandlot.api": "x"}), KNOWN)
    for seconds in (0, -1, 0.5, 3600.5, float("inf"), float("nan"), 1e300):
        with pytest.raises(InvalidRequestError):
            translate.timeout(seconds)
    assert translate.timeout(None) == 300


def test_every_state_has_a_status() -> None:
    assert set(translate.STATUSES) == set(State)
    assert set(translate.STATUSES.values()) == {"creating", "running", "paused", "stopped", "error"}
    assert translate.statuses(None) == {"creating", "running", "paused"}
    assert translate.statuses("stopped") == {"stopped"}
    with pytest.raises(InvalidRequestError, match="invalid status filter: gone"):
        translate.statuses("gone")


def test_webhook_events_are_translated_both_ways() -> None:
    assert set(webhook_payload.TYPES) <= set(EVENT_TYPES)
    assert webhook_payload.ours([]) == list(webhook_payload.TYPES)
    assert webhook_payload.ours(["sandbox.lifecycle.paused", "sandbox.lifecycle.killed"]) == ["sandbox.paused", "sandbox.hibernated", "sandbox.ended"]
    assert webhook_payload.theirs(["sandbox.paused", "sandbox.hibernated", "snapshot.created"]) == ["sandbox.lifecycle.paused"]
    with pytest.raises(InvalidRequestError, match=r"unknown event: session\.error"):
        webhook_payload.ours(["session.error"])
    told = webhook_payload.webhook(webhook())
    assert set(told) == {"id", "name", "url", "resourceType", "events", "enabled", "createdAt"}, "its secret is not among them"
