"""Whether KVM works: a virtual machine of a few pages is made and really run.

That ``/dev/kvm`` can be opened proves nothing. There are hosts on which it opens, makes machines and processors, and then interprets the guest's
instructions one by one, until it meets one that it does not know. So the guest here does what a kernel does first, in 64-bit mode with paging: it
says that it runs, counts to ten million, says that it has, uses an instruction that interpreters leave out, says so and stops.

Sources: the kernel's ``Documentation/virt/kvm/api.rst``; Intel's manual, volume 3, on 64-bit mode and its page tables.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import select
import signal
import struct
import time
from typing import Any

from sandlot.host.checks import calls
from sandlot.host.checks.children import described
from sandlot.host.checks.finding import Finding

GROUP = "kernel"
DEVICE = "/dev/kvm"
DEADLINE_S = 1.0
"""On a processor that virtualizes, all of it takes some 10 ms."""
COUNT = 10_000_000

_API_VERSION = 12
_GET_API_VERSION, _CREATE_VM, _VCPU_MMAP_SIZE, _SUPPORTED_CPUID = 0xAE00, 0xAE01, 0xAE04, 0xC008AE05
_CREATE_VCPU, _RUN, _SET_MEMORY, _SET_TSS = 0xAE41, 0xAE80, 0x4020AE46, 0xAE47
_GET_SREGS, _SET_SREGS, _SET_REGS, _SET_CPUID = 0x8138AE83, 0x4138AE84, 0x4090AE82, 0x4008AE90
_SREGS_BYTES, _CPUID_ENTRIES, _CPUID_BYTES = 312, 256, 40
_TSS = 0x7FFBD000
_EXIT_IO, _EXIT_HLT, _EXIT_SHUTDOWN, _EXIT_FAIL_ENTRY, _EXIT_INTERNAL = 2, 5, 8, 9, 17
_EXIT_REASON_OFFSET, _EXIT_DATA_OFFSET = 8, 32
_NAMES = {
    _EXIT_SHUTDOWN: "the guest crashed",
    _EXIT_FAIL_ENTRY: "the processor did not enter the guest",
    _EXIT_INTERNAL: "KVM met an instruction that it cannot do",
}
"""linux/kvm.h"""

_MEMORY_BYTES = 2 * 1024**2
_PML4, _PDPT, _PD, _CODE, _SCRATCH = 0x1000, 0x2000, 0x3000, 0x4000, 0x8000
_PRESENT, _LARGE = 0x3, 0x83
_CR0, _CR4_PAE, _EFER_LONG = 0x80050033, 0x20, 0x500
_PORT = 0x10
PROGRAM = bytes.fromhex(
    "b041 e610"  # mov al, 'A'; out 0x10, al
    f"b9 {COUNT.to_bytes(4, 'little').hex()}"  # mov ecx, COUNT
    "ffc9 75fc"  # again: dec ecx; jnz again
    "b042 e610"  # mov al, 'B'; out 0x10, al
    f"bf {_SCRATCH.to_bytes(4, 'little').hex()}"  # mov edi, SCRATCH
    "31c0 31d2 31db 31c9 f0480fc70f"  # lock cmpxchg16b [rdi]
    "b043 e610 f4"  # mov al, 'C'; out 0x10, al; hlt
)
_SAID = {
    b"": "the guest never ran",
    b"A": "the guest began, and did not count to ten million in time: its instructions are interpreted",
    b"AB": "the guest counted, and an ordinary instruction failed",
    b"ABC": "the guest ran, and did not stop",
}


def check_kvm() -> list[dict[str, Any]]:
    """Try it, in a process of its own, and its machine in yet another one: that may never come back."""
    return [_kvm().dump()]


def _kvm() -> Finding:
    began = time.monotonic()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            calls.prctl(calls.PR_SET_PDEATHSIG, signal.SIGKILL)
            run_machine(writing)
        except Exception as error:  # noqa: BLE001 - told to the parent
            os.write(writing, f"!{described(error)}".encode(errors="replace")[:1000])
        finally:
            os._exit(0)
    os.close(writing)
    said, late = _listen(reading, began + DEADLINE_S)
    os.kill(pid, signal.SIGKILL)  # not waited for: one that hangs in the kernel is left to it
    return judge(said, late=late, seconds=time.monotonic() - began)


def _listen(reading: int, deadline_s: float) -> tuple[bytes, bool]:
    said = b""
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, deadline_s - time.monotonic()))
        if not ready:
            return said, True
        more = os.read(reading, 4096)
        if not more:
            return said, False
        said += more


def judge(said: bytes, *, late: bool, seconds: float) -> Finding:
    """What the guest's words mean.

    Args:
        said: What came: ``ABC.`` if all went well; after ``!`` why something failed.
        late: Whether its time was up.
        seconds: How long it took.
    """
    words, _, error = said.partition(b"!")
    facts = {"seconds": round(seconds, 3), "late": late}
    if words == b"ABC." and not late:
        return Finding("kvm", ok=True, detail=f"a guest ran, in {seconds * 1000:.0f} ms", required=False, group=GROUP, facts=facts)
    why = error.decode(errors="replace")
    if DEVICE.encode() in error:
        if os.strerror(errno.EACCES).encode() in error:
            return Finding("kvm", ok=None, detail=why, fix="Run as root, or join the group of /dev/kvm.", required=False, group=GROUP, facts=facts)
        fix = "Load kvm_intel or kvm_amd (virtualization must be on in the firmware, or nested virtualization in the host of this one)."
        return Finding("kvm", ok=False, detail=f"not there: {why}", fix=fix, required=False, group=GROUP, facts=facts)
    detail = f"{DEVICE} opens, but does not work: {_SAID.get(words, 'it said something else')}{f' ({why})' if why else ''}"
    fix = "Only virtual machines would need it; on a machine that is virtual itself, ask its host for nested virtualization."
    return Finding("kvm", ok=False, detail=detail, fix=fix, required=False, group=GROUP, facts=facts)


def run_machine(said: int) -> None:
    """Make the machine and run it; what its guest says goes to a descriptor, ``.`` once it has stopped.

    Raises:
        OSError: KVM, or the guest, failed.
    """
    kvm = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    version = fcntl.ioctl(kvm, _GET_API_VERSION, 0)
    if version != _API_VERSION:
        raise OSError(0, f"KVM's interface has version {version}, not {_API_VERSION}")
    machine = fcntl.ioctl(kvm, _CREATE_VM, 0)
    fcntl.ioctl(machine, _SET_TSS, _TSS)  # Intel's without "unrestricted guest" wants it
    memory = mmap.mmap(-1, _MEMORY_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for place, content in ((_PML4, _PDPT | _PRESENT), (_PDPT, _PD | _PRESENT), (_PD, _LARGE)):  # one large page: addresses are what they say
        struct.pack_into("Q", memory, place, content)
    memory[_CODE : _CODE + len(PROGRAM)] = PROGRAM
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    fcntl.ioctl(machine, _SET_MEMORY, struct.pack("IIQQQ", 0, 0, 0, _MEMORY_BYTES, address))
    processor = fcntl.ioctl(machine, _CREATE_VCPU, 0)
    features = bytearray(struct.pack("II", _CPUID_ENTRIES, 0) + bytes(_CPUID_ENTRIES * _CPUID_BYTES))
    fcntl.ioctl(kvm, _SUPPORTED_CPUID, features)
    fcntl.ioctl(processor, _SET_CPUID, features)
    registers = bytearray(_SREGS_BYTES)
    fcntl.ioctl(processor, _GET_SREGS, registers)
    fcntl.ioctl(processor, _SET_SREGS, in_long_mode(registers))
    # rax rbx rcx rdx rsi rdi rsp rbp r8..r15 rip rflags
    fcntl.ioctl(processor, _SET_REGS, struct.pack("18Q", *(0,) * 6, _MEMORY_BYTES, *(0,) * 9, _CODE, 2))
    shared = mmap.mmap(processor, fcntl.ioctl(kvm, _VCPU_MMAP_SIZE, 0))
    while True:
        fcntl.ioctl(processor, _RUN, 0)
        reason = struct.unpack_from("I", shared, _EXIT_REASON_OFFSET)[0]
        if reason == _EXIT_HLT:
            os.write(said, b".")
            return
        if reason != _EXIT_IO:
            raise OSError(0, _NAMES.get(reason, f"KVM stopped for reason {reason}"))
        _, _, port, _, offset = struct.unpack_from("BBHIQ", shared, _EXIT_DATA_OFFSET)
        if port == _PORT:
            os.write(said, shared[offset : offset + 1])


def in_long_mode(registers: bytearray) -> bytearray:
    """A ``struct kvm_sregs`` for 64-bit mode with paging, everything else as it was."""
    # struct kvm_segment: base, limit, selector, type, present, dpl, db, s, l, g, avl, unusable, padding; first cs, then ds es fs gs ss.
    segment = "QIHBBBBBBBBBx"
    for number in range(6):
        code = number == 0
        struct.pack_into(
            segment, registers, 24 * number, 0, 0xFFFFFFFF, 8 if code else 16, 11 if code else 3, 1, 0, 0 if code else 1, 1, code, 1, 0, 0
        )
    # Eight segments and two tables of 16 bytes; then cr0 cr2 cr3 cr4 cr8 efer.
    place = 24 * 8 + 16 * 2
    _, cr2, _, _, cr8, _ = struct.unpack_from("6Q", registers, place)
    struct.pack_into("6Q", registers, place, _CR0, cr2, _PML4, _CR4_PAE, cr8, _EFER_LONG)
    return registers
