"""KVM is judged by what a guest says, not by whether its device can be opened."""

from __future__ import annotations

import os
import struct

import pytest

from sandlot.host.checks import kvm

NO_KVM = not os.access(kvm.DEVICE, os.R_OK | os.W_OK)


@pytest.mark.parametrize(
    "said, late, ok, words",
    [
        (b"ABC.", False, True, "a guest ran"),
        (b"ABC.", True, False, "does not work"),
        (b"", True, False, "never ran"),
        (b"A", True, False, "interpreted"),
        (b"AB!KVM met an instruction that it cannot do", False, False, "an ordinary instruction failed (KVM met"),
        (b"ABC", False, False, "did not stop"),
        (b"!No such file or directory: /dev/kvm", False, False, "not there"),
        (b"!Permission denied: /dev/kvm", False, None, "Permission denied"),
        (b"!KVM's interface has version 11, not 12", False, False, "version 11"),
    ],
)
def test_what_the_guests_words_mean(said: bytes, *, late: bool, ok: bool | None, words: str) -> None:
    found = kvm.judge(said, late=late, seconds=0.01)
    assert found.ok is ok
    assert words in found.detail
    assert not found.required
    assert bool(found.fix) is not bool(ok)


def test_the_segments_and_control_registers_of_64_bit_mode_are_where_the_kernel_reads_them() -> None:
    before = bytearray(range(256)) + bytearray(56)
    after = kvm.in_long_mode(bytearray(before))
    code = struct.unpack_from("QIHBBBBBBBBB", after, 0)
    assert code[:4] == (0, 0xFFFFFFFF, 8, 11)
    assert code[8] == 1  # "l": 64-bit
    assert after[144:224] == before[144:224]  # task register, local table, the two descriptor tables
    assert struct.unpack_from("Q", after, 224 + 16)[0] == 0x1000  # cr3
    assert len(after) == 312


@pytest.mark.may_skip("needs a /dev/kvm, whether it works or not")
@pytest.mark.skipif(NO_KVM, reason="there is no /dev/kvm")
def test_a_guest_runs_to_its_end_even_where_it_is_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    # A short count, and a store in place of the instruction that interpreters leave out: so the machine itself is set up as it must be.
    easy = kvm.PROGRAM.replace(kvm.COUNT.to_bytes(4, "little"), (100).to_bytes(4, "little"))
    easy = easy.replace(bytes.fromhex("f0480fc70f"), bytes.fromhex("488907 9090"))
    monkeypatch.setattr(kvm, "PROGRAM", easy)
    reading, writing = os.pipe()
    kvm.run_machine(writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as said:
        assert said.read() == b"ABC."
