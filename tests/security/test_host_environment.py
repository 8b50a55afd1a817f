"""Promise: nothing of the service's environment, descriptors or identity reaches a sandbox, nor the runtime that carries it.

Every service of these tests has a secret in its environment; it is looked for inside, and outside in the sandbox's own processes.
"""

from __future__ import annotations

import os
import platform
import socket
from pathlib import Path

import pytest

from sandlot import Sandbox
from tests.support.inside import USERS, run_inside
from tests.support.localservice import LocalService
from tests.support.traces import sandbox_pids


@pytest.mark.parametrize("user", USERS)
def test_processes_inside_have_no_variable_of_the_service(service: LocalService, sandbox: Sandbox, user: str) -> None:
    told = run_inside(
        sandbox,
        """
told["environments"] = {pid: attempt(read, f"/proc/{pid}/environ").get("got", "") for pid in processes()}
told["own"] = dict(os.environ)
""",
        user=user,
    )
    values = {value for name, value in os.environ.items() if len(value) > 8 and name not in {"HOME", "PATH", "LANG", "SHELL", "PWD", "LC_ALL"}}
    forbidden = {service.secret, "SANDLOT_", str(service.data_dir), *values}
    assert service.secret.encode() in Path(f"/proc/{service.pid}/environ").read_bytes(), "otherwise this could not fail"
    assert "PATH" in told["own"]
    assert told["environments"]["1"] or user != "root", "root reads the environment of the guest, so that was a real look"
    text = repr(told)
    assert [word for word in sorted(forbidden) if word in text] == []


def test_guest_memory_has_no_variable_of_the_service(service: LocalService, sandbox: Sandbox) -> None:
    told = run_inside(
        sandbox,
        """
def search(needle):
    found = 0
    with open("/proc/1/maps") as maps, open("/proc/1/mem", "rb", 0) as memory:
        for line in maps:
            start, end = (int(word, 16) for word in line.split()[0].split("-"))
            if "r" in line.split()[1] and not line.rstrip().endswith(("[vvar]", "[vdso]", "[vsyscall]")):
                told["bytes"] += end - start
                try:
                    memory.seek(start)
                    found += needle in memory.read(end - start)
                except OSError:
                    told["unreadable"] += 1
    return found
told["bytes"] = told["unreadable"] = 0
told["control"] = search(given["own"].encode())
told["found"] = search(given["secret"].encode())
""",
        user="root",
        given={"secret": service.secret, "own": sandbox.id},
    )
    assert told["control"] > 0, "the guest's memory is searched, and its own identity is found in it"
    assert told["found"] == 0


def test_runtime_processes_inherit_nothing_from_the_service(service: LocalService, sandbox: Sandbox, isolation: str) -> None:
    assert sandbox.is_running()
    own_folders = [str(path) for path in (service.data_dir / "sandboxes").iterdir()]
    pids = sandbox_pids(service.data_dir)
    # gVisor: a keeper, what serves files, and the sandbox's kernel; a container: a keeper and the processes inside.
    assert len(pids) >= (3 if isolation == "gvisor" else 2)
    for pid in pids:
        process = Path(f"/proc/{pid}")
        try:
            environment = (process / "environ").read_bytes()
            opened = [str(entry.readlink()) for entry in (process / "fd").iterdir()]
        except FileNotFoundError:
            continue  # a helper of the runtime that has just ended
        assert service.secret.encode() not in environment
        assert b"SANDLOT_" not in environment
        strange = [path for path in opened if str(service.data_dir) in path and not any(path.startswith(folder) for folder in own_folders)]
        assert strange == [], "sockets, locks and keys of the service stay with the service"


@pytest.mark.parametrize("user", USERS)
def test_host_identity_does_not_appear_inside(sandbox: Sandbox, isolation: str, user: str) -> None:
    """In gVisor even the kernel's release is not the host's. In a container it is, because the kernel is."""
    told = run_inside(
        sandbox,
        """
told["node"] = platform.node()
told["release"] = platform.release()
told["version"] = attempt(read, "/proc/version")
told["boot_id"] = attempt(read, "/proc/sys/kernel/random/boot_id")
told["machine_id"] = attempt(read, "/etc/machine-id")
told["users"] = attempt(read, "/etc/passwd")
told["hosts"] = [attempt(read, path) for path in ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf")]
told["cmdline"] = attempt(read, "/proc/cmdline")
told["pid1"] = attempt(read, "/proc/1/cmdline")
""",
        user=user,
    )
    assert told["node"] == sandbox.id
    text, host_says = repr(told), [*({socket.gethostname()} - {"localhost"})]
    if isolation == "gvisor":
        host_says.append(platform.release())
    else:
        assert told["release"] == platform.release()
    for file in ("/proc/sys/kernel/random/boot_id", "/etc/machine-id", "/proc/cmdline"):
        path = Path(file)
        if path.exists() and len(path.read_text(encoding="ascii").strip()) > 8:
            host_says.append(path.read_text(encoding="ascii").strip())
    assert [word for word in host_says if len(word) > 3 and word in text] == []
