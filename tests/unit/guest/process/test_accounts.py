"""Accounts of the sandbox, and ids of the guest during a file call."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator

import pytest

from sandlot.guest.errors import RpcError
from sandlot.guest.process.accounts import Account, as_file_user, build_environment, lookup_account

NOBODY = Account("nobody", 65534, 65534, "/", [65534])
SIGNALLER = "while read line; do if kill -0 $PPID 2> /dev/null; then echo may; else echo may not; fi; done"


@pytest.fixture
def signaller() -> Generator[subprocess.Popen[str]]:
    """A process of ``user`` that tries to signal its parent, the test, for every line that it reads."""
    argv = ["/bin/sh", "-c", SIGNALLER]
    with subprocess.Popen(argv, user=NOBODY.uid, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as made:
        yield made
        made.kill()


def test_user_cannot_signal_the_guest_during_a_file_call(signaller: subprocess.Popen[str]) -> None:
    assert signaller.stdin is not None
    assert signaller.stdout is not None
    try:
        with as_file_user(NOBODY):
            signaller.stdin.write("\n")
            signaller.stdin.flush()
            answer = signaller.stdout.readline()
    finally:
        os.setresuid(0, 0, 0)

    assert answer == "may not\n"


def test_file_call_has_the_effective_ids_of_the_user_and_ends_as_root() -> None:
    with as_file_user(NOBODY):
        during = os.getresuid(), os.getegid(), os.getgroups()
    after = os.getresuid(), os.getresgid()

    assert during == ((0, 65534, 0), 65534, [65534])
    assert after == ((0, 0, 0), (0, 0, 0))


def test_layers_of_the_environment_override_the_account() -> None:
    who = Account("user", 1000, 1000, "/home/user", [1000])
    env = build_environment(who, {"A": "1", "HOME": "/x"}, {"A": "2"})
    assert (env["A"], env["HOME"], env["USER"]) == ("2", "/x", "user")
    assert env["PATH"].startswith("/home/user/.local/bin:")


def test_only_root_and_user_are_accounts() -> None:
    assert lookup_account("root").uid == 0
    assert lookup_account("user").uid == 1000
    with pytest.raises(RpcError, match="is unknown"):
        lookup_account("daemon")
