"""Promise: no interface of the kernel lets anybody inside change, load, watch or stop anything of the host, as user or as root.

Each system call that has led out of containers, or could, is really made. In gVisor, the kernel that answers is the sandbox's
own: some of these calls are served there, and what they change is that sandbox's. In a container it is the host's kernel, and
all of them must be refused. Whatever is said inside, the host's settings, modules, names, clocks and mounts are compared after.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from sandlot import Sandbox
from tests.support.attempts import not_refused, outcomes, outcomes_outside
from tests.support.hoststate import changes, host_state
from tests.support.inside import USERS

NAMESPACES = {"mnt": 0x20000, "cgroup": 0x2000000, "uts": 0x4000000, "ipc": 0x8000000, "user": 0x10000000, "pid": 0x20000000, "net": 0x40000000}
"""CLONE_NEW*, linux/sched.h; of time (0x80) clone(2) knows nothing."""

MOUNTS = {
    "tmpfs": 'call("mount", b"none", AT, b"tmpfs", 0, None)',
    "proc": 'call("mount", b"none", AT, b"proc", 0, None)',
    "sysfs": 'call("mount", b"none", AT, b"sysfs", 0, None)',
    "cgroup": 'call("mount", b"none", AT, b"cgroup", 0, b"memory")',
    "cgroup2": 'call("mount", b"none", AT, b"cgroup2", 0, None)',
    "devpts": 'call("mount", b"none", AT, b"devpts", 0, None)',
    "devtmpfs": 'call("mount", b"none", AT, b"devtmpfs", 0, None)',
    "debugfs": 'call("mount", b"none", AT, b"debugfs", 0, None)',
    "tracefs": 'call("mount", b"none", AT, b"tracefs", 0, None)',
    "securityfs": 'call("mount", b"none", AT, b"securityfs", 0, None)',
    "bpf": 'call("mount", b"none", AT, b"bpf", 0, None)',
    "binfmt_misc": 'call("mount", b"none", AT, b"binfmt_misc", 0, None)',
    "mqueue": 'call("mount", b"none", AT, b"mqueue", 0, None)',
    "overlay": 'call("mount", b"none", AT, b"overlay", 0, b"lowerdir=/etc:/usr")',
    "fuse": 'call("mount", b"none", AT, b"fuse", 0, b"fd=0,rootmode=40000,user_id=0,group_id=0")',
    "bind": 'call("mount", b"/etc", AT, None, 4096, None)',
    "remount the root": 'call("mount", b"none", b"/", None, 32 | 4096, None)',
    "remount /proc writable": 'call("mount", b"none", b"/proc/sys", None, 32 | 4096, None)',
    "make it shared": 'call("mount", b"none", b"/", None, 1 << 20 | 16384, None)',
    "move": 'call("mount", b"/proc", AT, None, 8192, None)',
    "umount /proc": 'call("umount2", b"/proc", 2)',
    "umount /proc/kcore": 'call("umount2", b"/proc/kcore", 2)',
    "umount /proc/sys": 'call("umount2", b"/proc/sys", 2)',
    "umount /dev": 'call("umount2", b"/dev", 2)',
    "umount /": 'call("umount2", b"/", 2)',
    "pivot_root": 'call("mount", b"none", AT, b"tmpfs", 0, None); os.makedirs(AT + b"/old"); call("pivot_root", AT, AT + b"/old")',
    "fsopen": 'fd = call("fsopen", b"tmpfs", 0); call("fsconfig", fd, 6, None, None, 0); call("fsmount", fd, 0, 0)',
    "fsopen cgroup": 'fd = call("fsopen", b"cgroup", 0); call("fsconfig", fd, 0, b"memory", None, 0); call("fsconfig", fd, 6, None, None, 0)',
    "fspick": 'call("fspick", -100, b"/", 0)',
    "open_tree": 'call("open_tree", -100, b"/", 1 | 0x8000)',
    "open_tree_attr": 'call("open_tree_attr", -100, b"/", 1, ctypes.create_string_buffer(32), 32)',
    "move_mount": 'call("move_mount", -100, b"/proc", -100, AT, 0)',
    "mount_setattr": 'call("mount_setattr", -100, b"/", 0x8000, struct.pack("4Q", 0, 1, 0, 0), 32)',
}
"""mount(2), umount(2), pivot_root(2), and the calls by file descriptor of Linux 5.2."""

POWERS = {
    "load a module": 'call("init_module", bytes(64), 64, b"")',
    "load a module's file": 'call("finit_module", os.open("/etc/passwd", os.O_RDONLY), b"", 0)',
    "unload a module": 'call("delete_module", b"overlay", 0o4000)',
    "another kernel": 'call("kexec_load", 0, 0, None, 0)',
    "another kernel's file": 'call("kexec_file_load", -1, -1, 0, b"", 4)',
    "reboot": 'call("reboot", 0xFEE1DEAD, 672274793, 0, 0)',
    "swap on": 'call("swapon", b"/etc/passwd", 0)',
    "swap off": 'call("swapoff", b"/etc/passwd")',
    "accounting": 'call("acct", b"/tmp/acct")',
    "set the clock": 'call("clock_settime", 0, struct.pack("qq", 10**9, 0))',
    "set the time": 'call("settimeofday", struct.pack("qq", 10**9, 0), None)',
    "bend the clock": 'call("adjtimex", struct.pack("I4xqqqq", 2, 0, 100, 0, 0) + bytes(200))',
    "ports": 'call("iopl", 3)',
    "a port": 'call("ioperm", 0x80, 1, 1)',
    "a quota": 'call("quotactl", 0x80000200, b"/dev/vda", 0, bytes(64))',
    "a quota by file": 'call("quotactl_fd", os.open("/", os.O_RDONLY), 0x800002, 0, None)',
    "hang up": 'call("vhangup")',
    "an old library": 'call("uselib", b"/bin/true")',
    "nfs": 'call("nfsservctl", 0, None, None)',
    "profiling's paths": 'call("lookup_dcookie", 1, ctypes.create_string_buffer(64), 64)',
    "bpf map": 'call("bpf", 0, struct.pack("4I", 2, 4, 4, 1) + bytes(100), 116)',
    "bpf program": 'call("bpf", 5, struct.pack("IIQQ", 1, 1, 0, 0) + bytes(92), 116)',
    "watch every processor": 'call("perf_event_open", struct.pack("IIQ", 1, 112, 0) + bytes(96), -1, 0, -1, 0)',
    "watch oneself": 'call("perf_event_open", struct.pack("IIQ", 1, 112, 0) + bytes(96), 0, -1, -1, 0)',
    "trace the kernel": 'call("perf_event_open", struct.pack("IIQ", 2, 112, 1) + bytes(96), -1, 0, -1, 0)',
    "watch all files": 'call("fanotify_init", 4, 0)',
    "faults of memory": 'call("userfaultfd", 0)',
    "faults of the kernel's own": 'call("userfaultfd", 0o4000)',
    "a ring": 'call("io_uring_setup", 8, ctypes.create_string_buffer(120))',
    "a key": 'call("add_key", b"user", b"sandlot", b"secret", 6, -5)',
    "a key's request": 'call("request_key", b"user", b"sandlot", b"x", -5)',
    "the user's keys": 'call("keyctl", 11, -4, ctypes.create_string_buffer(4096), 4096, 0)',
    "a ring of keys": 'call("keyctl", 1, b"sandlot-keys")',
    "a handle's file": 'fd = os.open("/", os.O_RDONLY); call("open_by_handle_at", fd, struct.pack("IiQ", 8, 1, 2), 0)',
    "an alg socket": "socket.socket(38, socket.SOCK_SEQPACKET, 0)",
    "a vsock": "socket.socket(40, socket.SOCK_STREAM, 0).connect((2, 22))",
    "an rxrpc socket": "socket.socket(33, socket.SOCK_DGRAM, 2)",
    "a packet socket": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))",
    "a raw socket": "socket.socket(socket.AF_INET, socket.SOCK_RAW, 255)",
    "a bluetooth socket": "socket.socket(31, socket.SOCK_RAW, 1)",
    "a can socket": "socket.socket(29, socket.SOCK_RAW, 1)",
    "a tipc socket": "socket.socket(30, socket.SOCK_RDM, 0)",
    "an xdp socket": "socket.socket(44, socket.SOCK_RAW, 0)",
    "a kernel log by netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 9).bind((0, 1))",
    "netfilter": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)",
    "events of devices": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15).bind((0, 1))",
    "real time": "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))",
    "x86 segments": 'call("modify_ldt", 1, struct.pack("4I", 0, 0, 0xFFFFF, 0x51), 16)',
    "move others' memory": 'call("move_pages", 1, 1, struct.pack("Q", 0), None, ctypes.create_string_buffer(8), 2)',
    "more than the limit": 'check(libc.setrlimit(resource.RLIMIT_CORE, struct.pack("QQ", 1 << 40, 1 << 40)))',
    "a host name": 'call("sethostname", b"elsewhere", 9)',
    "a domain name": 'call("setdomainname", b"elsewhere", 9)',
}
"""What can change, load, stop or watch something that a machine has once."""


# What the sandbox's own kernel serves, because all of it is that sandbox's: its mounts, names, keys and limits.
MOUNTED = {
    *("tmpfs", "proc", "sysfs", "cgroup", "devpts", "devtmpfs", "mqueue", "overlay", "bind", "remount the root", "make it shared"),
    *("umount /proc", "umount /dev", "umount /", "pivot_root"),
}
SERVED = {"a ring of keys", "more than the limit", "a host name", "a domain name"}

PRIVATE = """
AT = b"/tmp/at-kernel"
os.makedirs(AT, exist_ok=True)
def alone(flags=0x20000):
    # In a mount namespace of its own, where one is given: so that others keep their mounts.
    attempt(lambda: call("unshare", flags))
