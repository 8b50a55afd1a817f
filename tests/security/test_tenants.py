"""Promise: two sandboxes share nothing that either of them can change: no file, process, network, memory or name.

Both stand on one image; test_shared_root.py is about its files.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandlot import Sandbox, SandlotError
from sandlot.model.errors import ErrorCode
from tests.support.inside import USERS, run_inside
from tests.support.localservice import LocalService


@pytest.fixture(scope="module")
def other(service: LocalService) -> Iterator[Sandbox]:
    with service.create() as made:
        yield made


def test_files_of_one_are_not_in_the_other(sandbox: Sandbox, other: Sandbox) -> None:
    folders = {"user": ("/tmp", "/dev/shm", "/var/tmp", "/workspace", "/home/user"), "root": ("/root", "/etc", "/usr/bin", "/.sandlot", "/run")}
    for user in USERS:
        for folder in folders[user]:
            sandbox.files.write(f"{folder}/of-one-tenant", "mine", user=user)
    look = """
names = [f"{folder}/of-one-tenant" for folder in given["folders"]]
told["found"] = [name for name in names if "got" in attempt(read, name)]
told["listed"] = [folder for folder in given["folders"] if "of-one-tenant" in os.listdir(folder)]
"""
    every = [folder for user in USERS for folder in folders[user]]
    names = [f"{folder}/of-one-tenant" for folder in every]
    assert run_inside(sandbox, look, user="root", given={"folders": every}) == {"found": names, "listed": every}
    assert run_inside(other, look, user="root", given={"folders": every}) == {"found": [], "listed": []}


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


def test_an_id_is_all_that_one_needs_and_none_can_be_guessed(service: LocalService, sandbox: Sandbox, other: Sandbox) -> None:
    assert sandbox.id != other.id
    assert len({sandbox.id[:8], other.id[:8]}) == 1, "both of this node"
    for strange in (sandbox.id[:-1] + ("a" if sandbox.id[-1] != "a" else "b"), sandbox.id[:-1], f"{sandbox.id}a", sandbox.id.upper()):
        with pytest.raises(SandlotError) as refused:
            service.client.kill(strange)
        assert refused.value.code is ErrorCode.SANDBOX_NOT_FOUND
    assert sandbox.is_running()
    assert other.is_running()
