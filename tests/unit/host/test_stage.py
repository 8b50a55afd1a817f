"""The stage's parts that can be looked at from here; as a whole it is run by ``test_launch.py`` and by every sandbox."""

from __future__ import annotations

import ast
import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandlot.host import stage


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


def test_a_loop_config_is_laid_out_as_the_kernel_reads_it() -> None:
    made = LoopConfig.from_buffer_copy(stage.loop_config(7, stage.LO_FLAGS_AUTOCLEAR))
    expected = LoopConfig(fd=7)
    expected.info.flags = stage.LO_FLAGS_AUTOCLEAR
    assert bytes(made) == bytes(expected)
    assert ctypes.sizeof(LoopConfig) == stage.LOOP_CONFIG_BYTES


def test_it_imports_little_and_nothing_of_sandlot() -> None:
    tree = ast.parse(Path(stage.__file__).read_bytes())
    names = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    assert names <= {"ctypes", "fcntl", "marshal", "os", "resource", "select", "sys"}
    program = "import sys; sys.path.append(sys.argv[1]); import stage; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-SI", "-c", program, str(Path(stage.__file__).parent)], capture_output=True, text=True, check=True, env={}
    )
    assert set(done.stdout.split()).isdisjoint({"typing", "enum", "re", "collections", "json", "pathlib", "sandlot", "signal", "subprocess"})


def test_the_log_keeps_the_newest_and_is_bounded(tmp_path: Path) -> None:
    log = stage.Log(str(tmp_path / "guest.log"))
    for number in range(40):
        os.write(log.far_end, bytes([65 + number % 26]) * 10_000)
        assert log.drain()
    kept = (tmp_path / "guest.log.old").read_bytes() + (tmp_path / "guest.log").read_bytes()
    assert stage.LOG_BYTES < len(kept) <= 2 * stage.LOG_BYTES
    assert kept.endswith(bytes([65 + 39 % 26]) * 10_000)
    assert log.tail == bytes([65 + 39 % 26]) * 2000
    assert log.drain(), "nothing there is not the end"
    os.close(log.far_end)
    assert not log.drain()
    for handle in (log.pipe, log.file):
        os.close(handle)


def test_what_is_published_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "live"
    stage.publish(str(target), "1 2 3 4")
    assert target.read_text() == "1 2 3 4"
    stage.publish(str(target), "5")
    assert target.read_text() == "5"
    assert [path.name for path in tmp_path.iterdir()] == ["live"]
    assert target.stat().st_mode & 0o777 == 0o600


def test_a_failed_call_says_where(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="mount") as refused:
        stage.mount("none", str(tmp_path / "nowhere"), "tmpfs", 0)
    assert refused.value.filename == f"mount {tmp_path}/nowhere"


def test_its_own_start_is_what_proc_says() -> None:
    assert stage.start_ticks(os.getpid()) == int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
