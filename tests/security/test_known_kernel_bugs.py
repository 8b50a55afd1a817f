"""Promise: the ways to the known bugs of kernels by which containers were left are shut, so that the next such bug is not reached either.

Sources: each CVE's entry at https://www.cve.org, and what its public write-up says that it needs. Most begin in a user namespace of
one's own, where a user is root: so does each attempt here, where one is given.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandlot import Sandbox
from tests.support.attempts import not_refused, outcomes
from tests.support.hoststate import changes, host_state
from tests.support.inside import USERS

DOORS = {
    # What the exploit of a kernel's bug needs before the bug itself: without it there is no way to the bug.
    "CVE-2022-0185 (fsconfig's heap overflow)": 'fd = own("fsopen", b"ext4", 0); call("fsconfig", fd, 1, b"x" * 255, b"y" * 255, 0)',
    "CVE-2022-0492 (release_agent)": 'own("mount", b"none", AT, b"cgroup", 0, b"rdma")',
    "CVE-2021-22555 (x_tables)": "raw_option(64)",
    "CVE-2016-4997 (x_tables)": "raw_option(64, 0x40)",
    "CVE-2022-32250, CVE-2023-32233, CVE-2024-1086 (nf_tables)": "netlink(12)",
    "CVE-2022-2588, CVE-2023-1829 (traffic control)": "netlink(0, 36)",
    "CVE-2026-43284 (xfrm)": "netlink(6)",
    "CVE-2017-7308, CVE-2020-14386 (packet sockets)": "own_socket(17, 3, 0x300)",
    "CVE-2016-8655 (packet rings)": "own_socket(17, 2, 0x300)",
    "CVE-2017-6074 (DCCP)": "own_socket(2, 6, 33)",
    "CVE-2021-43267 (TIPC)": "own_socket(30, 2, 0)",
    "CVE-2026-31431 (algif_aead)": "own_socket(38, 5, 0)",
    "CVE-2026-43500 (RxRPC)": "own_socket(33, 2, 2)",
    "CVE-2021-26708, CVE-2025-21756 (vsock)": "own_socket(40, 1, 0)",
    "CVE-2020-8835, CVE-2021-31440, CVE-2022-23222 (bpf's verifier)": 'call("bpf", 5, struct.pack("IIQQ", 1, 1, 0, 0) + bytes(92), 116)',
    "CVE-2022-29582, CVE-2023-2598, CVE-2024-0582 (io_uring)": 'call("io_uring_setup", 8, ctypes.create_string_buffer(120))',
    "CVE-2016-0728, CVE-2017-6951 (keys)": 'call("add_key", b"user", b"x", b"y", 1, -2)',
    "CVE-2022-0995 (watch queues)": "check(libc.pipe2(ctypes.create_string_buffer(8), os.O_EXCL))",
    "CVE-2013-2094, CVE-2023-6931 (perf)": 'call("perf_event_open", struct.pack("IIQ", 1, 112, 0) + bytes(96), 0, -1, -1, 0)',
    "CVE-2018-18955 (nested user namespaces)": "nested()",
    "CVE-2013-1858 (a namespace that shares folders)": 'call("clone", 0x10000000 | 0x200 | 17, None, None, None, None) or os._exit(0)',
    "CVE-2015-1328 (overlay in a namespace)": 'own("mount", b"overlay", AT, b"overlay", 0, b"lowerdir=/etc,upperdir=/tmp/u,workdir=/tmp/w")',
    "CVE-2017-5123 (waitid)": "waits()",
    "CVE-2016-2384 and others (USB)": 'os.open("/dev/bus/usb/001/001", os.O_RDWR)',
    "CVE-2022-1011 (FUSE)": 'own("mount", b"x", AT, b"fuse", 0, b"fd=%d,rootmode=40000,user_id=0,group_id=0" % os.open("/dev/fuse", 2))',
    "CVE-2023-4911 and others (userfaultfd to win races)": 'call("userfaultfd", 1)',
    "CVE-2023-2163, CVE-2022-2785 (sys_bpf by other numbers)": 'call("bpf", 36, bytes(116), 116)',
    "CVE-2020-29373, CVE-2021-41091 (modules by a socket's family)": "own_socket(9, 5, 0)",
    "CVE-2017-5226 (a terminal's input is forged, TIOCSTI)": 'fcntl.ioctl(os.open("/dev/tty", os.O_RDWR), 0x5412, b"x")',
    "CVE-2023-28100 (a console's selection, TIOCLINUX)": 'fcntl.ioctl(os.open("/dev/tty", os.O_RDWR), 0x541C, b"\\x02")',
}

DOORS_SETUP = r"""
AT = b"/tmp/at-escape"
for folder in ("/tmp/at-escape", "/tmp/u", "/tmp/w"):
    attempt(os.mkdir, folder)
def namespace():
    # What such exploits begin with. Where there is none, they have to go on without.
    attempt(lambda: call("unshare", 0x10000000 | 0x20000 | 0x40000000))
def own(*arguments):
    namespace()
    return call(*arguments)
def own_socket(*arguments):
    namespace()
    return socket.socket(*arguments)
def raw_option(*option):
    # A table of rules, set or read.
    option = option[-1]
    own_socket(2, 3, 255).setsockopt(0, option, bytes(84))
def netlink(family, kind=None):
    link = own_socket(16, 3, family)
    if kind is not None:
        link.send(struct.pack("IHHII", 36, kind, 0x605, 1, 0) + struct.pack("BxHiIII", 0, 0, 1, 0, 0xFFFFFFFF, 0)[:20])
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

# What gVisor serves, being the sandbox's own kernel: sockets in a namespace that is nobody else's.
GVISOR_SERVES = {"CVE-2017-7308, CVE-2020-14386 (packet sockets)", "CVE-2016-8655 (packet rings)"}
GVISOR_SAYS = {"EINVAL", "EIO", "EFAULT"}
"""What it says about what it does not have."""
LINUX_SAYS = {"CVE-2017-5123 (waitid)": {"EFAULT"}, "CVE-2022-0995 (watch queues)": {"ENOPKG", "EINVAL"}}
"""Bad addresses are refused as such; ENOPKG says that the kernel was built without such queues."""


@pytest.fixture(scope="module", autouse=True)
def _the_host_is_as_it_was(isolation: str) -> Iterator[None]:
    before = host_state()
    yield
    assert changes(before, host_state()) == {}, f"changed from inside of {isolation}"


@pytest.mark.parametrize("user", USERS)
def test_the_doors_to_the_kernels_known_bugs_are_shut(sandbox: Sandbox, isolation: str, user: str) -> None:
    """In gVisor the namespace is one of its own kernel, which has none of these bugs because it has none of this code.

    A container gives no namespace, and refuses what can be had without.
    """
    found = outcomes(sandbox, {**DOORS, "control": "own_socket(2, 1, 0)"}, user=user, setup=DOORS_SETUP, apart=True)
    assert found.pop("control") == "ok"
    own_kernel = isolation == "gvisor"
    also = dict.fromkeys(DOORS, GVISOR_SAYS) if own_kernel else LINUX_SAYS
    assert not_refused(found, allowed=GVISOR_SERVES if own_kernel else (), also=also) == {}
