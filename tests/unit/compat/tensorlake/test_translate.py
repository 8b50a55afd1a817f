"""Translation between the Tensorlake API and the node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from sandlot.compat.tensorlake import translate
from sandlot.compat.tensorlake.control.schemas import (
    CreateSandboxRequest,
    Network,
    NetworkOptions,
    PoolRequest,
    ResourceOptions,
    UpdateSandboxRequest,
)
from sandlot.compat.tensorlake.runtime import translate as inner
from sandlot.compat.tensorlake.runtime.lines import MAX_LINE_BYTES, LineBuffer
from sandlot.compat.tensorlake.runtime.schemas import StartProcessRequest
from sandlot.model.access import OPERATOR, OwnerId, Principal, Quota
from sandlot.model.buffer_budget import BufferBudget
from sandlot.model.errors import ForbiddenError, InvalidRequestError
from sandlot.model.executions import Output, OutputGap, ProcessOutcome
from sandlot.model.ids import ProcessId
from sandlot.model.network import MOST_OPEN, NetworkMode, NetworkPolicy, NetworkUpTo, network_entries
from sandlot.model.specs import SnapshotKind, User
from sandlot.model.states import State
from tests.support.cases import cases
from tests.support.scripted_node import sandbox_info

KEY = Principal(OwnerId("a11ce0a11ce0"), "alice")


def test_every_state_is_translated() -> None:
    assert set(translate.STATUSES) == set(State)


def test_snapshot_holds_memory_by_default() -> None:
    kinds = [SnapshotKind.MEMORY, SnapshotKind.MEMORY, SnapshotKind.FILES]
    assert [translate.snapshot_kind(word) for word in (None, "memory", "filesystem")] == kinds


@cases("given, seconds", [(None, 300.0), (0, None), (77, 77.0)])
def test_zero_means_no_timeout(given: int | None, seconds: float | None) -> None:
    assert translate.create_params(CreateSandboxRequest(timeout_secs=given), KEY).timeout_s == seconds


@cases(
    "asked, user",
    [
        (None, User.USER),
        ("user", User.USER),
        ("1000:1000", User.USER),
        ("root", User.ROOT),
        ({"uid": 0}, User.ROOT),
        ({"uid": 1000, "gid": 1000}, User.USER),
        ({"name": "root", "uid": None}, User.ROOT),
        ("nobody", User("nobody")),
        ("0:5", User("0:5")),
        ({"uid": 5}, User("5")),
        ({"name": "www-data", "gid": 5}, User("www-data:5")),
    ],
)
def test_users_are_names_or_ids(asked: str | dict[str, str | int | None] | None, user: User) -> None:
    assert translate.user(asked) == user


@cases("asked", ["", "a b", "a:b:c", {}, {"name": "root", "uid": 0}, {"gid": 0}, {"name": "root", "x": "y"}])
def test_values_that_are_no_user_are_refused(asked: str | dict[str, str | int | None]) -> None:
    with pytest.raises(InvalidRequestError):
        translate.user(asked)


@cases("word, pid", [("7", 7), ("0", 0), ("kitty", None), ("7a", None), ("-7", None), ("9" * 50, 1 << 31), ("", None)])
def test_process_selector_is_a_pid_or_a_name(word: str, pid: int | None) -> None:
    assert inner.parse_pid(word) == pid


@cases(
    "reason, signal, told",
    [
        ("exited", None, {"exit_code": 137, "reason": "exited"}),
        ("signalled", 15, {"signal": 15, "reason": "signaled", "oom_killed": False}),
        ("timeout", 9, {"signal": 9, "reason": "timed_out", "oom_killed": False}),
        ("timeout", None, {"signal": 9, "reason": "timed_out", "oom_killed": False}),
        ("oom", 9, {"signal": 9, "reason": "oom_killed", "oom_killed": True}),
    ],
)
def test_process_outcome_is_translated(reason: str, signal: int | None, told: dict[str, object]) -> None:
    assert inner.ended(ProcessOutcome(ProcessId("0" * 32), 137, signal, reason, 1.0)) == told


@cases("name", ["", "5", "a/b"])
def test_invalid_process_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError):
        inner.start_spec(StartProcessRequest(command="true", name=name))


def test_terminal_messages_are_translated() -> None:
    assert inner.parse_size(b"\x01\x00\x64\x00\x1e") == (30, 100)
    assert inner.exit_message(-1) == b"\x03\xff\xff\xff\xff"
    with pytest.raises(InvalidRequestError):
        inner.parse_size(b"\x01\x00")


def test_lines_are_joined_and_their_memory_is_released() -> None:
    buffers = BufferBudget(4 * MAX_LINE_BYTES)
    lines = LineBuffer(buffers)
    assert lines.add(Output(1, 0, b"a\nb")) == [(1, "a")]
    assert lines.add(Output(2, 0, b"err")) == []
    assert buffers.taken_bytes == 4
    assert lines.add(Output(1, 3, b"c\xff\r\n\nd")) == [(1, "bc\ufffd\r"), (1, "")]
    assert lines.add(OutputGap(2, 7, 3)) == [(2, "err"), (2, "[7 bytes are no longer kept]")]
    assert lines.end() == [(1, "d")]
    assert lines.end() == []
    assert buffers.taken_bytes == 0
    lines.add(Output(1, 0, b"x"))
    lines.close()
    assert buffers.taken_bytes == 0


def test_endless_line_is_split_between_two_characters() -> None:
    for most in (3 * MAX_LINE_BYTES, 100_000):
        lines = LineBuffer(BufferBudget(most))
        raw, size = "☕".encode() * 4_000_000, 64_000
        told = [line for at in range(0, len(raw), size) for line in lines.add(Output(1, at, raw[at : at + size]))]
        assert told
        assert all("\ufffd" not in text for _, text in told)
        assert sum(len(text) for _, text in [*told, *lines.end()]) == 4_000_000


def test_endless_line_is_split() -> None:
    for most in (4 * MAX_LINE_BYTES, 100_000):
        buffers = BufferBudget(most)
        lines = LineBuffer(buffers)
        piece = b"x" * 64_000
        told = [line for _ in range(300) for line in lines.add(Output(1, 0, piece))]
        assert sum(len(text) for _, text in [*told, *lines.end()]) == 300 * len(piece)
        assert max(len(text) for _, text in told) <= MAX_LINE_BYTES + len(piece)
        assert buffers.taken_bytes == 0


def internet(*, deny: Sequence[str] = ()) -> NetworkUpTo:
    return NetworkUpTo(NetworkPolicy(NetworkMode.INTERNET, network_entries(deny=deny)))


def allowlist(*allow: str, deny: Sequence[str] = ()) -> NetworkPolicy:
    return NetworkPolicy(NetworkMode.ALLOWLIST, network_entries(allow, deny), packages=False)


NETWORKS: list[tuple[dict[str, Any] | None, NetworkPolicy | NetworkUpTo]] = [
    (None, MOST_OPEN),
    ({}, MOST_OPEN),
    ({"allow_internet_access": False}, NetworkPolicy(NetworkMode.NONE)),
    ({"allow_internet_access": False, "deny_out": ["8.8.8.8"]}, NetworkPolicy(NetworkMode.NONE)),
    ({"deny_out": ["ads.example.com", "10.0.0.0/8"]}, internet(deny=["ads.example.com:*", "10.0.0.0/8"])),
    ({"allow_out": ["8.8.8.8", "example.com:443"]}, allowlist("8.8.8.8", "example.com:*")),
    ({"allow_out": ["example.com"], "deny_out": ["8.8.8.8:53"]}, allowlist("example.com:*", deny=["8.8.8.8"])),
    ({"allow_internet_access": False, "allow_out": ["8.8.8.0/24"]}, allowlist("8.8.8.0/24")),
]


@cases("given, policy", NETWORKS)
def test_network_is_a_policy_in_which_denied_destinations_come_first(given: dict[str, Any] | None, policy: NetworkPolicy | NetworkUpTo) -> None:
    options = None if given is None else NetworkOptions.model_validate(given)
    assert translate.create_params(CreateSandboxRequest(network=options), KEY).network == policy
    assert translate.update_params(UpdateSandboxRequest(network=options), KEY).network == policy, "null clears, other values set"
    pool = PoolRequest(image="base", resources=ResourceOptions(), network=options)
    assert translate.network_policy(translate.pool_network(translate.pool_labels(pool))) == policy


def test_omitted_network_is_kept() -> None:
    assert translate.update_params(UpdateSandboxRequest(name="x"), KEY).network is None
    assert translate.create_params(CreateSandboxRequest(snapshot_id="s"), KEY).network is None


@cases("given", [{"allow_internet_access": False, "allow_out": ["8.8.8.8", "example.com"]}, {"allow_out": ["*"]}, {"deny_out": ["a..com"]}])
def test_invalid_network_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        translate.create_params(CreateSandboxRequest(network=NetworkOptions.model_validate(given)), KEY)


@cases(
    "policy, shown",
    [
        (NetworkPolicy(NetworkMode.NONE), Network(allow_internet_access=False)),
        (NetworkPolicy(), Network(allow_internet_access=False)),
        (internet().policy, None),
        (internet(deny=["a.com:*"]).policy, Network(allow_internet_access=True, deny_out=["a.com"])),
        (allowlist("a.com:*", deny=["8.8.8.8"]), Network(allow_internet_access=True, allow_out=["a.com"], deny_out=["8.8.8.8"])),
    ],
)
def test_sandbox_shows_its_effective_policy(policy: NetworkPolicy, shown: Network | None) -> None:
    assert translate.network(policy) == shown


# Ports ----------------------------------------------------------------------------------------------------------------


@cases("given, public", [(None, False), (False, False), (True, True)])
def test_unauthenticated_access_is_public_ports(given: bool | None, *, public: bool) -> None:  # noqa: FBT001 - a field of a body
    allowed = replace(KEY, quota=Quota(public_ports=True))
    for principal in (allowed, OPERATOR):
        assert translate.create_params(CreateSandboxRequest(allow_unauthenticated_access=given), principal).public_ports is public
        assert translate.update_params(UpdateSandboxRequest(allow_unauthenticated_access=given), principal).public_ports is given


def test_unauthenticated_access_without_the_quota_is_refused_by_name() -> None:
    for refuse in (
        lambda: translate.create_params(CreateSandboxRequest(allow_unauthenticated_access=True), KEY),
        lambda: translate.update_params(UpdateSandboxRequest(allow_unauthenticated_access=True, exposed_ports=[80]), KEY),
    ):
        with pytest.raises(ForbiddenError, match=r"allow_unauthenticated_access .* `public_ports`") as refused:
            refuse()
        assert refused.value.fields == {"field": "allow_unauthenticated_access", "quota": "public_ports"}
    assert not translate.create_params(CreateSandboxRequest(allow_unauthenticated_access=False), KEY).public_ports


@cases("ports", [[], [80], [9000, 80, 80]])
def test_exposed_ports_are_returned_as_sent(ports: list[int]) -> None:
    created = translate.create_params(CreateSandboxRequest(exposed_ports=ports), KEY)
    updated = translate.update_params(UpdateSandboxRequest(exposed_ports=ports), KEY)
    assert created.metadata.items() >= updated.labels.items() > {}.items()
    assert translate.sandbox_response(sandbox_info(metadata=updated.labels), "").exposed_ports == ports


def test_ports_that_are_not_named_stay() -> None:
    assert translate.update_params(UpdateSandboxRequest(name="x"), KEY).labels == {}
    response = translate.sandbox_response(sandbox_info(), "")
    assert (response.exposed_ports, response.allow_unauthenticated_access) == ([], False)


def test_domain_of_previews_is_the_ingress_endpoint() -> None:
    assert translate.sandbox_response(sandbox_info(), "", "https://preview.example.com").ingress_endpoint == "https://preview.example.com"
    assert translate.sandbox_response(sandbox_info(), "").ingress_endpoint is None


@cases("ports", [[0], [65536], ["80"], [True], [80] * 1001])
def test_values_that_are_no_ports_are_refused(ports: list[Any]) -> None:
    for model in (CreateSandboxRequest, UpdateSandboxRequest):
        with pytest.raises(ValidationError):
            model.model_validate({"exposed_ports": ports})
