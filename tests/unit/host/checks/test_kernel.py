"""Checks of the kernel: fixes for each restriction."""

from __future__ import annotations

import pytest

from sandlot.host.checks import kernel


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


def test_unknown_setting_of_the_kernel_is_none() -> None:
    assert kernel.read_setting("kernel/no_such_setting") is None
    assert kernel.read_setting("kernel/pid_max") is not None
