"""Checks of create requests: isolation, network, capabilities of the driver, names and metadata."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from ipaddress import ip_network

import pytest

from sandlot.core.admission import (
    AdmissionPolicy,
    NetworkLimits,
    check_host,
    check_public_ports,
    check_room,
    check_root,
    resolve_isolation,
    resolve_network,
)
from sandlot.model.access import OPERATOR, OwnerId, Principal, Quota
from sandlot.model.errors import ErrorCode, ForbiddenError, HostError, InvalidRequestError, SandlotError, UnavailableError, UnsupportedError
from sandlot.model.network import MOST_OPEN, RULE_EXAMPLE, NetworkMode, NetworkPolicy, NetworkUpTo, network_entries, parse_rule
from sandlot.model.ports import Capabilities, DriverCapability, ProbeResult, RuntimeInfo
from sandlot.model.sandboxes import CreateSandboxParams, UpdateSandboxParams, check_reserved_names
from sandlot.model.specs import RootKind

POLICY = AdmissionPolicy()
CONTAINERS = AdmissionPolicy(isolation_default="container", isolation_allowed=("gvisor", "container"))
EVERYTHING = dict.fromkeys(DriverCapability, ProbeResult(ok=True))
RUNSC = RuntimeInfo("runsc", "1")
ABLE = Capabilities("gvisor", RUNSC, EVERYTHING)


# Isolation ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "requested, policy, isolation", [("auto", POLICY, "gvisor"), ("auto", CONTAINERS, "container"), ("gvisor", CONTAINERS, "gvisor")]
)
def test_auto_is_the_default_isolation_and_another_isolation_is_kept(requested: str, policy: AdmissionPolicy, isolation: str) -> None:
    assert resolve_isolation(requested, policy, ["gvisor", "container"]) == isolation


@pytest.mark.parametrize(
    "requested, policy, error, code",
    [
        ("container", POLICY, ForbiddenError, ErrorCode.FORBIDDEN),
        ("microvm", POLICY, ForbiddenError, ErrorCode.FORBIDDEN),
        ("docker", POLICY, InvalidRequestError, ErrorCode.INVALID_REQUEST),
        ("", POLICY, InvalidRequestError, ErrorCode.INVALID_REQUEST),
        ("microvm", AdmissionPolicy(isolation_allowed=("microvm",)), UnsupportedError, ErrorCode.UNSUPPORTED),
        ("auto", AdmissionPolicy(isolation_allowed=()), ForbiddenError, ErrorCode.FORBIDDEN),
    ],
)
def test_isolation_that_is_unknown_forbidden_or_unsupported_is_refused(
    requested: str, policy: AdmissionPolicy, error: type[SandlotError], code: ErrorCode
) -> None:
    with pytest.raises(error) as refused:
        resolve_isolation(requested, policy, ["gvisor"])

    assert refused.value.code == code
    assert refused.value.hint


def test_isolation_of_another_driver_is_accepted() -> None:
    policy = AdmissionPolicy(isolation_allowed=("gvisor", "acme"))
    assert resolve_isolation("acme", policy, ["gvisor", "container", "acme"]) == "acme"


def test_snapshot_is_not_started_with_another_isolation() -> None:
    assert resolve_isolation("auto", CONTAINERS, ["gvisor", "container"], source="gvisor") == "gvisor"
    assert resolve_isolation("gvisor", CONTAINERS, ["gvisor", "container"], source="gvisor") == "gvisor"
    with pytest.raises(InvalidRequestError, match="parent sandbox has isolation 'gvisor'"):
        resolve_isolation("container", CONTAINERS, ["gvisor", "container"], source="gvisor")


# Network --------------------------------------------------------------------------------------------------------------


def caller(most_open: NetworkMode | None = None, *, operator: bool = False) -> Principal:
    """Return a principal whose quota has a most open mode."""
    return Principal(OwnerId("key"), "key", operator=operator, quota=Quota(network=most_open))


def allowlist(*rules: str, deny: Sequence[str] = ()) -> NetworkPolicy:
    return NetworkPolicy(NetworkMode.ALLOWLIST, network_entries(rules, deny))


@pytest.mark.parametrize(
    "modes, most_open, mode",
    [
        ([NetworkMode.NONE, NetworkMode.PACKAGES], None, NetworkMode.PACKAGES),
        ([NetworkMode.NONE, NetworkMode.PACKAGES], NetworkMode.INTERNET, NetworkMode.PACKAGES),
        ([NetworkMode.NONE, NetworkMode.PACKAGES], NetworkMode.NONE, NetworkMode.NONE),
        ([NetworkMode.NONE], None, NetworkMode.NONE),
        (None, None, NetworkMode.PACKAGES),
    ],
)
def test_default_network_is_packages_where_it_is_allowed(modes: list[NetworkMode] | None, most_open: NetworkMode | None, mode: NetworkMode) -> None:
    assert resolve_network(None, NetworkLimits(modes), caller(most_open), ABLE) == NetworkPolicy(mode)


@pytest.mark.parametrize(
    "modes, principal, allowed",
    [
        (None, caller(), ["none", "packages", "allowlist"]),
        (None, caller(operator=True), ["none", "packages", "allowlist", "internet"]),
        (None, caller(NetworkMode.PACKAGES), ["none", "packages"]),
        ((NetworkMode.INTERNET, NetworkMode.NONE), caller(), ["none", "internet"]),
        ((NetworkMode.NONE,), caller(operator=True), ["none"]),
    ],
)
def test_network_mode_that_the_operator_or_the_key_does_not_allow_is_refused(
    modes: tuple[NetworkMode, ...] | None, principal: Principal, allowed: list[str]
) -> None:
    for mode in NetworkMode:
        if mode in allowed:
            assert resolve_network(NetworkPolicy(mode), NetworkLimits(modes), principal, ABLE) == NetworkPolicy(mode)
            continue
        with pytest.raises(ForbiddenError) as refused:
            resolve_network(NetworkPolicy(mode), NetworkLimits(modes), principal, ABLE)
        assert refused.value.fields["allowed"] == allowed
        assert ", ".join(allowed) in refused.value.message


@pytest.mark.parametrize(
    "modes, requested, policy",
    [
        (list(NetworkMode), MOST_OPEN, NetworkPolicy(NetworkMode.INTERNET)),
        (None, MOST_OPEN, NetworkPolicy(NetworkMode.ALLOWLIST)),
        ([NetworkMode.NONE, NetworkMode.PACKAGES], MOST_OPEN, NetworkPolicy(NetworkMode.PACKAGES)),
        ([NetworkMode.NONE], MOST_OPEN, NetworkPolicy(NetworkMode.NONE)),
        (list(NetworkMode), NetworkUpTo(allowlist("example.com")), allowlist("example.com")),
        (
            [NetworkMode.PACKAGES],
            NetworkUpTo(NetworkPolicy(NetworkMode.INTERNET, network_entries(deny=["example.com"]))),
            NetworkPolicy(NetworkMode.PACKAGES),
        ),
        ([NetworkMode.NONE, NetworkMode.PACKAGES], NetworkUpTo(NetworkPolicy(NetworkMode.INTERNET, packages=False)), NetworkPolicy(NetworkMode.NONE)),
    ],
)
def test_most_open_policy_is_the_most_open_one_that_is_allowed(
    modes: list[NetworkMode] | None, requested: NetworkUpTo, policy: NetworkPolicy
) -> None:
    assert resolve_network(requested, NetworkLimits(modes), caller(), ABLE) == policy


def test_rules_that_allow_are_refused_rather_than_ignored() -> None:
    requested = NetworkUpTo(NetworkPolicy(NetworkMode.INTERNET, network_entries(["example.com"])))
    with pytest.raises(ForbiddenError):
        resolve_network(requested, NetworkLimits([NetworkMode.NONE, NetworkMode.PACKAGES]), caller(), ABLE)


def test_driver_without_network_card_is_refused_with_the_reason() -> None:
    unable = Capabilities("gvisor", RUNSC, {**EVERYTHING, DriverCapability.NETWORK: ProbeResult(ok=False, reason="untested release")})
    limits = NetworkLimits(list(NetworkMode))
    for mode in (NetworkMode.ALLOWLIST, NetworkMode.INTERNET):
        with pytest.raises(UnsupportedError, match="untested release"):
            resolve_network(NetworkPolicy(mode), limits, caller(), unable)
    with pytest.raises(UnsupportedError, match="untested release"):
        resolve_network(NetworkUpTo(allowlist("example.com")), limits, caller(), unable)
    assert resolve_network(MOST_OPEN, limits, caller(), unable) == NetworkPolicy(NetworkMode.PACKAGES)
    assert resolve_network(NetworkPolicy(NetworkMode.NONE), limits, caller(), unable) == NetworkPolicy(NetworkMode.NONE)


def test_network_policy_that_asks_is_refused() -> None:
    with pytest.raises(UnsupportedError) as refused:
        resolve_network(NetworkPolicy(NetworkMode.ALLOWLIST, unknown="ask"), NetworkLimits(), caller(), ABLE)
    assert refused.value.fields["field"] == "network.unknown"


@pytest.mark.parametrize(
    "rule", ["10.0.0.1", "10.0.0.0/8", "127.0.0.1:80", "169.254.169.254", "0x7f.1", "0.0.0.0/0", "8.0.0.0/5", "[::1]", "[fd00::]/8", "9.9.9.9"]
)
def test_rule_that_allows_private_or_own_addresses_is_refused_with_its_position(rule: str) -> None:
    limits = NetworkLimits(is_own=lambda address: str(address) == "9.9.9.9")
    with pytest.raises(InvalidRequestError) as refused:
        resolve_network(allowlist("example.com", rule, deny=["10.0.0.0/8"]), limits, caller(), ABLE)
    text = str(parse_rule(rule))
    assert (refused.value.fields["field"], refused.value.fields["position"], refused.value.fields["rule"]) == ("network.allow", 1, text)
    assert RULE_EXAMPLE in refused.value.hint


def test_private_network_is_allowed_if_the_operator_lists_it() -> None:
    limits = NetworkLimits(private=(ip_network("10.0.0.0/8"), ip_network("9.9.9.9")), is_own=lambda address: str(address) == "9.9.9.9")
    for rule in ("10.1.2.3", "10.0.0.0/8", "10.4.0.0/16:80", "9.9.9.9", "8.8.8.0/24", "[2606:4700::]/32"):
        assert resolve_network(allowlist(rule), limits, caller(), ABLE) == allowlist(rule)
    with pytest.raises(InvalidRequestError):
        resolve_network(allowlist("10.0.0.0/7"), limits, caller(), ABLE)


@pytest.mark.parametrize("rule", ["GET example.com:443", "example.com:443/v1"])
def test_rule_that_limits_requests_over_https_is_refused(rule: str) -> None:
    for policy, field in (
        (allowlist("example.com", rule), "network.allow"),
        (allowlist("example.com", deny=["a.example.com", rule]), "network.deny"),
    ):
        with pytest.raises(InvalidRequestError) as refused:
            resolve_network(policy, NetworkLimits(), caller(), ABLE)
        assert (refused.value.fields["field"], refused.value.fields["position"]) == (field, 1)
        assert RULE_EXAMPLE in refused.value.hint
    plain = allowlist("GET example.com:80", "example.com/v1")
    assert resolve_network(plain, NetworkLimits(), caller(), ABLE) == plain


def test_new_sandbox_has_no_earlier_changes_of_its_policy() -> None:
    inherited = replace(allowlist("example.com"), generation=7)
    assert resolve_network(inherited, NetworkLimits(), caller(), ABLE) == allowlist("example.com")


# Host and room --------------------------------------------------------------------------------------------------------


def test_driver_with_all_capabilities_is_accepted() -> None:
    check_host(Capabilities("gvisor", RUNSC, EVERYTHING), volumes=True)


@pytest.mark.parametrize(
    "missing",
    [DriverCapability.BOOT, DriverCapability.LIMIT_MEMORY, DriverCapability.LIMIT_CPU, DriverCapability.LIMIT_PIDS, DriverCapability.LIMIT_DISK],
)
def test_driver_that_cannot_enforce_a_limit_is_refused_with_the_reason(missing: DriverCapability) -> None:
    capabilities = Capabilities("gvisor", RUNSC, {**EVERYTHING, missing: ProbeResult(ok=False, reason="no such controller")})

    with pytest.raises(HostError, match="no such controller"):
        check_host(capabilities)


def test_driver_without_volumes_is_refused_only_for_sandboxes_with_volumes() -> None:
    capabilities = Capabilities(
        "gvisor", RuntimeInfo("runsc", "1"), {**EVERYTHING, DriverCapability.VOLUMES: ProbeResult(ok=False, reason="no bind mounts")}
    )
    check_host(capabilities)

    with pytest.raises(UnsupportedError, match="no bind mounts"):
        check_host(capabilities, volumes=True)


def test_template_of_an_image_is_refused_by_a_driver_that_starts_only_folders() -> None:
    capabilities = Capabilities("container", RUNSC, {**EVERYTHING, DriverCapability.BOOT_IMAGE: ProbeResult(ok=False, reason="the kernel would")})
    check_root(capabilities, "mine", RootKind.TREE)
    check_root(Capabilities("gvisor", RUNSC, EVERYTHING), "mine", RootKind.IMAGE)

    with pytest.raises(UnsupportedError, match="template 'mine': the kernel would") as refused:
        check_root(capabilities, "mine", RootKind.IMAGE)
    assert "gvisor" in refused.value.hint
    assert refused.value.fields["field"] == "isolation"


@pytest.mark.parametrize("live, waiting", [(50, 0), (0, 100)])
def test_create_beyond_the_operators_numbers_is_busy(live: int, waiting: int) -> None:
    check_room(49, 99, 0, POLICY)

    with pytest.raises(UnavailableError) as error:
        check_room(live, waiting, 0, POLICY)

    assert error.value.code is ErrorCode.BUSY
    assert error.value.fields["retry_after_s"] > 0


def test_create_beyond_what_waits_for_other_keys_is_busy() -> None:
    check_room(0, 49, 49, POLICY)
    check_room(0, 99, 0, POLICY)
    for waiting, own in ((50, 50), (80, 20)):
        with pytest.raises(UnavailableError) as error:
            check_room(0, waiting, own, POLICY)
        assert error.value.code is ErrorCode.BUSY
        assert error.value.fields["retry_after_s"] > 0


# Names and metadata ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "-x", ".x", "a b", "a/b", "x" * 64, "ä", "a\n"])
def test_invalid_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError):
        CreateSandboxParams(name=name)


@pytest.mark.parametrize("name", ["a", "A-1_b.c", "x" * 63])
def test_valid_name_is_accepted(name: str) -> None:
    assert CreateSandboxParams(name=name).name == name


def test_name_in_the_form_of_a_sandbox_id_is_refused() -> None:
    for params in (CreateSandboxParams, UpdateSandboxParams):
        with pytest.raises(InvalidRequestError):
            params(name="sb-abcd-" + "a2" * 8)
        assert params(name="sb-abcd").name == "sb-abcd"


@pytest.mark.parametrize(
    "metadata", [{str(i): "" for i in range(65)}, {"k": "x" * 16384}, {"k": "\0"}, {"k": "\ud800"}, {"n" * 256: ""}, {"ä" * 128: ""}]
)
def test_metadata_that_is_too_large_or_no_text_is_refused(metadata: dict[str, str]) -> None:
    with pytest.raises(InvalidRequestError):
        CreateSandboxParams(metadata=metadata)


@pytest.mark.parametrize("metadata", [{"k": "x" * 16383}, {str(i): "" for i in range(64)}, {"n" * 255: "", "ä" * 127: ""}])
def test_metadata_of_the_largest_size_is_accepted(metadata: dict[str, str]) -> None:
    assert CreateSandboxParams(metadata=metadata).metadata == metadata


def test_reserved_metadata_is_refused_unless_it_repeats_a_current_entry() -> None:
    check_reserved_names({"sandlot.pool": "a", "mine": "b"}, {"sandlot.pool": "a"})

    with pytest.raises(InvalidRequestError):
        check_reserved_names({"sandlot.pool": "b"}, {"sandlot.pool": "a"})


def test_network_can_always_be_closed() -> None:
    assert NetworkLimits((NetworkMode.INTERNET,)).modes_of(OPERATOR) == [NetworkMode.NONE, NetworkMode.INTERNET]


# Public ports ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "quota, operator, requested, allowed",
    [
        (Quota(), False, True, False),
        (Quota(), False, False, True),
        (Quota(), False, None, True),
        (Quota(public_ports=True), False, True, True),
        (Quota(), True, True, True),
        (OPERATOR.quota, False, True, True),
    ],
)
def test_public_ports_need_the_quota_or_an_operator(quota: Quota, *, operator: bool, requested: bool | None, allowed: bool) -> None:
    principal = Principal(OwnerId("a11ce0a11ce0"), "alice", operator=operator, quota=quota)
    if allowed:
        check_public_ports(principal, requested=requested)
        return
    with pytest.raises(ForbiddenError) as refused:
        check_public_ports(principal, requested=requested)
    assert refused.value.fields == {"field": "public_ports", "quota": "public_ports"}
    assert refused.value.hint
