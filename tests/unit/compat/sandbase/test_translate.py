"""Translation between the Sandbase API and the node."""

from __future__ import annotations

import pytest

from sandlot.compat.sandbase import translate, webhook_payload
from sandlot.compat.sandbase.schemas import CreateSandboxRequest
from sandlot.model.errors import InvalidRequestError
from sandlot.model.network import MOST_OPEN, NetworkMode, NetworkPolicy, NetworkUpTo
from sandlot.model.records import EVENT_TYPES
from sandlot.model.states import State
from sandlot.testing.stores.webhooks import webhook
from tests.support.cases import cases
from tests.support.scripted_node import sandbox_info

KNOWN = ("base", "code-interpreter")


def body(**fields: object) -> CreateSandboxRequest:
    return CreateSandboxRequest.model_validate({"templateID": "code_interpreter", **fields})


def test_unsupported_create_options_are_refused() -> None:
    with pytest.raises(InvalidRequestError):
        translate.create_params(body(metadata={"sandlot.api": "x"}), KNOWN)
    for seconds in (0, -1, 0.5, 3600.5, float("inf"), float("nan"), 1e300):
        with pytest.raises(InvalidRequestError):
            translate.timeout_s(seconds)
    assert translate.timeout_s(None) == 300


def test_ports_are_private() -> None:
    assert not translate.create_params(body(allowInternetAccess=True), KNOWN).public_ports


@cases("allow, network", [(None, MOST_OPEN), (True, MOST_OPEN), (False, NetworkPolicy(NetworkMode.NONE))])
def test_internet_access_is_as_open_as_it_is_allowed(allow: bool | None, network: NetworkPolicy | NetworkUpTo) -> None:  # noqa: FBT001 - a field
    assert translate.create_params(body(allowInternetAccess=allow), KNOWN).network == network


def test_token_opens_the_inside_and_the_ports() -> None:
    found = translate.sandbox_object(sandbox_info(), "secret", "preview.example.com")
    assert (found["envdAccessToken"], found["trafficAccessToken"], found["domain"]) == ("secret", "secret", "preview.example.com")
    assert translate.sandbox_object(sandbox_info()).keys().isdisjoint({"envdAccessToken", "trafficAccessToken"})


def test_every_state_has_a_status() -> None:
    assert set(translate.STATUSES) == set(State)
    assert set(translate.STATUSES.values()) == {"creating", "running", "paused", "stopped", "error"}
    assert translate.parse_status_filter(None) == {"creating", "running", "paused"}
    assert translate.parse_status_filter("stopped") == {"stopped"}
    with pytest.raises(InvalidRequestError, match="invalid status filter: gone"):
        translate.parse_status_filter("gone")


def test_webhook_events_are_translated_both_ways() -> None:
    assert set(webhook_payload.TYPES) <= set(EVENT_TYPES)
    assert webhook_payload.parse_types([]) == list(webhook_payload.TYPES)
    types = webhook_payload.parse_types(["sandbox.lifecycle.paused", "sandbox.lifecycle.killed"])
    assert types == ["sandbox.paused", "sandbox.hibernated", "sandbox.ended"]
    assert webhook_payload.vendor_types(["sandbox.paused", "sandbox.hibernated", "snapshot.created"]) == ["sandbox.lifecycle.paused"]
    with pytest.raises(InvalidRequestError, match=r"unknown event: session\.error"):
        webhook_payload.parse_types(["session.error"])
    shown = webhook_payload.webhook_object(webhook())
    assert set(shown) == {"id", "name", "url", "resourceType", "events", "enabled", "createdAt"}, "its secret is not among them"