"""


@pytest.fixture(scope="module", autouse=True)
def _the_host_is_as_it_was(isolation: str) -> Iterator[None]:
    before, offset = host_state(), time.time() - time.monotonic()
    yield
    assert changes(before, host_state()) == {}, f"changed from inside of {isolation}"
    assert abs(time.time() - time.monotonic() - offset) < 60, "the clock was set"


@pytest.mark.parametrize("user", USERS)
def test_nothing_of_the_host_is_mounted_or_uncovered(sandbox: Sandbox, isolation: str, user: str) -> None:
    """In gVisor root inside mounts what that kernel has, which is nothing of the host's. In a container nobody mounts anything."""
    found = outcomes(sandbox, _each("alone()", MOUNTS), user=user, setup=PRIVATE, apart=True)
    allowed = MOUNTED if isolation == "gvisor" and user == "root" else set()
    assert not_refused(found, allowed=allowed, also=_unknown_there(isolation, *MOUNTS)) == {}


def test_the_same_mounts_are_made_where_there_is_no_boundary() -> None:
    """The control: the host's root, in a mount namespace of its own."""
    found = outcomes_outside(_each("alone()", MOUNTS), setup=PRIVATE)
    # No fuse server, and what is covered inside is not covered here; the rest depends on what this host's kernel was built with.
    done = {name for name, result in found.items() if result == "ok"}
    assert {"tmpfs", "proc", "bind", "remount the root", "pivot_root", "move", "umount /", "fsopen", "open_tree", "mount_setattr"} <= done
    assert len(done) > len(MOUNTS) - 12, found


