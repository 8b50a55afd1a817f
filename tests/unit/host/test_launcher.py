"""The stage as a separate process, with a runtime of a few lines: its messages, its end, and what it leaves and inherits."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from sandlot.host import disk_images
from sandlot.host.launcher import Operation, Order, Stage, StageError, read_started
from sandlot.host.link_pipes import PipeStream, make_pipes
from sandlot.host.process_identity import identify
from sandlot.testing.drivers.leftovers import wait_until_empty

# Like `runsc run -detach`: leave a process behind that has the link, and write its pid.
# (A shell gives what it starts in the background /dev/null unless told otherwise.)
DETACH = 'exec 3<&0; sh -c "$2" <&3 3<&- & echo -n $! > "$1"'
ECHO = "while read line; do echo got $line; echo log $line >&2; [ $line = end ] && exit 7; done"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    make_pipes(tmp_path)
    yield tmp_path
    for file in ("live", "pid"):
        if (tmp_path / file).exists():
            proc = Path(f"/proc/{(tmp_path / file).read_text().split()[0]}")
            assert wait_until_empty(partial(_stat, proc)) == []


def order(folder: Path, guest: str = ECHO, argv: tuple[str, ...] | None = None) -> Order:
    detach = ("/bin/sh", "-c", DETACH, "sh", str(folder / "pid"), guest)
    return Order(
        argv=argv or detach, env={"PATH": "/bin"}, folder=str(folder), stdin=f"{folder}/in", stdout=f"{folder}/out", pid_file=f"{folder}/pid"
    )


async def exit_of(folder: Path, stage: Stage) -> str:
    await stage.ended
    return await asyncio.to_thread((folder / "exit").read_text)


async def test_keeper_starts_the_sandbox_and_writes_its_exit_code(folder: Path) -> None:
    stage = await Stage.spawn("name", folder / "errors")
    await stage.carry_out([])
    started = await stage.start(order(folder))
    assert read_started((folder / "live").read_text()) == started
    assert identify(started.sandbox.pid) == started.sandbox
    assert identify(started.keeper.pid) == started.keeper
    assert _parent(started.sandbox.pid) == started.keeper.pid
    stream = PipeStream.open(folder)
    stream.try_send(b"hello\n")
    assert await stream.receive(100) == b"got hello\n"
    stream.try_send(b"end\n")
    assert await exit_of(folder, stage) == "7"
    said = b""
    while more := await stream.receive(100):
        said += more
    assert said == b"got end\n", "and then the end: nobody else holds the link"
    await stream.aclose()
    assert (folder / "guest.log").read_text() == "log hello\nlog end\n"
    assert (folder / "errors").read_text() == ""


async def test_nothing_of_the_service_reaches_the_runtime(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDLOT_SECRET", "secret")
    inherited = os.open(folder, os.O_RDONLY)
    os.set_inheritable(inherited, True)
    stage = await Stage.spawn("name", folder / "errors")
    await stage.carry_out([("oom_score", "777"), ("limit", "RLIMIT_CORE", 0, 0)])
    look = "ls -l /proc/self/fd; env; cat /proc/self/oom_score_adj; ulimit -c; pwd; umask; cat /proc/self/status | grep SigIgn; read line"
    started = await stage.start(order(folder, look))
    _check_keeper(started.keeper.pid, folder)
    stream = PipeStream.open(folder)
    said = ""
    while "SigIgn" not in said:
        said += (await stream.receive(10_000)).decode()
    stream.try_send(b"\n")
    assert await exit_of(folder, stage) == "0"
    await stream.aclose()
    os.close(inherited)
    assert "SANDLOT" not in said
    fds = [line for line in said.splitlines() if " -> " in line]
    assert len(fds) == 4, "the link, the log, and ls's own"
    assert "\n777\n0\n/\n0077\n" in said
    ignored = int(said.rsplit(maxsplit=1)[1], 16)
    assert [number for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM) if ignored >> (number - 1) & 1] == []


async def test_runtime_cannot_read_what_its_guest_has_written(folder: Path) -> None:
    """When gVisor saves its memory, it empties every pipe that it can read."""
    stage = await Stage.spawn("name", folder / "errors")
    await stage.carry_out([])
    started = await stage.start(order(folder))
    assert _access(Path(f"/proc/{started.sandbox.pid}"), "1") == os.O_WRONLY
    os.kill(started.sandbox.pid, signal.SIGTERM)
    await stage.ended


@pytest.mark.parametrize(
    "plan, words",
    [
        ([("join", "/sys/fs/cgroup/not-there/tasks")], "No such file or directory: /sys/fs/cgroup/not-there/tasks"),
        ([("private_mounts",), ("bind", "/not-there", "/mnt", "ro")], "No such file or directory: /not-there"),
        ([("private_mounts",), ("tmpfs", "/not-there", "")], "No such file or directory: mount /not-there"),
    ],
)
async def test_failed_operation_is_named(folder: Path, plan: list[Operation], words: str) -> None:
    stage = await Stage.spawn("name", folder / "errors")
    with pytest.raises(StageError, match=words):
        await stage.carry_out(plan)
    await stage.ended
    with pytest.raises(StageError):
        await stage.start(order(folder))


async def test_message_of_a_failing_runtime_is_raised(folder: Path) -> None:
    stage = await Stage.spawn("name", folder / "errors")
    await stage.carry_out([])
    with pytest.raises(StageError, match="exit code 3: no such luck"):
        await stage.start(order(folder, argv=("/bin/sh", "-c", "echo no such luck >&2; exit 3")))
    await stage.ended
    stage = await Stage.spawn("name", folder / "errors")
    await stage.carry_out([])
    with pytest.raises(StageError, match="No such file"):
        await stage.start(order(folder, argv=("/no/such/runtime",)))
    await stage.ended


async def test_end_of_a_killed_stage_ends_every_wait(folder: Path) -> None:
    stage = await Stage.spawn("name", folder / "errors")
    planning = asyncio.create_task(stage.carry_out([]))
    stage.kill()
    with pytest.raises(StageError):
        await planning
    await stage.ended
    stage.kill()
    stage = await Stage.spawn("name", folder / "errors")
    await stage.carry_out([])
    starting = asyncio.create_task(stage.start(order(folder, argv=("/bin/sleep", "600"))))
    runtime = await asyncio.to_thread(_child, stage)
    stage.kill()
    with pytest.raises(StageError):
        await starting
    await stage.ended
    os.kill(runtime, signal.SIGKILL)


@pytest.mark.parametrize("when", ["at once", "after the plan"])
def test_stage_ends_if_its_service_dies_before_the_order(folder: Path, when: str) -> None:
    program = """
