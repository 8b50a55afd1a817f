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


def test_files_of_one_sandbox_are_not_in_another(sandbox: Sandbox, other: Sandbox) -> None:
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


def test_processes_of_one_sandbox_are_not_in_another(sandbox: Sandbox, other: Sandbox) -> None:
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


def test_sockets_and_shared_memory_are_not_shared(sandbox: Sandbox, other: Sandbox) -> None:
    """System V's objects are known by a number to everyone in a namespace (shmget(2), semget(2), msgget(2))."""
    make = """
import ctypes, socket
libc = ctypes.CDLL(None)
numbers = libc.shmget(4242, 4096, 0o1666), libc.semget(4242, 1, 0o1666), libc.msgget(4242, 0o1666)
open("/dev/shm/of-one-tenant-too", "w").close()
tcp, unix = socket.create_server(("127.0.0.1", 4567)), socket.socket(socket.AF_UNIX)
unix.bind("\\0of-one-tenant")
unix.listen()
print("ready" if min(numbers) >= 0 else numbers, flush=True)
while True:
    tcp.accept()
"""
    look = """
for name, family, address in (("tcp", socket.AF_INET, ("127.0.0.1", 4567)), ("unix", socket.AF_UNIX, "\\0of-one-tenant")):
    with socket.socket(family) as client:
        told[name] = attempt(client.connect, address).get("error", "connected")
told["numbers"] = [number >= 0 for number in (libc.shmget(4242, 4096, 0), libc.semget(4242, 1, 0), libc.msgget(4242, 0))]
told["file"] = "of-one-tenant-too" in os.listdir("/dev/shm")
"""
    handle = sandbox.commands.run(["python3", "-c", make], background=True)
    assert next(iter(handle)).data == b"ready\n"
    assert run_inside(sandbox, look) == {"tcp": "connected", "unix": "connected", "numbers": [True] * 3, "file": True}
    assert run_inside(other, look, user="root") == {"tcp": "ECONNREFUSED", "unix": "ECONNREFUSED", "numbers": [False] * 3, "file": False}
    handle.kill()


def test_sandbox_is_found_by_its_whole_id_only(service: LocalService, sandbox: Sandbox, other: Sandbox) -> None:
    assert sandbox.id != other.id
    assert len({sandbox.id[:8], other.id[:8]}) == 1, "both of this node"
    for strange in (sandbox.id[:-1] + ("a" if sandbox.id[-1] != "a" else "b"), sandbox.id[:-1], f"{sandbox.id}a", sandbox.id.upper()):
        with pytest.raises(SandlotError) as refused:
            service.client.sandboxes.kill(strange)
        assert refused.value.code is ErrorCode.SANDBOX_NOT_FOUND
    assert sandbox.is_running()
    assert other.is_running()
