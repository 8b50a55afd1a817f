"""What the kernel gives: this one gives it all; what is said of others."""

from __future__ import annotations

import pytest

from sandlot.host.checks import kernel
from sandlot.host.checks.children import Task, run


def test_namespaces_filters_and_handles_are_there_on_this_machine() -> None:
    told = run([Task("kernel", "sandlot.host.checks.kernel:check_kernel", deadline_s=60.0)])["kernel"].value
    assert {each["name"]: each["ok"] for each in told} == dict.fromkeys(("namespaces", "seccomp", "pidfds"), True)
    assert [part["name"] for part in told[0]["parts"]] == list(kernel.NAMESPACES)


@pytest.mark.parametrize(
    "lacking, facts, uid, word",
    [
        (["user"], {"user/max_user_namespaces": "0"}, 0, "sysctl -w user.max_user_namespaces="),
        (["mount"], {"user/max_mnt_namespaces": "0"}, 0, "sysctl -w user.max_mnt_namespaces="),
        (["user"], {"kernel/apparmor_restrict_unprivileged_userns": "1"}, 1000, "apparmor_restrict_unprivileged_userns"),
        (["user"], {"kernel/unprivileged_userns_clone": "0"}, 1000, "unprivileged_userns_clone"),
        (["user"], {}, 1000, "Run as root."),
        (["user"], {"kernel/unprivileged_userns_clone": "0"}, 0, "CAP_SYS_ADMIN"),
    ],
    ids=["none-allowed", "no-mounts", "apparmor", "debians", "user", "container"],
)
def test_each_restriction_has_its_own_fix(lacking: list[str], facts: dict[str, str], uid: int, word: str) -> None:
    assert word in kernel.namespace_fix(lacking, facts, uid)


def test_a_setting_that_the_kernel_does_not_have_is_none() -> None:
    assert kernel.read_setting("kernel/no_such_setting") is None
    assert kernel.read_setting("kernel/pid_max") is not None
