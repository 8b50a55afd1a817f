"""Operations of a plan that need no stage. ``test_launcher.py`` and every sandbox carry out all of them."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from sandlot.host.stage import operations
from tests.support.children import children


class LoopInfo64(ctypes.Structure):
    """struct loop_info64 of linux/loop.h."""

    _fields_ = [  # type: ignore[mutable-override] # ctypes wants a list
        *((name, ctypes.c_uint64) for name in ("device", "inode", "rdevice", "offset", "sizelimit")),
        *((name, ctypes.c_uint32) for name in ("number", "encrypt_type", "encrypt_key_size", "flags")),
        ("file_name", ctypes.c_uint8 * 64),
        ("crypt_name", ctypes.c_uint8 * 64),
        ("encrypt_key", ctypes.c_uint8 * 32),
        ("init", ctypes.c_uint64 * 2),
    ]


class LoopConfig(ctypes.Structure):
    """struct loop_config of linux/loop.h."""

    _fields_ = [("fd", ctypes.c_uint32), ("block_size", ctypes.c_uint32), ("info", LoopInfo64), ("reserved", ctypes.c_uint64 * 8)]  # type: ignore[mutable-override]


def test_loop_config_has_the_layout_of_the_kernel() -> None:
    made = LoopConfig.from_buffer_copy(operations.loop_config(7, operations.LO_FLAGS_AUTOCLEAR))
    expected = LoopConfig(fd=7)
    expected.info.flags = operations.LO_FLAGS_AUTOCLEAR
    assert bytes(made) == bytes(expected)
    assert ctypes.sizeof(LoopConfig) == operations.LOOP_CONFIG_BYTES


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "1 / 0"])
def test_namespace_is_refused_if_its_process_ends_early(end: str) -> None:
    """Run as a separate program: the function must report this once, and not wait."""
    program = (
        "import os\nfrom sandlot.host.stage import operations\n"
        f"def prctl(*_): {end}\n"
        "operations.prctl = prctl\n"
        "try: operations.user_namespace(0x70000000, 65536)\n"
        "except OSError as error: print(error.strerror)\n"
        "else: print('made')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "the process that creates the namespace ended\n", done


def test_refused_namespace_leaves_nothing() -> None:
    before, processes = len(list(Path("/proc/self/fd").iterdir())), children()
    with pytest.raises(OSError, match="Invalid argument"):
        operations.user_namespace(0xFFFFFFFF, 65536)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert children() == processes


def test_only_the_registration_for_private_membarriers_is_skipped() -> None:
    """Run as a separate program, because a filter stays until the process ends."""
    program = (
        "import ctypes, os\nfrom sandlot.host.stage import operations\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "def call(command): return libc.syscall(324, command, 0, 0), ctypes.get_errno()\n"
        "operations.skip_membarrier()\n"
        "query, register, private, other = call(0), call(16), call(8), call(1 << 30)\n"
        "print(query[0] > 0, register[0], private, other, os.stat('/').st_mode > 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "True 0 (-1, 1) (-1, 22) True\n", done
