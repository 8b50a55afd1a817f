"""Promise: nothing of the host's files can be seen, read or written from inside, whoever one is there and whatever one tries.

Files with a random content are planted on the host where a service and its sandboxes are near; the programs below look for them.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from sandlot import Sandbox
from tests.support.cache import CACHE_DIR
from tests.support.inside import USERS, run_inside
from tests.support.localservice import LocalService
from tests.support.planted import Planted

VIEW = "/run/sandlot/instance"
"""Where every sandbox's folder is in the mount namespace that its runtime starts in."""


@pytest.mark.parametrize("user", USERS)
def test_proc_links_and_dots_do_not_lead_to_host_files(sandbox: Sandbox, planted: Planted, user: str) -> None:
    told = run_inside(
        sandbox,
        """
starts = ["", "/..", "/" + "../" * 64, "/proc/1/root", "/proc/self/root", "/proc/thread-self/root", "/proc/1/cwd" + "/.." * 16]
for pid in processes():
    for link in ("root", "cwd", "exe"):
        starts += [f"/proc/{pid}/{link}", f"/proc/{pid}/{link}" + "/.." * 16]
    for fd in attempt(os.listdir, f"/proc/{pid}/fd").get("got", []):
        starts += [f"/proc/{pid}/fd/{fd}", f"/proc/{pid}/fd/{fd}" + "/.." * 16]
for host in given["host_pids"]:
    starts.append(f"/proc/{host}/root")
told["control"] = attempt(read, "/proc/1/root/etc/debian_version")
told["tried"] = 0
told["found"] = []
for start in starts:
    for path in given["paths"]:
        told["tried"] += 1
        if given["token"] in str(attempt(read, start + path)):
            told["found"].append(start + path)
""",
        user=user,
        given={"paths": planted.paths, "token": planted.token, "host_pids": [1, os.getpid(), os.getppid()]},
    )
    if user == "root":
        assert told["control"]["got"].strip(), "root inside sees its own root through /proc, so these were real tries"
    assert told["tried"] > 50
    assert told["found"] == []


def test_search_of_all_files_finds_no_host_file(sandbox: Sandbox, planted: Planted) -> None:
    names = ["-name", f"planted-{planted.token}", "-o", "-name", "debian_version"]
    found = sandbox.commands.run(["find", "/", "-path", "/proc", "-prune", "-o", "(", *names, ")", "-print"], user="root", timeout=200)
    assert "planted-" not in found.stdout
    assert "/etc/debian_version" in found.stdout


@pytest.mark.parametrize("user", USERS)
def test_proc_sys_and_mount_tables_hide_the_host_path(service: LocalService, sandbox: Sandbox, isolation: str, user: str) -> None:
    """In a container the two ends of the link, which only root inside sees at the guest, have the name of every sandbox's: ``VIEW``."""
    refs = [path.name for path in (service.data_dir / "sandboxes").iterdir()]
    told = run_inside(
        sandbox,
        """
told["said"] = {}
def look(path):
    found = [secret for secret in given["secrets"] if secret in str(attempt(read, path, 1 << 20).get("got", ""))]
    if found:
        told["said"][path] = found
told["read"] = 0
for folder in ["/proc/sys", "/proc/net", "/sys", *(f"/proc/{pid}" for pid in processes())]:
    for where, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in ("root", "cwd", "task")]
        for name in files:
            # What a process of our own waits in, or memory as such, is not text.
            if name not in ("mem", "kmsg", "pagemap") and "/fd" not in where:
                look(os.path.join(where, name))
                told["read"] += 1
for name in ("mounts", "filesystems", "partitions", "cmdline", "devices", "cgroups", "version", "swaps"):
    look(f"/proc/{name}")
for name in ("/etc/mtab", "/etc/fstab", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf"):
    look(name)
for pid in processes():
    for fd in attempt(os.listdir, f"/proc/{pid}/fd").get("got", []):
        target = str(attempt(os.readlink, f"/proc/{pid}/fd/{fd}"))
        if any(secret in target for secret in given["secrets"]):
            told["said"][f"/proc/{pid}/fd/{fd}"] = target
""",
        user=user,
        given={"secrets": [str(service.data_dir), str(CACHE_DIR), VIEW, *refs]},
    )
    assert told["read"] > 20
    if isolation == "container" and user == "root":
        assert {str(target) for target in told["said"].values()} == {str({"got": f"{VIEW}/{end}"}) for end in ("in", "out")}
        told["said"] = {}
    assert told["said"] == {}


