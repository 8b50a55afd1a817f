"""Promise: no interface of the kernel lets anybody inside change, load, watch or stop anything of the host, as user or as root.

Each system call that has led out of containers, or could, is really made. In gVisor, the kernel that answers is the sandbox's
own: some of these calls are served there, and what they change is that sandbox's. In a container it is the host's kernel, and
all of them must be refused. Whatever is said inside, the host's settings, modules, names, clocks and mounts are compared after.

A processor of the x86 family has three ways into the kernel: ``syscall`` with 64-bit numbers, the same with the numbers of x32
(bit 30 set), and ``int 0x80`` with those of 32-bit programs, which any 64-bit program may use. A filter that looks at numbers only,
or allows a call whose arguments arrive in another shape there (``socketcall``), is passed by. A few bytes of machine code do it.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator

import pytest

from sandlot import Sandbox
from tests.support.attempts import not_refused, outcomes, outcomes_outside
from tests.support.inside import IN_CONTAINERS, USERS

pytestmark = pytest.mark.usefixtures("host_unchanged")
ONLY_X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors have one way into the kernel")

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
    "a cooked packet socket": "socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))",
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

BUGS = {
    "CVE-2022-0185 (fsconfig's heap overflow)": 'fd = call("fsopen", b"ext4", 0); call("fsconfig", fd, 1, b"x" * 255, b"y" * 255, 0)',
    "CVE-2021-22555 (x_tables)": "raw_option(64)",
    "CVE-2016-4997 (x_tables)": "raw_option(0x40)",
    "CVE-2022-2588, CVE-2023-1829 (traffic control)": "traffic_control()",
    "CVE-2026-43284 (xfrm)": "socket.socket(16, 3, 6)",
    "CVE-2017-6074 (DCCP)": "socket.socket(2, 6, 33)",
    "CVE-2022-0995 (watch queues)": "check(libc.pipe2(ctypes.create_string_buffer(8), os.O_EXCL))",
    "CVE-2018-18955 (nested user namespaces)": "nested()",
    "CVE-2013-1858 (a namespace that shares folders)": 'call("clone", 0x10000000 | 0x200 | 17, None, None, None, None) or os._exit(0)',
    "CVE-2015-1328 (overlay in a namespace)": 'call("mount", b"overlay", AT, b"overlay", 0, b"lowerdir=/etc,upperdir=/tmp/u,workdir=/tmp/w")',
    "CVE-2017-5123 (waitid)": "waits()",
    "CVE-2016-2384 and others (USB)": 'os.open("/dev/bus/usb/001/001", os.O_RDWR)',
    "CVE-2022-1011 (FUSE)": 'call("mount", b"x", AT, b"fuse", 0, b"fd=%d,rootmode=40000,user_id=0,group_id=0" % os.open("/dev/fuse", 2))',
    "CVE-2020-29373, CVE-2021-41091 (modules by a socket's family)": "socket.socket(9, 5, 0)",
    "CVE-2017-5226 (a terminal's input is forged, TIOCSTI)": 'fcntl.ioctl(os.open("/dev/tty", os.O_RDWR), 0x5412, b"x")',
    "CVE-2023-28100 (a console's selection, TIOCLINUX)": 'fcntl.ioctl(os.open("/dev/tty", os.O_RDWR), 0x541C, b"\\x02")',
}
"""What exploits of known bugs of kernels need before the bug itself, besides ``MOUNTS`` and ``POWERS``: https://www.cve.org."""


# What the sandbox's own kernel serves, because all of it is that sandbox's: its mounts, names, keys and limits.
MOUNTED = {
    *("tmpfs", "proc", "sysfs", "cgroup", "devpts", "devtmpfs", "mqueue", "overlay", "bind", "remount the root", "make it shared"),
    *("umount /proc", "umount /dev", "umount /", "pivot_root"),
}
SERVED = {"a ring of keys", "more than the limit", "a host name", "a domain name"}

PRIVATE = r"""
AT = b"/tmp/at-kernel"
os.makedirs(AT, exist_ok=True)
def alone(flags=0x20000):
    # In a mount namespace of its own, where one is given: so that others keep their mounts.
    attempt(lambda: call("unshare", flags))
for folder in ("/tmp/u", "/tmp/w"):
    os.makedirs(folder, exist_ok=True)
def raw_option(option):
    # A table of rules, set or read.
    socket.socket(2, 3, 255).setsockopt(0, option, bytes(84))
def traffic_control():
    link = socket.socket(16, 3, 0)
    link.send(struct.pack("IHHII", 36, 36, 0x605, 1, 0) + struct.pack("BxHiIII", 0, 0, 1, 0, 0xFFFFFFFF, 0)[:20])
    code = struct.unpack_from("i", link.recv(4096), 16)[0]
    if code:
        raise OSError(-code, "refused")
def nested():
    call("unshare", 0x10000000)
    call("unshare", 0x10000000)
    os.write(os.open("/proc/self/uid_map", os.O_WRONLY), b"0 0 1\n1 1 1\n2 2 1\n3 3 1\n4 4 1\n5 5 1\n")
def waits():
    # The information of a child, written to where only the kernel may write.
    if not os.fork():
        os._exit(0)
    check(libc.waitid(0, 0, ctypes.c_void_p(0xFFFFFFFF80000000), 4))
"""


