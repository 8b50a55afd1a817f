"""Accounts of the sandbox, and ids of the guest during a file call."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from sandlot.guest.errors import RpcError
from sandlot.guest.process import accounts
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


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files ``passwd`` and ``group`` of the sandbox."""
    (tmp_path / "home").mkdir()
    (tmp_path / "passwd").write_text(
        f"""root:x:0:0:root:/root:/bin/bash
node:x:1000:1001:,,,:{tmp_path}/home:/bin/sh
alice:x:1002:100:Alice:{tmp_path}/home:/bin/sh
gone:x:1003:1003::/no/such/home:/no/such/shell
"""
    )
    (tmp_path / "group").write_text("root:x:0:\nusers:x:100:\nnode:x:1001:\ndocker:x:200:bob,alice\naudio:x:201:alice\nmalice:x:202:malice\n")
    monkeypatch.setattr(accounts, "PASSWD", str(tmp_path / "passwd"))
    monkeypatch.setattr(accounts, "GROUP", str(tmp_path / "group"))
    return tmp_path


def ids(user: str) -> tuple[str, int, int, list[int]]:
    account = lookup_account(user)
    return account.name, account.uid, account.gid, account.groups


def test_user_is_found_by_name_and_by_uid_with_all_groups(tables: Path) -> None:
    assert ids("alice") == ids("1002") == ("alice", 1002, 100, [100, 200, 201])
    assert lookup_account("alice").home == str(tables / "home")
    assert build_environment(lookup_account("alice"))["SHELL"] == "/bin/sh"


@pytest.mark.usefixtures("tables")
def test_user_and_root_are_the_ids_1000_and_0() -> None:
    assert ids("user") == ids("1000") == ids("node") == ("node", 1000, 1001, [1001])
    assert ids("root") == ids("0") == ("root", 0, 0, [0])


@pytest.mark.usefixtures("tables")
def test_uid_without_an_entry_has_the_group_root_and_no_home() -> None:
    assert (*ids("4321"), lookup_account("4321").home) == ("4321", 4321, 0, [0], "/")


@pytest.mark.usefixtures("tables")
def test_group_after_a_colon_replaces_all_groups() -> None:
    assert ids("alice:audio") == ("alice", 1002, 201, [201])
    assert ids("4321:4322") == ("4321", 4321, 4322, [4322])
    assert ids("root:users") == ("root", 0, 100, [100])
    with as_file_user(lookup_account("0:100")):
        during = os.geteuid(), os.getegid(), os.getgroups()
    assert (during, os.getegid(), os.getgroups()) == ((0, 100, [100]), 0, [])


@pytest.mark.usefixtures("tables")
def test_missing_home_and_shell_are_replaced() -> None:
    assert lookup_account("gone").home == "/"
    assert build_environment(lookup_account("gone"))["SHELL"] in {"/bin/bash", "/bin/sh"}


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("user, missing", [("bob", "bob"), ("alice:bob", "bob"), ("4294967295", "4294967295"), ("²", "²"), ("-1", "-1"), ("", "")])
def test_unknown_user_or_group_is_named(user: str, missing: str) -> None:
    with pytest.raises(RpcError) as refused:
        lookup_account(user)
    assert repr(missing) in refused.value.message
    assert os.getresuid() == (0, 0, 0)


def test_added_user_is_found(tables: Path) -> None:
    with pytest.raises(RpcError):
        lookup_account("bob")
    with (tables / "passwd").open("a") as file:
        file.write("bob:x:1010:1010::/:/bin/sh\n")

    assert lookup_account("bob").uid == 1010


HOSTILE_LINES = [
    b"alice",
    b"alice:x:1002",
    b"alice:x::100::/:/bin/sh",
    b"alice:x:-5:100::/:/bin/sh",
    b"alice:x:4294967295:100::/:/bin/sh",
    b"alice:x:99999999999999999999:100::/:/bin/sh",
    "alice:x:\u0661\u0660:100::/:/bin/sh".encode(),
    b"alice:x:1009:x::/:/bin/sh",
    b"ali\0ce:x:1009:100::/:/bin/sh",
    b"alice:x:1009:100::/\0:/bin/sh",
    b"alice:x:1009:100::/" + b"a" * 20_000 + b":/bin/sh",
    b":x:1009:100::/:/bin/sh",
    bytes(range(256)),
    b":" * 5000,
    b"",
]


@pytest.mark.parametrize("line", HOSTILE_LINES)
def test_invalid_lines_are_skipped(tables: Path, line: bytes) -> None:
    (tables / "passwd").write_bytes(line + b"\n" + b"alice:x:1011:100::/\xff:/bin/sh\xff\n")
    (tables / "group").write_bytes(line + b"\nx:x:\xb2:alice\nx:x:4294967295:alice\ny:x:77:alice")

    assert ids("alice") == ("alice", 1011, 100, [77, 100])
    assert build_environment(lookup_account("1009"))["USER"] == "1009"


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/tty", "/proc/self/mem", "/", "/no/such/file", "fifo"])
def test_special_files_have_no_users(tables: Path, path: str) -> None:
    os.mkfifo(tables / "fifo")
    for name in ("passwd", "group"):
        (tables / name).unlink()
        (tables / name).symlink_to(path)

    with pytest.raises(RpcError):
        lookup_account("alice")
    assert ids("user") == ("user", 1000, 1000, [1000])
    assert ids("7:8") == ("7", 7, 8, [8])


def test_large_tables_are_read_in_part_and_groups_are_limited(tables: Path) -> None:
    (tables / "passwd").write_bytes(b"alice:x:1:2::/:/bin/sh\n" + b"\n" * (4 << 20) + b"late:x:3:4::/:/bin/sh\n")
    (tables / "group").write_text("".join(f"g{number}:x:{number}:alice\n" for number in range(5000)))

    assert lookup_account("alice").uid == 1
    assert len(lookup_account("alice").groups) <= accounts.MAX_GROUPS + 1
    with pytest.raises(RpcError):
        lookup_account("late")
