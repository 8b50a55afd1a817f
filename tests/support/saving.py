"""A whole service in the test's own process on real drivers, and sandboxes with state in them that can be looked for again."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from sandlot.core.node import Node
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR, Principal
from sandlot.model.network import NetworkMode, NetworkPolicy
from sandlot.model.sandboxes import CreateSandboxParams, LimitsChange
from sandlot.model.specs import MIB, CellSpec, Limits, ProcessSpec
from sandlot.server.composition import RunningService, open_service
from sandlot.server.settings import Settings
from tests.support.cache import CACHE_DIR
from tests.support.sweeping import sweep
from tests.support.traces import NOTHING, node_of, settle, traces
from tests.support.until import until

ROOT = Path(__file__).resolve().parents[2]

SMALL = Limits(memory_bytes=256 * MIB, disk_bytes=128 * MIB)
BASE = CreateSandboxParams(template="base", limits=LimitsChange.to(SMALL), network=NetworkPolicy(NetworkMode.NONE))
IN_CONTAINER = replace(BASE, isolation="container")

TICKING = "(while true; do echo >> /workspace/ticks; sleep 0.2; done) > /dev/null 2>&1 & echo $!"
"""A process in the background that is seen to go on. It prints its id."""
TICKED = "before=$(wc -c < /workspace/ticks); while [ $(wc -c < /workspace/ticks) = $before ]; do sleep 0.1; done"
"""Waits until it has gone on."""


@contextmanager
def place() -> Iterator[Path]:
    """A state directory; in the end nothing of it may be on the host."""
    folder = Path(tempfile.mkdtemp(prefix="sandlot-test-"))  # pytest's may be too long for a unix socket (unix(7): 107 bytes)
    try:
        yield folder
        settle(lambda: traces(folder), NOTHING)
    finally:
        with ThreadPoolExecutor(1) as elsewhere:  # it has an event loop of its own
            elsewhere.submit(sweep, folder).result()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A state directory on a file system of its own."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400m,mode=0700", "none", folder], check=True)
    try:
        yield
    finally:
        unmount_state_dir(folder)


def unmount_state_dir(folder: Path) -> None:
    """Unmount a state directory that is a file system of its own. The id of its node stays in the folder: whoever looks for traces needs it."""
    node = node_of(folder)
    subprocess.run(["umount", "--lazy", folder], check=True)
    if node:
        (folder / "node").write_text(node, encoding="ascii")


def fill_up(folder: Path, *, but_bytes: int) -> Path:
    """Take all that is free of a folder's file system, but for so much."""
    room = os.statvfs(folder)
    file = folder / "filled"
    with file.open("wb") as taken:
        os.posix_fallocate(taken.fileno(), 0, room.f_bavail * room.f_frsize - but_bytes)
    return file


async def free_up(file: Path) -> None:
    """Give back what :func:`fill_up` has taken, also if a process has the file open, and wait until the file system has the room."""
    size = file.stat().st_size  # noqa: ASYNC240 - a short call
    os.truncate(file, 0)
    file.unlink()  # noqa: ASYNC240 - a short call

    def has_room() -> bool:
        room = os.statvfs(file.parent)
        return room.f_bavail * room.f_frsize >= size

    await until(has_room)


def settings_of(folder: Path, **changes: Any) -> Settings:  # noqa: ANN401 - any of the settings
    """A service of that state directory, without pools, that allows containers."""
    chosen = {"data_dir": folder, "cache_dir": CACHE_DIR, "isolation_allowed": ("gvisor", "container"), "pools": (), **changes}
    return replace(Settings(), **chosen)


@asynccontextmanager
async def real_service(folder: Path, *, keep: bool = False, **changes: Any) -> AsyncIterator[RunningService]:  # noqa: ANN401
    """It, open.

    Args:
        folder: Its state directory.
        keep: Whether its sandboxes live on in the end, for the next one.
        changes: Of its settings.
    """
    async with open_service(settings_of(folder, **changes), keep=keep) as service:
        yield service