def test_root_cannot_mount_host_files(sandbox: Sandbox, isolation: str, planted: Planted) -> None:
    """In gVisor root inside mounts what is that kernel's. In a container nobody mounts anything."""
    disks = [f"/dev/{path.name}" for path in Path("/sys/block").iterdir()]
    told = run_inside(
        sandbox,
        """
MS_BIND, MS_REC, MS_MOVE = 4096, 16384, 8192
os.makedirs("/tmp/at", exist_ok=True)
def mount(source, kind, flags=0, options=""):
    return called(libc.mount(source.encode(), b"/tmp/at", kind.encode() if kind else None, flags, options.encode()))
def leaks():
    return [path for path in given["paths"] for start in ("", "/tmp/at", "/tmp/at/..") if given["token"] in str(attempt(read, start + path))]
told["control"] = mount("none", "tmpfs")  # root may mount what is the sandbox's own
libc.umount2(b"/tmp/at", 2)
told["mounted"], told["found"] = [], []
tries = [(os.path.dirname(path), "none", MS_BIND | MS_REC, "") for path in given["paths"]] + [("/..", "none", MS_BIND | MS_REC, "")]
tries += [("/proc/1/root", "none", MS_BIND | MS_REC, ""), ("/", "none", MS_MOVE, "")]
tries += [(disk, kind, 0, "") for disk in given["disks"] for kind in ("ext4", "ext2", "xfs", "btrfs", "vfat", "squashfs", "iso9660")]
tries += [("host", "9p", 0, f"trans={how},rfdno=3,wfdno=4,rfd=3,wfd=4,aname=/") for how in ("fd", "unix", "virtio", "tcp")]
tries += [("host", kind, 0, "") for kind in ("proc", "sysfs", "devtmpfs", "securityfs", "debugfs", "tracefs", "bpf", "hugetlbfs", "virtiofs", "nfs")]
tries += [("overlay", "overlay", 0, f"lowerdir={os.path.dirname(path)}:/etc") for path in given["paths"]]
for source, kind, flags, options in tries:
    if mount(source, kind, flags, options) is None:
        told["mounted"].append([source, kind])
        told["found"] += leaks()
        libc.umount2(b"/tmp/at", 2)
""",
        user="root",
        given={"paths": planted.paths, "token": planted.token, "disks": disks},
    )
    assert told["control"] == (None if isolation == "gvisor" else "EPERM"), "root inside gVisor may mount, so these were real tries"
    assert told["mounted"] == [] or isolation == "gvisor"
    assert told["found"] == []
    of_the_host = {*disks, *(str(path.parent) for path in planted.files)}
    assert [source for source, _ in told["mounted"] if source in of_the_host] == []
    assert "9p" not in {kind for _, kind in told["mounted"]}