# asm/unistd_32.h; the arguments are such that root of a host without a boundary would be served, or told EINVAL at once.
BY_INT_0X80 = {
    "mount": "old(21, text(b'none'), text(b'/tmp'), text(b'tmpfs'), 0)",
    "ptrace": "old(26, 16, 1, 0, 0)",
    "unshare": "old(310, 0x10000000)",
    "setns": "old(346, os.open('/proc/1/ns/mnt', os.O_RDONLY), 0)",
    "clone": "old(120, 0x10000000 | 17, 0, 0, 0) or os._exit(0)",
    "keyctl": "old(288, 1, text(b'sandlot'), 0, 0)",
    "bpf": "old(357, 0, text(struct.pack('4I', 2, 4, 4, 1) + bytes(100)), 116)",
    "perf_event_open": "old(336, text(struct.pack('IIQ', 1, 112, 0) + bytes(96)), 0, -1, -1)",
    "init_module": "old(128, text(bytes(64)), 64, text(b''))",
    "kexec_load": "old(283, 0, 0, 0, 0)",
    "reboot": "old(88, 0xFEE1DEAD, 672274793, 0, 0)",
    "clock_settime64": "old(404, 0, text(struct.pack('qq', 10**9, 0)))",
    "iopl": "old(110, 3)",
    "userfaultfd": "old(374, 0)",
    "io_uring_setup": "old(425, 8, text(bytes(120)))",
    "fsopen": "old(430, text(b'tmpfs'), 0)",
    "open_by_handle_at": "old(342, os.open('/', os.O_RDONLY), text(struct.pack('IiQ', 8, 1, 2)), 0)",
    "process_vm_readv": "old(347, 1, text(bytes(16)), 1, text(bytes(16)))",
    "vsock by socketcall": "old(102, 1, text(struct.pack('3I', 40, 1, 0)))",
    "packet socket by socketcall": "old(102, 1, text(struct.pack('3I', 17, 3, 0x300)))",
    "raw socket by socketcall": "old(102, 1, text(struct.pack('3I', 2, 3, 1)))",
    "alg socket": "old(359, 38, 5, 0)",
}

OLD = r"""
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
# In the lower 2 GiB (MAP_32BIT), because the old way carries 32 bits: a page of code, a page of arguments.
PAGE = libc.mmap(None, 8192, 3, 0x62, -1, 0)
CODE = bytes.fromhex(
    "53"      # push rbx
    "89f8"    # mov eax, edi   the number
    "89f3"    # mov ebx, esi   the arguments
    "4189ca"  # mov r10d, ecx
    "89d1"    # mov ecx, edx
    "4489d2"  # mov edx, r10d
    "4489c6"  # mov esi, r8d
    "31ff"    # xor edi, edi
    "cd80"    # int 0x80
    "4898"    # cdqe
    "5b"      # pop rbx
    "c3"      # ret
)
ctypes.memmove(PAGE, CODE, len(CODE))
check(libc.mprotect(ctypes.c_void_p(PAGE), 4096, 5))
enter = ctypes.CFUNCTYPE(ctypes.c_long, *(ctypes.c_int32,) * 5)(PAGE)
used = 0
def text(data):
    global used
    place = PAGE + 4096 + used
    ctypes.memmove(place, data + bytes(1), len(data) + 1)
    used += (len(data) + 16) & ~15
    return place
def old(number, *arguments):
    words = [ctypes.c_int32(word & 0xFFFFFFFF).value for word in (number, *arguments, 0, 0, 0, 0)[:5]]
    result = enter(*words)
    if result < 0:
        raise OSError(-result, "refused")
    return result
"""

BY_X32 = {
    # The same numbers with bit 30, and those that x32 has alone: asm/unistd_x32.h.
    "x32: mount": "x32(165, b'none', b'/tmp', b'tmpfs', 0, None)",
    "x32: unshare": "x32(272, 0x10000000)",
    "x32: setns": "x32(308, os.open('/proc/1/ns/mnt', os.O_RDONLY), 0)",
    "x32: bpf": "x32(321, 0, struct.pack('4I', 2, 4, 4, 1) + bytes(100), 116)",
    "x32: ptrace": "x32(521, 16, 1, 0, 0)",
    "x32: open_by_handle_at": "x32(304, os.open('/', os.O_RDONLY), struct.pack('IiQ', 8, 1, 2), 0)",
    "x32: alg socket": "x32(41, 38, 5, 0)",
    "x32: a number beyond all": "x32(0x3FFFFFFF)",
    "x32: a negative number": "check(libc.syscall(ctypes.c_long(-1)))",
    "x32: a number with high bits": "check(libc.syscall(ctypes.c_long(165 | 1 << 32), b'none', b'/tmp', b'tmpfs', ctypes.c_long(0), None))",
}

