"""The lists of system calls. That the kernel enforces them is tried inside, by the tests of the boundary."""

from __future__ import annotations

import pytest

from sandlot.drivers.oci.container.seccomp import ALLOWED, CLONE_NAMESPACES, REFUSED, WITHOUT_EFFECT, seccomp_filter


def test_each_call_is_listed_once() -> None:
    every = (*ALLOWED, *REFUSED, *WITHOUT_EFFECT, "clone", "clone3", "pipe2", "socket", "socketpair", "personality")
    assert len(set(every)) == len(every)


def test_unlisted_call_fails_as_on_a_kernel_without_it() -> None:
    made = seccomp_filter()
    assert (made["defaultAction"], made["defaultErrnoRet"]) == ("SCMP_ACT_ERRNO", 38)
    assert made["architectures"] == ["SCMP_ARCH_X86_64"]
    assert {name for rule in made["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW" and "args" not in rule for name in rule["names"]} == set(ALLOWED)


@pytest.mark.parametrize(
    "name",
    [
        "clone3",
        "io_uring_setup",
        "io_uring_enter",
        "io_uring_register",
        "mount",
        "unshare",
        "setns",
        "bpf",
        "keyctl",
        "perf_event_open",
        "uselib",
        "io_setup",
    ],
)
def test_calls_that_reach_risky_parts_of_the_kernel_are_not_allowed(name: str) -> None:
    assert name not in ALLOWED


def test_clone_creates_threads_and_no_namespaces() -> None:
    (clone,) = (rule for rule in seccomp_filter()["syscalls"] if rule["names"] == ["clone"])
    assert clone["args"] == [{"index": 0, "value": CLONE_NAMESPACES, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]
    new = {"NS": 0x20000, "CGROUP": 0x2000000, "UTS": 0x4000000, "IPC": 0x8000000, "USER": 0x10000000, "PID": 0x20000000, "NET": 0x40000000}
    assert sum(new.values()) == CLONE_NAMESPACES


def test_only_a_few_kinds_of_sockets_are_allowed() -> None:
    rules = [rule["args"] for rule in seccomp_filter()["syscalls"] if "socket" in rule["names"]]
    allowed = {tuple(argument["valueTwo"] if argument["op"] == "SCMP_CMP_MASKED_EQ" else argument["value"] for argument in each) for each in rules}
    internet = {(family, kind, protocol) for family in (2, 10) for kind, protocol in ((1, 0), (1, 6), (2, 0), (2, 17))}
    assert allowed == {(1,), *internet, (16, 0)}
    assert all(argument["value"] == 0xF for each in rules for argument in each if argument["op"] == "SCMP_CMP_MASKED_EQ")


def test_pipes_cannot_be_watch_queues() -> None:
    (pipe,) = (rule for rule in seccomp_filter()["syscalls"] if rule["names"] == ["pipe2"])
    assert pipe["args"] == [{"index": 1, "value": 0x80, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]
