"""First program of every sandbox, for x86-64. It works around a fault of the sandbox's kernel, and becomes the guest (execve(2)) within about 1 ms.

gVisor up to at least 20240729 refuses ``close_range(FIRST, 2^32-1)`` with EINVAL. GLib 2.74 calls it between fork and exec and takes this error as
fatal, so its programs cannot start others: XFCE has no panel, and ``gtk-launch`` starts nothing. Programs know ENOSYS from Linux before 5.9, and
then close descriptors one by one. So the first program probes the call, and only on a kernel with the fault installs a filter that refuses it with
ENOSYS. Every process of the sandbox inherits the filter, however it is started.

A filter needs no_new_privs (seccomp(2)). This takes nothing away: drivers set no_new_privs for every sandbox, so set-uid bits have no effect anyway,
and ``sudo`` asks the guest (``guest/process/sudo.py``).

The program is machine code, because PID 1 can make neither call in Python without ctypes, whose import takes 14 to 25 ms of each boot in gVisor.

Remove this module, and start the guest directly, once ``gvisor/runtime.py`` refuses all releases that fail the probe.
``tests/conformance/test_gvisor_differences.py`` tells whether the installed release fails it.
"""

from __future__ import annotations

import errno
import struct

from sandlot.link.elf import CODE_ADDRESS, elf_file

SYS_CLOSE_RANGE = 436  # the same on every architecture

_BPF_LOAD, _BPF_JUMP_EQUAL, _BPF_RETURN = 0x20, 0x15, 0x06
_SECCOMP_RET_ERRNO, _SECCOMP_RET_ALLOW = 0x00050000, 0x7FFF0000
_FILTER = b"".join(
    struct.pack("<HBBI", *instruction)
    for instruction in (
        (_BPF_LOAD, 0, 0, 0),  # the number of the call
        (_BPF_JUMP_EQUAL, 0, 1, SYS_CLOSE_RANGE),
        (_BPF_RETURN, 0, 0, _SECCOMP_RET_ERRNO | errno.ENOSYS),
        (_BPF_RETURN, 0, 0, _SECCOMP_RET_ALLOW),
    )
)
"""Instructions of the filter (linux/bpf_common.h, linux/seccomp.h)."""

_CODE = bytes.fromhex(
    # Call close_range(0x7fffffff, 0xffffffff, 0), which closes nothing: no descriptor has such a number.
    "b8b4010000 bfffffff7f beffffffff 31d2 0f05"
    # Unless the result is -EINVAL, jump over both calls of prctl to execve.
    "83f8ea 752f"
    # Set no_new_privs: prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0).
    "b89d000000 bf26000000 be01000000 4531d2 4531c0 0f05"
    # Install the filter: prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, address of the sock_fprog behind the code). A failure is ignored.
    "b89d000000 bf16000000 be02000000 488d1526000000 0f05"
    # Call execve(argv[1], argv + 1, envp). The stack begins with argc, argv, a null pointer and envp.
    "b83b000000 488b1424 488d54d410 488d742410 488b3e 0f05"
    # Call exit(127), because execve has failed.
    "b83c000000 bf7f000000 0f05"
)
_FPROG_BYTES = 16
"""Size of a sock_fprog, which is between the code and the filter."""


def first_program() -> bytes:
    """Return the program. Its arguments are the path of the program that follows, and the arguments of that program."""
    filter_address = CODE_ADDRESS + len(_CODE) + _FPROG_BYTES
    return elf_file(_CODE + struct.pack("<HxxxxxxQ", len(_FILTER) // 8, filter_address) + _FILTER)
