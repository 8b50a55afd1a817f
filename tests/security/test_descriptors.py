"""Promise: nobody inside inherits an open file of the host, neither the guest nor anything that it starts.

An open folder of the host is a way out by itself (CVE-2016-9962 and CVE-2024-21626 of runc: descriptors that were not closed before
the container's first process ran; openat(2) and ``/proc/self/fd/N/../..`` do the rest). So all of every process are looked at.
"""

from __future__ import annotations

import pytest

from sandlot import Sandbox
from tests.support.inside import USERS, run_inside
from tests.support.planted import Planted

INVENTORY = """
told["descriptors"], told["folders"], told["found"] = {}, [], []
def known(pid, fd):
    path = f"/proc/{pid}/fd/{fd}"
    got = attempt(os.stat, path).get("got")
    kind = stat.filemode(got.st_mode)[0] if got else "?"
    told["descriptors"].setdefault(str(pid), []).append([fd, attempt(os.readlink, path).get("got"), kind])
    if kind == "d":
        told["folders"].append(path)
for pid in processes():
    for fd in attempt(os.listdir, f"/proc/{pid}/fd").get("got", []):
        known(pid, fd)
# A descriptor that a folder hides behind, by going up from it and by openat(2).
for path in told["folders"]:
    for planted in given["paths"]:
        for up in ("", "/.." * 20):
            if given["token"] in str(attempt(read, path + up + planted)):
                told["found"].append(path + up + planted)
for fd in range(0, 256):
    if "got" in attempt(os.fstat, fd):
        for planted in given["paths"]:
            if "got" in attempt(lambda: os.open("../" * 20 + planted.lstrip("/"), os.O_RDONLY, dir_fd=fd)):
                told["found"].append([fd, planted])
told["guests"] = {}
for fd in attempt(os.listdir, "/proc/1/fd").get("got", []):
    for flags in (os.O_RDONLY, os.O_WRONLY):
        got = attempt(os.open, f"/proc/1/fd/{fd}", flags | os.O_NONBLOCK)
        if "got" in got and os.fstat(got["got"]).st_rdev == os.makedev(1, 3):
            told["guests"][f"{fd} {flags}"] = "null"
        elif "got" in got and attempt(os.read, got["got"], 9).get("got") == b"MemTotal:":
            told["guests"][f"{fd} {flags}"] = "meminfo"
        elif "got" in got and stat.S_ISFIFO(os.fstat(got["got"]).st_mode) and os.fstat(got["got"]).st_uid == os.getuid():
            told["guests"][f"{fd} {flags}"] = "own pipe"
        else:
            told["guests"][f"{fd} {flags}"] = got.get("error", "ok")
"""


@pytest.mark.parametrize("user", USERS)
def test_command_inherits_three_streams_only(sandbox: Sandbox, user: str) -> None:
    """``ls`` opens the folder that it lists; its streams are pipes or sockets, of the guest."""
    seen = sandbox.commands.run(["ls", "-l", "/proc/self/fd"], user=user).stdout.splitlines()[1:]
    names = {line.split()[-3]: line.split()[-1] for line in seen}
    assert set(names) == {"0", "1", "2", "3"}
    assert names["3"].startswith("/proc/")
    assert all(target.startswith(("pipe:", "socket:", "/dev/null", "host:")) for number, target in names.items() if number != "3"), names


@pytest.mark.parametrize("user", USERS)
def test_no_descriptor_inside_leads_to_the_host(sandbox: Sandbox, planted: Planted, user: str) -> None:
    """In gVisor a user sees what the guest has open, but opens only /dev/null, /proc/meminfo and pipes of own commands; in a container no names."""
    assert sandbox.run_code("1").ok  # a kernel lives on: what it has open, code that runs in it has
    told = run_inside(sandbox, INVENTORY, user=user, given={"paths": planted.paths, "token": planted.token})
    assert told["found"] == []
    assert told["descriptors"]["1"] if user == "root" else told["descriptors"], "that was a real look"
    for pid, opened in told["descriptors"].items():
        for fd, target, kind in opened:
            # Pipes, sockets, character devices of /dev, and what is no file at all (epoll).
            assert kind in {"p", "s", "c", "?"} or str(target).startswith("/proc/"), f"process {pid} holds {target} ({kind}) as {fd}"
    if user == "user":
        assert set(told["guests"].values()) <= {"null", "meminfo", "own pipe", "EACCES", "ENXIO", "ENODEV", "EPERM"}