async def make(service: RunningService, params: CreateSandboxParams = BASE, principal: Principal = OPERATOR) -> Sandbox:
    """Create a sandbox."""
    made = await service.node.sandboxes.create(principal, params)
    return service.internals.registry.find(made.id, principal)


async def shell(node: Node, sandbox: Sandbox, command: str, *, timeout_s: float = 120.0) -> str:
    """What a command line prints; it must succeed."""
    done = await node.processes.run(OPERATOR, sandbox.id, ProcessSpec(("/bin/sh", "-c", command), timeout_s=timeout_s))
    output = "".join(capture.text() for capture in (done.stdout, done.stderr))
    assert done.outcome.exit_code == 0, output
    return output


async def cell(node: Node, sandbox: Sandbox, text: str) -> str:
    """What code prints in the sandbox's own kernel; it must succeed."""
    done = await node.code.run(OPERATOR, sandbox.id, CellSpec(text, timeout_s=120.0))
    assert done.outcome.status == "ok", done.error
    return done.stdout.text()


@dataclass(frozen=True, slots=True)
class State:
    """What was put into a sandbox.

    Args:
        word: In a variable and a file of its name.
        ticker: The process in the background.
        size: Of the array, in bytes; 0 is none.
    """

    word: str
    ticker: int
    size: int = 0


async def fill(node: Node, sandbox: Sandbox, word: str = "first", size: int = 0) -> State:
    """Put a variable, a file, an array and a background process into a sandbox."""
    await cell(
        node, sandbox, f"word = {word!r}\nkept = bytearray(range(256)) * ({size} // 256)\nfile = open('/workspace/open', 'w+')\nfile.write(word)"
    )
    await shell(node, sandbox, f"echo {word} > /workspace/word; ln -s word /workspace/link")
    ticker = int((await shell(node, sandbox, TICKING)).split()[0])
    return State(word, ticker, size)


async def check(node: Node, sandbox: Sandbox, state: State, *, memory: bool = True) -> None:
    """All of it is there, and what ran goes on.

    Args:
        node: Node of the service.
        sandbox: Where.
        state: What was put into it, or into what it comes from.
        memory: Whether what was in memory is to be there; otherwise it must not.
    """
    assert (await shell(node, sandbox, "cat /workspace/word /workspace/link")).split() == [state.word, state.word]
    if not memory:
        assert await cell(node, sandbox, "print('word' in globals())") == "False\n"
        return
    told = json.loads(
        await cell(
            node,
            sandbox,
            "import hashlib, json\nfile.flush(); file.seek(0)\nprint(json.dumps([word, len(kept), hashlib.sha256(kept).hexdigest(), file.read()]))",
        )
    )
    whole = bytearray(range(256)) * (state.size // 256)
    assert told == [state.word, state.size // 256 * 256, hashlib.sha256(whole).hexdigest(), state.word]
    await shell(node, sandbox, f"kill -0 {state.ticker}; {TICKED}")


def saved(folder: Path) -> list[str]:
    """The folders of images that there are."""
    return sorted(each.name for each in (folder / "saved").iterdir()) if (folder / "saved").is_dir() else []


async def gone(folder: Path, *ids: str) -> None:
    """Return once the folders of some images are removed."""
    await until(lambda: not set(ids) & set(saved(folder)))
    await asyncio.sleep(0)


@contextmanager
def killed_at(program: str, deed: str, step: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A state directory whose service was killed at that step, and what it had said.

    Args:
        program: The module of ``tests.support`` that is the service.
        deed: What it does.
        step: Where it kills itself.
    """
    with place() as folder:
        command = [sys.executable, "-m", f"tests.support.{program}", str(folder), deed, step]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as service:
            assert service.stdout is not None
            told: dict[str, Any] = {}
            for line in service.stdout:
                if line.startswith("{"):
                    told |= json.loads(line)
        assert service.returncode == -9, told
        yield folder, told


def soaks(*steps: str) -> list[Any]:
    """Steps that only ``scripts/soak`` kills a service at."""
    return [pytest.param(step, marks=pytest.mark.soak) for step in steps]
