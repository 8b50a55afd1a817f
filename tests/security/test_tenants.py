"""Promise: two sandboxes share nothing that either of them can change: no file, process, network, memory or name.

Both stand on one image; root inside of one writes all over it, and neither the image nor the other sandbox knows.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot import Sandbox, SandlotError
from sandlot.images.store import ImageStore, cache_from
from sandlot.model.errors import ErrorCode
from tests.support.inside import USERS, run_inside
from tests.support.localservice import TEMPLATE, LocalService

WRITTEN = ("/bin/ls", "/usr/bin/python3.11", "/etc/passwd", "/.sandlot/guest.zip", "/.sandlot/programs/sudo.py", "/.sandlot/lib/ld.so")
"""Files of the image and of the guest that root inside overwrites."""

VANDAL = """
for file; do
    case $file in
        */python3.11 | */ld.so) ;; # a program that runs is replaced only: one whose text is written to ends at once
        *) chmod 777 "$file"; echo vandalised >"$file"; chown 1234:1234 "$file"; touch -d @1 "$file" ;;
    esac
    echo vandalised >"$file.new"
    mv "$file.new" "$file"
    chown 1234:1234 "$file"
    cat "$file"
done
ln -sf /nowhere /etc/debian_version
rmdir /opt
"""


@pytest.fixture(scope="module")
def other(service: LocalService) -> Iterator[Sandbox]:
    with service.create() as made:
        yield made


@pytest.fixture
def image() -> Path:
    """The folder that the sandboxes' root file system is."""
    return ImageStore(cache_from(os.environ)).root(TEMPLATE).path


@pytest.mark.parametrize("user", USERS)
def test_files_of_one_are_not_in_the_other(sandbox: Sandbox, other: Sandbox, user: str) -> None:
    folders = [
        "/tmp",
        "/dev/shm",
        "/var/tmp",
        *(["/root", "/etc", "/usr/bin", "/.sandlot", "/run"] if user == "root" else ["/workspace", "/home/user"]),
    ]
    names = [f"{folder}/of-one-tenant" for folder in folders]
    for name in names:
        sandbox.files.write(name, "mine", user=user)
    for name in names:
        assert sandbox.files.read(name, user=user) == "mine"
        with pytest.raises(SandlotError) as refused:
            other.files.read(name, user="root")
        assert refused.value.code is ErrorCode.PATH_NOT_FOUND
    assert "of-one-tenant" not in other.commands.run("find / -xdev -name '*of-one-tenant*' 2>/dev/null; ls /dev/shm /run /tmp", user="root").stdout


def test_processes_of_one_are_not_in_the_other(sandbox: Sandbox, other: Sandbox) -> None:
    handle = sandbox.commands.run(["sleep", "987"], background=True)
    seen = run_inside(other, 'told["commands"] = [attempt(read, f"/proc/{pid}/cmdline").get("got", "") for pid in processes()]', user="root")
    assert "987" not in repr(seen)
    for call in (lambda: other.commands.send_stdin(handle.id, "x"), lambda: other.commands.connect(handle.id)):
        with pytest.raises(SandlotError) as refused:
            call()
        assert refused.value.code is ErrorCode.PROCESS_NOT_FOUND
    assert other.commands.kill(handle.id) is False
    # The same number is a process of nobody's over there, or of the other's own.
    other.commands.run(f"kill -9 {handle.pid}", user="root")
    assert handle.poll() is None
    handle.kill()


def test_the_loopback_of_one_is_not_the_others(sandbox: Sandbox, other: Sandbox) -> None:
    program = (
        "import socket\n"
        "tcp, unix = socket.create_server(('127.0.0.1', 4567)), socket.socket(socket.AF_UNIX)\n"
        "unix.bind('\\0of-one-tenant'); unix.listen(); print('ready', flush=True)\n"
        "while True: tcp.accept()\n"
    )
    handle = sandbox.commands.run(["python3", "-c", program], background=True)
    assert next(iter(handle)).data == b"ready\n"
    knock = """
for name, family, address in (("tcp", socket.AF_INET, ("127.0.0.1", 4567)), ("unix", socket.AF_UNIX, "\\0of-one-tenant")):
    with socket.socket(family) as client:
        told[name] = attempt(client.connect, address).get("error", "connected")
"""
    assert run_inside(sandbox, knock) == {"tcp": "connected", "unix": "connected"}
    assert run_inside(other, knock) == {"tcp": "ECONNREFUSED", "unix": "ECONNREFUSED"}
    handle.kill()


