"""Structured values in the database."""

from __future__ import annotations

import json

from sandlot.model.network import NetworkEntry, NetworkMode, NetworkPolicy
from sandlot.store.schema import JsonType


def test_policy_with_addresses_is_stored_without_its_parsed_rules() -> None:
    column = JsonType(NetworkPolicy)
    policy = NetworkPolicy(NetworkMode.ALLOWLIST, (NetworkEntry(allow=True, rule="23.12.0.1:80"),))
    text = column.encode(policy)
    assert json.loads(text)["entries"] == [{"allow": True, "rule": "23.12.0.1:80"}]
    assert column.decode(text) == policy
