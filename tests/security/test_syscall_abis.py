"""Promise: what is refused by its ordinary number is refused by every other way into the kernel as well.

A processor of the x86 family has three: ``syscall`` with 64-bit numbers, the same with the numbers of x32 (bit 30 set), and
``int 0x80`` with those of 32-bit programs, which any 64-bit program may use. A filter that looks at numbers only, or allows a
call whose arguments arrive in another shape there (``socketcall``), is passed by. A few bytes of machine code do it.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator

import pytest

from sandlot import Sandbox
from tests.support.attempts import not_refused, outcomes
from tests.support.hoststate import changes, host_state
from tests.support.inside import USERS

ONLY_X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors have one way into the kernel")

# asm/unistd_32.h; the arguments are such that root of a host without a boundary would be served, or told EINVAL at once.
BY_INT_0X80 = {
    "mount": "old(21, text(b'none'), text(b'/tmp'), text(b'tmpfs'), 0)",
    "umount2": "old(52, text(b'/proc'), 2)",
    "ptrace": "old(26, 16, 1, 0, 0)",
    "unshare": "old(310, 0x10000000)",
    "setns": "old(346, os.open('/proc/1/ns/mnt', os.O_RDONLY), 0)",
    "clone": "old(120, 0x10000000 | 17, 0, 0, 0) or os._exit(0)",
    "keyctl": "old(288, 1, text(b'sandlot'), 0, 0)",
    "add_key": "old(286, text(b'user'), text(b'sandlot'), text(b'x'), 1)",
    "bpf": "old(357, 0, text(struct.pack('4I', 2, 4, 4, 1) + bytes(100)), 116)",
    "perf_event_open": "old(336, text(struct.pack('IIQ', 1, 112, 0) + bytes(96)), 0, -1, -1)",
    "init_module": "old(128, text(bytes(64)), 64, text(b''))",
    "delete_module": "old(129, text(b'overlay'), 0o4000)",
    "kexec_load": "old(283, 0, 0, 0, 0)",
    "reboot": "old(88, 0xFEE1DEAD, 672274793, 0, 0)",
    "swapon": "old(87, text(b'/etc/passwd'), 0)",
    "stime": "old(25, text(struct.pack('I', 10**9)))",
    "settimeofday": "old(79, text(struct.pack('II', 10**9, 0)), 0)",
    "clock_settime64": "old(404, 0, text(struct.pack('qq', 10**9, 0)))",
    "iopl": "old(110, 3)",
    "ioperm": "old(101, 0x80, 1, 1)",
    "acct": "old(51, text(b'/tmp/acct'))",
    "quotactl": "old(131, 0x80000200, text(b'/dev/vda'), 0, text(bytes(64)))",
    "pivot_root": "old(217, text(b'/tmp'), text(b'/tmp'))",
    "vm86": "old(166, 0, 0)",
    "vm86old": "old(113, text(bytes(256)))",
    "modify_ldt": "old(123, 1, text(struct.pack('4I', 0, 0, 0xFFFFF, 0x51)), 16)",
    "syslog": "old(103, 3, text(bytes(64)), 64)",
    "userfaultfd": "old(374, 0)",
    "io_uring_setup": "old(425, 8, text(bytes(120)))",
    "fsopen": "old(430, text(b'tmpfs'), 0)",
    "open_tree": "old(428, -100, text(b'/'), 1)",
    "open_by_handle_at": "old(342, os.open('/', os.O_RDONLY), text(struct.pack('IiQ', 8, 1, 2)), 0)",
    "process_vm_readv": "old(347, 1, text(bytes(16)), 1, text(bytes(16)))",
    "fanotify_init": "old(338, 4, 0)",
    "uselib": "old(86, text(b'/bin/true'))",
    "lookup_dcookie": "old(253, 1, 0, text(bytes(64)), 64)",
    "alg socket by socketcall": "old(102, 1, text(struct.pack('3I', 38, 5, 0)))",
    "vsock by socketcall": "old(102, 1, text(struct.pack('3I', 40, 1, 0)))",
    "packet socket by socketcall": "old(102, 1, text(struct.pack('3I', 17, 3, 0x300)))",
    "raw socket by socketcall": "old(102, 1, text(struct.pack('3I', 2, 3, 1)))",
    "rxrpc socket by socketcall": "old(102, 1, text(struct.pack('3I', 33, 2, 2)))",
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

X32 = {
    # The same numbers with bit 30, and those that x32 has alone: asm/unistd_x32.h.
    "mount": "x32(165, b'none', b'/tmp', b'tmpfs', 0, None)",
    "unshare": "x32(272, 0x10000000)",
    "clone": "x32(56, 0x10000000 | 17, 0, 0, 0, 0) or os._exit(0)",
    "setns": "x32(308, os.open('/proc/1/ns/mnt', os.O_RDONLY), 0)",
    "bpf": "x32(321, 0, struct.pack('4I', 2, 4, 4, 1) + bytes(100), 116)",
    "keyctl": "x32(250, 1, b'sandlot')",
    "ptrace": "x32(521, 16, 1, 0, 0)",
    "kexec_load": "x32(528, 0, 0, 0, 0)",
    "process_vm_readv": "x32(539, 1, bytes(16), 1, bytes(16), 1, 0)",
    "open_by_handle_at": "x32(304, os.open('/', os.O_RDONLY), struct.pack('IiQ', 8, 1, 2), 0)",
    "io_uring_setup": "x32(425, 8, ctypes.create_string_buffer(120))",
    "alg socket": "x32(41, 38, 5, 0)",
    "a number beyond all": "x32(0x3FFFFFFF)",
    "a negative number": "check(libc.syscall(ctypes.c_long(-1)))",
    "a number with high bits": "check(libc.syscall(ctypes.c_long(165 | 1 << 32), b'none', b'/tmp', b'tmpfs', ctypes.c_long(0), None))",
}

X32_SETUP = """
def x32(number, *arguments):
    return check(libc.syscall(ctypes.c_long(number | 1 << 30), *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments)))
"""


@pytest.fixture(scope="module", autouse=True)
def _the_host_is_as_it_was(isolation: str) -> Iterator[None]:
    before = host_state()
    yield
    assert changes(before, host_state()) == {}, f"changed from inside of {isolation}"


@ONLY_X86
@pytest.mark.parametrize("user", USERS)
def test_no_call_of_32_bit_programs_does_more(sandbox: Sandbox, isolation: str, user: str) -> None:
    found = outcomes(sandbox, {**BY_INT_0X80, "control": "old(20)"}, user=user, setup=OLD)
    print(isolation, user, found)
    assert not_refused(found) == {}


@ONLY_X86
@pytest.mark.parametrize("user", USERS)
def test_no_call_of_x32_does_more(sandbox: Sandbox, isolation: str, user: str) -> None:
    found = outcomes(sandbox, X32, user=user, setup=X32_SETUP)
    print(isolation, user, found)
    assert not_refused(found) == {}