import asyncio, os, sys
from pathlib import Path
from sandlot.host.launcher import Stage
async def main():
    stage = await Stage.spawn("orphan", Path(sys.argv[1]))
    if sys.argv[2] != "at once":
        await stage.carry_out([("private_mounts",), ("tmpfs", "/mnt", "size=64k")])
    print(stage._popen.pid, flush=True)
    os._exit(0)
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program, str(folder / "errors"), when], capture_output=True, text=True, check=True)
    proc = Path(f"/proc/{int(done.stdout)}")
    assert wait_until_empty(partial(_stat, proc)) == []


async def test_private_mounts_are_private_and_end_with_the_stage(folder: Path) -> None:
    image, target = folder / "disk.img", folder / "view"
    disk_images.stamp(disk_images.make_template(16 << 20, folder), image, allocated=False)
    (folder / "hidden").mkdir()
    (folder / "hidden" / "file").write_text("here")
    stage = await Stage.spawn("name", folder / "errors")
    plan: list[Operation] = [
        ("private_mounts",),
        ("tmpfs", str(folder), "mode=0700,size=1m"),
        *(("mkdir", f"{target}/{name}") for name in ("disk", "bound")),
        ("disk", str(image), f"{target}/disk"),
        ("bind", str(folder / "hidden"), f"{target}/bound", "ro"),
        ("file", f"{target}/note", "text"),
    ]
    await stage.carry_out(plan)
    assert list(disk_images.loops_below(folder).values()) == [image]
    assert str(target) not in _mounts()
    seen = Path(f"/proc/{stage._popen.pid}/root{target}")  # noqa: SLF001
    assert (seen / "note").read_text() == "text"
    assert (seen / "bound" / "file").read_text() == "here"
    with pytest.raises(OSError, match="Read-only"):
        (seen / "bound" / "file").write_text("changed")
    (seen / "disk" / "file").write_bytes(bytes(1 << 20))
    with pytest.raises(OSError, match="No space"):
        (seen / "disk" / "big").write_bytes(bytes(20 << 20))
    stage.kill()
    await stage.ended
    assert wait_until_empty(lambda: disk_images.loops_below(folder)) == {}


async def test_cancelled_spawn_leaves_no_stage(folder: Path) -> None:
    before = _children()
    for delay_s in (0, 0.001, 0.005):
        spawning = asyncio.create_task(Stage.spawn("cancelled", folder / "errors"))
        await asyncio.sleep(delay_s)
        spawning.cancel()
        try:
            stage = await spawning
        except asyncio.CancelledError:
            continue
        stage.kill()
        await stage.ended
    assert await asyncio.to_thread(wait_until_empty, lambda: _children() - before) == set()


def _stat(proc: Path) -> list[Path]:
    return list(proc.glob("stat"))


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _mounts() -> str:
    return Path("/proc/self/mountinfo").read_text()


def _check_keeper(pid: int, folder: Path) -> None:
    proc = Path(f"/proc/{pid}")
    assert (proc / "oom_score_adj").read_text() == "0\n"
    assert (proc / "environ").read_bytes() == b""
    assert (proc / "comm").read_text() == "sandlot-keeper\n"
    held = {fd.readlink().name: fd.name for fd in (proc / "fd").iterdir() if fd.readlink().is_relative_to(folder)}
    assert held.keys() == {"guest.log", "errors", "out"}, "and of the link that end alone at which nobody takes the service or it for the sandbox"
    assert _access(proc, held["out"]) == os.O_RDONLY


def _access(proc: Path, fd: str) -> int:
    flags = next(line for line in (proc / "fdinfo" / fd).read_text().splitlines() if line.startswith("flags:"))
    return int(flags.split()[1], 8) & os.O_ACCMODE


def _children() -> set[int]:
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that ends meanwhile has no children
            found.update(map(int, (task / "children").read_text().split()))
    return found


def _child(stage: Stage) -> int:
    keeper = stage._popen.pid  # noqa: SLF001
    while not (children := Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()):
        time.sleep(0.001)
    return int(children[0])