X32 = """
def x32(number, *arguments):
    return check(libc.syscall(ctypes.c_long(number | 1 << 30), *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments)))
"""


@pytest.fixture(scope="module", autouse=True)
def _the_clock_is_as_it_was() -> Iterator[None]:
    offset = time.time() - time.monotonic()
    yield
    assert abs(time.time() - time.monotonic() - offset) < 60, "the clock was set"


def test_host_mounts_cannot_be_mounted_or_uncovered(sandbox: Sandbox, isolation: str) -> None:
    """In gVisor root inside mounts what that kernel has, which is nothing of the host's. In a container nobody mounts anything."""
    found = outcomes(sandbox, _each("alone()", MOUNTS), user="root", setup=PRIVATE, apart=True)
    assert not_refused(found, allowed=MOUNTED if isolation == "gvisor" else (), also=_unknown_there(isolation)) == {}


@IN_CONTAINERS
def test_host_root_can_make_the_same_mounts() -> None:
    """The control: the host's root, in a mount namespace of its own."""
    found = outcomes_outside(_each("alone()", MOUNTS), setup=PRIVATE)
    # No fuse server, and what is covered inside is not covered here; the rest depends on what this host's kernel was built with.
    done = {name for name, result in found.items() if result == "ok"}
    assert {"tmpfs", "proc", "bind", "remount the root", "pivot_root", "move", "umount /", "fsopen", "open_tree", "mount_setattr"} <= done
    assert len(done) > len(MOUNTS) - 12, found


def test_system_calls_do_not_control_the_host(sandbox: Sandbox, isolation: str) -> None:
    """In gVisor root is served those of ``SERVED``, for that sandbox alone. A container refuses all. As a user: the last test."""
    found = outcomes(sandbox, {**POWERS, **BUGS, "control": 'call("memfd_create", b"control", 0)'}, user="root", setup=PRIVATE)
    assert found.pop("control") == "ok"
    assert not_refused(found, allowed=SERVED if isolation == "gvisor" else (), also=_unknown_there(isolation)) == {}


@IN_CONTAINERS
@pytest.mark.parametrize("user", USERS)
def test_host_namespaces_cannot_be_entered_or_created(sandbox: Sandbox, user: str) -> None:
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
    assert not_refused(outcomes(sandbox, tries, user=user)) == {}


def test_root_in_a_nested_user_namespace_gets_no_further(sandbox: Sandbox, isolation: str) -> None:
    """As many kernel exploits begin: all capabilities, in a user namespace with mounts, network and names of its own.

    gVisor gives such a namespace, and in it what root inside may, and raw sockets on a network of which nothing leads anywhere.
    A container gives none, so that all is refused as ever.
    """
    flags = sum(flag for name, flag in NAMESPACES.items() if name not in {"pid", "cgroup"})
    rest = {name: code for name, code in POWERS.items() if name != "the user's keys"}
    found = outcomes(sandbox, _each(f"alone({flags})", {**MOUNTS, **rest, **BUGS}), user="user", setup=PRIVATE, apart=True)
    sockets = {"a raw socket", "a packet socket", "a cooked packet socket"}
    allowed = MOUNTED | SERVED | sockets if isolation == "gvisor" else set()
    assert not_refused(found, allowed=allowed, also=_unknown_there(isolation)) == {}


@ONLY_X86
@pytest.mark.parametrize("user", USERS)
def test_32_bit_and_x32_calls_allow_nothing_more(sandbox: Sandbox, user: str) -> None:
    assert not_refused(outcomes(sandbox, BY_INT_0X80 | BY_X32, user=user, setup=OLD + X32)) == {}


def _each(first: str, attempts: dict[str, str]) -> dict[str, str]:
    """Every attempt, with something done first in its process."""
    return {name: f"{first}\n{code}" for name, code in attempts.items()}


def _unknown_there(isolation: str) -> dict[str, set[str]]:
    """Errors of single attempts that are refusals as well.

    EINVAL is what gVisor says about flags and options that it does not have; from Linux it would mean that nothing was tried. About what
    exploits of Linux need, gVisor also says EIO and EFAULT. Linux refuses bad addresses as such; ENOPKG says that it was built without watch queues.
    """
    if isolation == "gvisor":
        unknown = {name: {"EINVAL"} for name in (*MOUNTS, "real time")}
        return unknown | {name: {"EINVAL", "EIO", "EFAULT"} for name in BUGS}
    return {"CVE-2017-5123 (waitid)": {"EFAULT"}, "CVE-2022-0995 (watch queues)": {"ENOPKG", "EINVAL"}}