def test_device_nodes_open_no_host_device(sandbox: Sandbox, isolation: str, service: LocalService) -> None:
    """In gVisor root inside makes nodes, which that kernel opens as nothing. In a container nobody makes one."""
    numbers = {service.data_dir.stat().st_dev, *(os.makedev(7, loop) for loop in range(4))}
    for line in Path("/proc/partitions").read_text(encoding="ascii").split("\n")[2:]:
        if line.split():
            numbers.add(os.makedev(int(line.split()[0]), int(line.split()[1])))
    characters = {"mem": (1, 1), "kmem": (1, 2), "port": (1, 4), "kmsg": (1, 11), "loop-control": (10, 237), "mapper": (10, 236), "kvm": (10, 232)}
    characters |= {"vhost-net": (10, 238), "btrfs-control": (10, 234), "watchdog": (10, 130), "nvram": (10, 144), "rtc": (10, 135)}
    told = run_inside(
        sandbox,
        """
told["opened"], told["made"], told["refused"] = [], 0, []
for name, kind, number in given["devices"]:
    path = f"/tmp/node-{name}"
    got = attempt(os.mknod, path, kind | 0o666, number)
    told["refused"].append(got.get("error"))
    if "got" in got:
        told["made"] += 1
        for flags in (os.O_RDONLY, os.O_RDWR):
            if "got" in attempt(os.open, path, flags | os.O_NONBLOCK):
                told["opened"].append(name)
        os.unlink(path)
told["blocks"] = [name for name in os.listdir("/dev") if stat.S_ISBLK(os.lstat(f"/dev/{name}").st_mode)]
""",
        user="root",
        given={
            "devices": [
                *([f"block-{number}", stat.S_IFBLK, number] for number in sorted(numbers)),
                *([name, stat.S_IFCHR, os.makedev(*number)] for name, number in characters.items()),
            ]
        },
    )
    if isolation == "gvisor":
        assert told["made"] > 0, "root inside may make nodes, so these were real tries"
    else:
        assert set(told["refused"]) == {"EPERM"}
    assert told["opened"] == []
    assert told["blocks"] == []


def test_file_handles_and_chroot_escapes_open_no_host_file(sandbox: Sandbox, planted: Planted) -> None:
    told = run_inside(
        sandbox,
        """
# A handle opens a file by its inode number, whatever stands above it: open_by_handle_at(2), the "shocker".
at = os.open("/", os.O_RDONLY)
told["handles"] = 0
for kind in (1, 2, 0x81):
    for inode in [*range(1, 64), *given["inodes"]]:
        handle = ctypes.create_string_buffer(struct.pack("IiQ", 8, kind, inode))
        fd = libc.open_by_handle_at(at, handle, os.O_RDONLY)
        told["handles"] += fd >= 0
# A real handle, where one is given, and then another inode in it: the root of most file systems is 2.
real = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
if libc.name_to_handle_at(at, b"etc", real, ctypes.byref(ctypes.c_int()), 0) >= 0:
    size = struct.unpack_from("I", real)[0]
    for inode in (1, 2, *given["inodes"]):
        for offset in range(8, 8 + size - 3, 4):
            forged = ctypes.create_string_buffer(real.raw)
            struct.pack_into("I", forged, offset, inode & 0xFFFFFFFF)
            told["handles"] += libc.open_by_handle_at(at, forged, os.O_RDONLY) >= 0
# The oldest way out of a chroot: one inside of it, while standing outside of that.
os.makedirs("/tmp/jail", exist_ok=True)
outside = os.open("/", os.O_RDONLY)
os.chroot("/tmp/jail")
told["found"] = []
def look():
    told["found"] += [path for path in given["paths"] for up in ("", "." + "/.." * 64) if given["token"] in str(attempt(read, up + path))]
os.fchdir(outside)
look()
for _ in range(64):
    os.chdir("..")
    look()
os.chroot(".")
look()
os.fchdir(outside)
os.chroot(".")
look()
told["at_home"] = os.path.exists("/workspace") and os.path.exists("/.sandlot")
# CVE-2015-2925 ("double-chroot", https://lwn.net/Articles/656494/): a folder is moved out of a root while somebody stands in it.
os.makedirs("/tmp/root/a/b/c", exist_ok=True)
os.chdir("/tmp/root/a/b/c")
libc.unshare(0x10000000 | 0x20000)
libc.mount(b"/tmp/root", b"/tmp/root", None, 4096, None)
attempt(os.rename, "/tmp/root/a/b", "/tmp/moved")
attempt(os.chroot, "/tmp/root")
attempt(os.rename, "/a/b", "/b")
for _ in range(40):
    told["found"] += [path for path in given["paths"] if given["token"] in str(attempt(read, path.lstrip("/")))]
    os.chdir("..")
""",
        user="root",
        given={"paths": planted.paths, "token": planted.token, "inodes": [path.stat().st_ino for path in (Path("/"), *planted.files)]},
    )
    assert told == {"handles": 0, "at_home": True, "found": []}
