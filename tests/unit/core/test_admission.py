"""Checks of create requests: isolation, network, capabilities of the driver, names and metadata."""

from __future__ import annotations

import pytest

from sandlot.core.admission import AdmissionPolicy, NetworkLimits, check_host, check_room, resolve_isolation, resolve_network
from sandlot.model.access import Quota
from sandlot.model.errors import ErrorCode, ForbiddenError, HostError, InvalidRequestError, SandlotError, UnavailableError, UnsupportedError
from sandlot.model.network import NetworkEntry, NetworkMode, NetworkPolicy
from sandlot.model.ports import Capabilities, DriverCapability, ProbeResult, RuntimeInfo
from sandlot.model.sandboxes import CreateSandboxParams, UpdateSandboxParams, check_reserved_names

POLICY = AdmissionPolicy()
CONTAINERS = AdmissionPolicy(isolation_default="container", isolation_allowed=("gvisor", "container"))
EVERYTHING = dict.fromkeys(DriverCapability, ProbeResult(ok=True))
RUNSC = RuntimeInfo("runsc", "1")


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


@pytest.mark.parametrize(
    "modes, most_open, mode",
    [
        ([NetworkMode.NONE, NetworkMode.PACKAGES], None, NetworkMode.PACKAGES),
        ([NetworkMode.NONE, NetworkMode.PACKAGES], NetworkMode.INTERNET, NetworkMode.PACKAGES),
        ([NetworkMode.NONE, NetworkMode.PACKAGES], NetworkMode.NONE, NetworkMode.NONE),
        ([NetworkMode.NONE], None, NetworkMode.NONE),
    ],
)
def test_default_network_is_packages_where_it_is_allowed(modes: list[NetworkMode], most_open: NetworkMode | None, mode: NetworkMode) -> None:
    assert resolve_network(None, NetworkLimits(modes), Quota(network=most_open)) == NetworkPolicy(mode)


@pytest.mark.parametrize("mode", [NetworkMode.NONE, NetworkMode.PACKAGES])
def test_enforced_network_policy_is_accepted(mode: NetworkMode) -> None:
    assert resolve_network(NetworkPolicy(mode), POLICY.network, Quota()) == NetworkPolicy(mode)


@pytest.mark.parametrize(
    "policy",
    [
        NetworkPolicy(NetworkMode.ALLOWLIST),
        NetworkPolicy(NetworkMode.ALLOWLIST, unknown="ask"),
        NetworkPolicy(NetworkMode.ALLOWLIST, entries=(NetworkEntry(allow=True, rule="example.com"),)),
        NetworkPolicy(NetworkMode.INTERNET),
        NetworkPolicy(NetworkMode.INTERNET, entries=(NetworkEntry(allow=False, rule="example.com"),)),
    ],
)
def test_network_policy_that_is_not_enforced_is_refused_with_the_reason(policy: NetworkPolicy) -> None:
    with pytest.raises(UnsupportedError, match=f"{policy.mode}.*egress proxy"):
        resolve_network(policy, NetworkLimits(list(NetworkMode)), Quota())


def test_network_mode_that_the_operator_does_not_allow_is_refused() -> None:
    with pytest.raises(ForbiddenError, match="'packages' is not allowed") as refused:
        resolve_network(NetworkPolicy(NetworkMode.PACKAGES), NetworkLimits([NetworkMode.NONE]), Quota())
    assert refused.value.hint == "Use one of: none."


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