@pytest.mark.parametrize("user", USERS)
def test_no_call_has_power_over_the_machine(sandbox: Sandbox, isolation: str, user: str) -> None:
    """In gVisor root and user are served those of ``SERVED``, for that sandbox alone. A container refuses all."""
    found = outcomes(sandbox, {**POWERS, "control": 'call("memfd_create", b"control", 0)'}, user=user)
    assert found.pop("control") == "ok"
    allowed = SERVED if isolation == "gvisor" else set()
    assert not_refused(found, allowed=allowed, also=_unknown_there(isolation, "real time")) == {}


@pytest.mark.parametrize("user", USERS)
def test_no_namespace_of_the_hosts_kernel_is_entered_or_made(sandbox: Sandbox, isolation: str, user: str) -> None:
    """In gVisor everybody gets other namespaces of that kernel; the next test is about what one can do in them.

    In a container nobody gets one: not even a user's own, in which its root would have every interface of the host's kernel that
    asks for capabilities there (netfilter, mounts, traffic control).
    """
    tries = {}
    for name, flag in NAMESPACES.items():
        tries[f"unshare {name}"] = f'call("unshare", {flag})'
        tries[f"clone {name}"] = f'if not call("clone", {flag} | 17, None, None, None, None): os._exit(0)'
        tries[f"clone user and {name}"] = f'if not call("clone", {flag | NAMESPACES["user"]} | 17, None, None, None, None): os._exit(0)'
        tries[f"clone3 {name}"] = f'if not call("clone3", struct.pack("8Q", {flag}, 0, 0, 0, 17, 0, 0, 0), 64): os._exit(0)'
        tries[f"setns {name} of PID 1"] = f'call("setns", os.open("/proc/1/ns/{name}", os.O_RDONLY), 0)'
        tries[f"setns {name} by pidfd"] = f'call("setns", call("pidfd_open", 1, 0), {flag})'
    found = outcomes(sandbox, tries, user=user)
    assert not_refused(found, allowed=tries if isolation == "gvisor" else ()) == {}


def test_root_of_a_namespace_of_ones_own_gets_no_further(sandbox: Sandbox, isolation: str) -> None:
    """As many kernel exploits begin: all capabilities, in a user namespace with mounts, network and names of its own.

    gVisor gives such a namespace, and in it what root inside may, and raw sockets on a network of which nothing leads anywhere.
    A container gives none, so that all is refused as ever.
    """
    flags = sum(flag for name, flag in NAMESPACES.items() if name not in {"pid", "cgroup"})
    rest = {name: code for name, code in POWERS.items() if name != "the user's keys"}
    found = outcomes(sandbox, _each(f"alone({flags})", {**MOUNTS, **rest}), user="user", setup=PRIVATE, apart=True)
    allowed = MOUNTED | SERVED | {"a raw socket", "a packet socket"} if isolation == "gvisor" else set()
    assert not_refused(found, allowed=allowed, also=_unknown_there(isolation, *MOUNTS, "real time")) == {}


def _each(first: str, attempts: dict[str, str]) -> dict[str, str]:
    """Every attempt, with something done first in its process."""
    return {name: f"{first}\n{code}" for name, code in attempts.items()}


def _unknown_there(isolation: str, *attempts: str) -> dict[str, set[str]]:
    """EINVAL is what gVisor says about flags and options that it does not have; from Linux it would mean that nothing was tried."""
    return {attempt: {"EINVAL"} for attempt in attempts} if isolation == "gvisor" else {}