def test_shared_memory_and_queues_of_one_are_not_the_others(sandbox: Sandbox, other: Sandbox) -> None:
    """System V: known by a number to everyone in a namespace (shmget(2), semget(2), msgget(2))."""
    make = """
IPC_CREAT = 0o1000
made = 0o666 | IPC_CREAT
told["shm"], told["sem"], told["msg"] = libc.shmget(4242, 4096, made), libc.semget(4242, 1, made), libc.msgget(4242, made)
with open("/dev/shm/of-one-tenant-too", "w") as file:
    file.write("mine")
"""
    look = """
told["shm"], told["sem"], told["msg"] = libc.shmget(4242, 4096, 0), libc.semget(4242, 1, 0), libc.msgget(4242, 0)
told["files"] = os.listdir("/dev/shm")
"""
    made = run_inside(sandbox, make)
    assert min(made["shm"], made["sem"], made["msg"]) >= 0
    again = run_inside(sandbox, look)
    assert (again["shm"], again["sem"], again["msg"]) == (made["shm"], made["sem"], made["msg"])
    seen = run_inside(other, look, user="root")
    assert {name: seen[name] for name in ("shm", "sem", "msg")} == {"shm": -1, "sem": -1, "msg": -1}
    assert "of-one-tenant-too" not in seen["files"]


def test_variables_of_one_are_not_in_the_other(sandbox: Sandbox, other: Sandbox) -> None:
    assert sandbox.run_code("mine = 42").ok
    assert sandbox.run_code("mine").text == "42"
    execution = other.run_code("mine")
    assert execution.error is not None
    assert execution.error.name == "NameError"


def test_root_inside_changes_neither_the_image_nor_another_sandbox(service: LocalService, other: Sandbox, image: Path) -> None:
    before = _shape(image), [_hash(image / name[1:]) for name in WRITTEN]
    with service.create() as vandal:
        done = vandal.commands.run(["sh", "-ec", VANDAL, "-", *WRITTEN], user="root")
        assert (done.exit_code, done.stdout) == (0, "vandalised\n" * len(WRITTEN)), "inside, root may"
        vandal.commands.run("rm -rf --one-file-system /usr /etc /home", user="root", timeout=60)
        assert (_shape(image), [_hash(image / name[1:]) for name in WRITTEN]) == before
        hashes = other.commands.run(["sha256sum", *WRITTEN], user="root")
        assert [line.split()[0] for line in hashes.stdout.splitlines()] == before[1]
        with service.create() as fresh:
            assert fresh.commands.run("ls -d /opt && cat /etc/debian_version").exit_code == 0
            assert fresh.run_code("6 * 7").text == "42"
    assert (_shape(image), [_hash(image / name[1:]) for name in WRITTEN]) == before


def test_an_id_is_all_that_one_needs_and_none_can_be_guessed(service: LocalService, sandbox: Sandbox, other: Sandbox) -> None:
    assert sandbox.id != other.id
    assert len({sandbox.id[:8], other.id[:8]}) == 1, "both of this node"
    for strange in (sandbox.id[:-1] + ("a" if sandbox.id[-1] != "a" else "b"), sandbox.id[:-1], f"{sandbox.id}a", sandbox.id.upper()):
        with pytest.raises(SandlotError) as refused:
            service.client.kill(strange)
        assert refused.value.code is ErrorCode.SANDBOX_NOT_FOUND
    assert sandbox.is_running()
    assert other.is_running()


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _shape(root: Path) -> str:
    """Everything of a tree but the contents: names, kinds, owners, sizes, times."""
    total = hashlib.sha256()
    for where, folders, files in os.walk(root):
        folders.sort()
        for name in sorted([*folders, *files]):
            stat = os.lstat(f"{where}/{name}")
            total.update(f"{where}/{name} {stat.st_ino} {stat.st_mode} {stat.st_uid} {stat.st_gid} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return total.hexdigest()
