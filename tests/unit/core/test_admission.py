"""What may be created: isolation, network, room, and what a host must be able to enforce."""

from __future__ import annotations

import pytest

from sandlot.core.admission import LATER_NETWORKS, AdmissionPolicy, CreateSandboxParams, check_host, resolve_isolation, resolve_network
from sandlot.model.errors import ErrorCode, ForbiddenError, HostError, InvalidRequestError, SandlotError, UnsupportedError
from sandlot.model.ports import Capabilities, DriverCapability, ProbeResult
from sandlot.model.specs import Network

RULES = AdmissionPolicy()


def test_auto_is_what_the_operator_says_and_nothing_else() -> None:
    assert resolve_isolation("auto", RULES, ["gvisor", "container"]) == "gvisor"
    other = AdmissionPolicy(isolation_default="container", isolation_allowed=("gvisor", "container"))
    assert resolve_isolation("auto", other, ["gvisor", "container"]) == "container"
    assert resolve_isolation("gvisor", other, ["gvisor", "container"]) == "gvisor"


@pytest.mark.parametrize(
    "asked,rules,error,code",
    [
        ("container", RULES, ForbiddenError, ErrorCode.FORBIDDEN),
        ("microvm", RULES, ForbiddenError, ErrorCode.FORBIDDEN),
        ("docker", RULES, InvalidRequestError, ErrorCode.INVALID_REQUEST),
        ("", RULES, InvalidRequestError, ErrorCode.INVALID_REQUEST),
        ("microvm", AdmissionPolicy(isolation_allowed=("microvm",)), UnsupportedError, ErrorCode.UNSUPPORTED),
        ("auto", AdmissionPolicy(isolation_allowed=()), ForbiddenError, ErrorCode.FORBIDDEN),
    ],
)
def test_other_isolation_is_refused_with_what_there_is(asked: str, rules: AdmissionPolicy, error: type[SandlotError], code: ErrorCode) -> None:
    with pytest.raises(error) as refused:
        resolve_isolation(asked, rules, ["gvisor"])
    assert refused.value.code == code
    assert refused.value.hint


def test_networks_that_are_not_enforced_are_refused_with_the_reason() -> None:
    assert (resolve_network("packages"), resolve_network("none")) == (Network.PACKAGES, Network.NONE)
    assert CreateSandboxParams().network == Network.PACKAGES
    for policy in LATER_NETWORKS:
        with pytest.raises(UnsupportedError, match=f"{policy}.*egress proxy"):
            resolve_network(policy)
    with pytest.raises(InvalidRequestError):
        resolve_network("nonE")


@pytest.mark.parametrize(
    "missing",
    [DriverCapability.BOOT, DriverCapability.LIMIT_MEMORY, DriverCapability.LIMIT_CPU, DriverCapability.LIMIT_PIDS, DriverCapability.LIMIT_DISK],
)
def test_a_host_that_cannot_keep_a_promise_is_refused_with_the_reason(missing: DriverCapability) -> None:
    every = {ability: ProbeResult(ok=True) for ability in DriverCapability}
    check_host(Capabilities("gvisor", "runsc", every))
    with pytest.raises(HostError, match="no such controller"):
        check_host(Capabilities("gvisor", "runsc", {**every, missing: ProbeResult(ok=False, reason="no such controller")}))


@pytest.mark.parametrize("name", ["", "-x", ".x", "a b", "a/b", "x" * 64, "ä", "a\n"])
def test_a_name_that_is_none(name: str) -> None:
    with pytest.raises(InvalidRequestError):
        CreateSandboxParams(name=name)


@pytest.mark.parametrize("name", ["a", "A-1_b.c", "x" * 63])
def test_a_name(name: str) -> None:
    assert CreateSandboxParams(name=name).name == name


@pytest.mark.parametrize(
    "metadata", [{str(i): "" for i in range(65)}, {"k": "x" * 16384}, {"k": "\0"}, {"k": "\ud800"}, {"n" * 256: ""}, {"ä" * 128: ""}]
)
def test_metadata_out_of_bounds(metadata: dict[str, str]) -> None:
    with pytest.raises(InvalidRequestError):
        CreateSandboxParams(metadata=metadata)


def test_metadata_within_bounds() -> None:
    CreateSandboxParams(metadata={"k": "x" * 16383})
    CreateSandboxParams(metadata={str(i): "" for i in range(64)})
    CreateSandboxParams(metadata={"n" * 255: "", "ä" * 127: ""})
