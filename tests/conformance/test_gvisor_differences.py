"""What gVisor does differently from Linux. A failing test means that a newer runtime behaves as Linux does: change docs/explanation/gvisor.md."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from sandlot.drivers.oci.gvisor import config
from sandlot.link.payload import GUEST_ARGV, INTERPRETER_ARGV
from tests.conformance.guest.conftest import SMALL, open_sandbox
from tests.support.driver_sandboxes import GuestSession, driver_sandboxes, wake

RESIZE = """
import fcntl, os, pty, signal, struct, termios
child, fd = pty.fork()
if not child:
    numbers = {signal.SIGWINCH, signal.SIGUSR1}
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    os.write(1, b'ready ')
    os.write(1, signal.Signals(signal.sigwait(numbers)).name.encode())
    os._exit(0)
text = os.read(fd, 100)
fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack('HHHH', 50, 132, 0, 0))
os.kill(child, NUMBER)
while b'SIG' not in text:
    text += os.read(fd, 100)
print(text.decode(), struct.unpack('HHHH', fcntl.ioctl(fd, termios.TIOCGWINSZ, bytes(8)))[:2])
"""


@pytest.fixture(scope="module")
async def inside(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[GuestSession]:
    """A sandbox that the tests share."""
    async with open_sandbox(tmp_path_factory.mktemp("data"), isolation="gvisor", limits=SMALL) as sandbox:
        yield sandbox


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="the host has one processor")
async def test_sandbox_with_one_core_has_two_processors(inside: GuestSession) -> None:
    """Programs that count the processors of the machine, instead of those of their affinity, find two."""
    assert SMALL.cpus == 1
    for command in ("nproc --all", "python3 -c 'import os; print(os.cpu_count())'", "node -p 'os.cpus().length'", "grep -c ^processor /proc/cpuinfo"):
        assert await inside.sh(command) == "2\n", command


async def test_size_of_the_disk_is_not_shown_but_its_use_is(inside: GuestSession) -> None:
    read = "df --block-size=1 --output=size,used /workspace | tail -n 1"
    _, before = (int(number) for number in (await inside.sh(read)).split())
    await inside.sh("head -c 8M /dev/zero >/workspace/file")
    total, used = (int(number) for number in (await inside.sh(read)).split())
    assert total > 1 << 60
    assert used - before == 8 << 20


async def test_terminal_of_a_program_has_no_dev_tty(inside: GuestSession) -> None:
    out = await inside.sh("script -qc 'tty; echo shown >/dev/tty || echo failed; echo shown >$(tty)' /dev/null")
    assert (out.count("failed"), out.count("shown")) == (1, 1), out


async def test_resized_terminal_of_a_program_gets_no_signal(inside: GuestSession) -> None:
    assert await inside.sh(f'python3 -c "{RESIZE.replace("NUMBER", "signal.SIGUSR1")}"') == "ready SIGUSR1 (50, 132)\n"
    assert await inside.sh(f'python3 -c "{RESIZE.replace("NUMBER", "signal.SIGWINCH")}"') == "ready SIGWINCH (50, 132)\n"


async def test_clocks_of_a_copy_count_from_the_boot_of_its_source(tmp_path: Path) -> None:
    """The source sleeps, so that its clocks are ahead of those of a sandbox that has just started."""
    read = "cut -d' ' -f1 /proc/uptime; python3 -c 'import time; print(time.monotonic())'"
    async with driver_sandboxes(tmp_path, "base") as here:
        source = await here.open()
        await wake(source, "sb-source")
        await source.sh("sleep 2")
        before = [float(number) for number in (await source.sh(read)).split()]
        (copy,) = await here.copies(source, 1)
        await wake(copy, "sb-copy")
        after = [float(number) for number in (await copy.sh(read)).split()]

    assert all(late >= early for late, early in zip(after, before, strict=True)), (before, after)


CLOSE_ALL = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall(436, ctypes.c_ulong(1000), ctypes.c_ulong(0xFFFFFFFF), ctypes.c_ulong(0))
print(errno.errorcode.get(ctypes.get_errno()))
"""


async def test_programs_close_descriptors_one_by_one(inside: GuestSession) -> None:
    out, _, _ = await inside.run("python3", "-c", CLOSE_ALL)
    assert out == b"ENOSYS\n"


async def test_kernel_refuses_to_close_all_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it does not, remove ``link/first_program.py`` as soon as older releases are no longer supported."""
    assert GUEST_ARGV[1:][: len(INTERPRETER_ARGV)] == INTERPRETER_ARGV
    monkeypatch.setattr(config, "GUEST_ARGV", GUEST_ARGV[1:])
    async with open_sandbox(tmp_path, isolation="gvisor", limits=SMALL) as sandbox:
        out, _, _ = await sandbox.run("python3", "-c", CLOSE_ALL)
    assert out == b"EINVAL\n"
