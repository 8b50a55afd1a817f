"""A state directory on a small ext4 file system, which is filled from outside while sandboxes write and sync files."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from sandlot import Sandbox, SandlotError
from sandlot.sdk.config import SOCKET
from tests.support.http import unix_client
from tests.support.localservice import ISOLATIONS, LocalService
from tests.support.saving import place, unmount_state_dir
from tests.support.sweeping import sweep

MIB = 1 << 20
WRITER = """
import hashlib, os, sys
folder, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for number in range(first, first + count):
    content = os.urandom(1 << 20)
    with open(f"{folder}/{number}", "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    print(number, hashlib.sha256(content).hexdigest(), flush=True)
"""
READER = """
import hashlib, os, sys
for name in os.listdir(sys.argv[1]):
    with open(f"{sys.argv[1]}/{name}", "rb") as file:
        print(name, hashlib.sha256(file.read()).hexdigest())
"""


@contextmanager
def small_ext4(folder: Path, size_bytes: int) -> Iterator[None]:
    """An empty ext4 file system of this size as a state directory."""
    with tempfile.NamedTemporaryFile(dir=folder.parent, prefix="sandlot-small-") as image:
        image.truncate(size_bytes)
        subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", image.name], check=True)
        subprocess.run(["mount", "-o", "loop", image.name, folder], check=True)
        try:
            (folder / "lost+found").rmdir()
            folder.chmod(0o700)
            yield
        finally:
            unmount_state_dir(folder)


@contextmanager
def filled(folder: Path) -> Iterator[Path]:
    """Keep the file system of a folder full: whatever becomes free is taken at once. The file with the taken space is removed at the end."""
    file, is_full, ended = folder / "filled", threading.Event(), threading.Event()

    def fill() -> None:
        with file.open("wb", buffering=0) as taken:
            while not ended.is_set():
                try:
                    taken.write(bytes(MIB))
                except OSError:
                    is_full.set()
                    ended.wait(0.01)

    thread = threading.Thread(target=fill)
    thread.start()
    try:
        assert is_full.wait(120)
        yield file
    finally:
        ended.set()
        thread.join()
        file.unlink(missing_ok=True)


def write(sandbox: Sandbox, count: int, *, first: int = 0, folder: str = "/workspace") -> dict[str, str]:
    """Write files of 1 MiB in a sandbox and sync each of them: name -> digest of each file that was confirmed."""
    done = None
    with suppress(SandlotError):
        done = sandbox.commands.run(["python3", "-c", WRITER, folder, str(first), str(count)], timeout=300)
    return {} if done is None else _digests(done.stdout)


def changed(sandbox: Sandbox, confirmed: dict[str, str], folder: str = "/workspace") -> set[str]:
    """Names of the confirmed files that cannot be read, or have another content than was written. The files are read from the host's disk."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3", encoding="ascii")
    done = sandbox.commands.run(["python3", "-c", READER, folder], timeout=300)
    return {name for name, _ in confirmed.items() - _digests(done.stdout).items()}


def _digests(lines: str) -> dict[str, str]:
    return dict(line.split() for line in lines.splitlines())


async def refusal(service: LocalService, path: str, body: Mapping[str, object]) -> tuple[int, str]:
    """Status and error code of a request that is not repeated."""
    async with unix_client(service.data_dir / SOCKET) as http:
        response = await http.post(path, json=body)
    return response.status_code, response.json()["code"]


@contextmanager
def service_on_small_disk(size_bytes: int, env: Mapping[str, str]) -> Iterator[LocalService]:
    """A service whose data directory is a file system of its own, of this size, with a reserve of 64 MiB and without pools."""
    with place() as folder, small_ext4(folder, size_bytes):
        own = {
            "SANDLOT_DISK_RATIO": "1",
            "SANDLOT_DISK_RESERVE_BYTES": "64M",
            "SANDLOT_POOLS": "none",
            "SANDLOT_ISOLATION_ALLOWED": ",".join(ISOLATIONS),
        }
        service = LocalService(folder, {**own, **env})
        try:
            service.start()
            yield service
            for left in service.client.sandboxes.list():
                service.client.sandboxes.kill(left.id)
            assert service.end() == 0, service.log()
        finally:
            service.end(signal.SIGKILL)
            with ThreadPoolExecutor(1) as elsewhere:  # the sweep has an event loop of its own
                elsewhere.submit(sweep, folder).result()


def write_while_full(service: LocalService, sandboxes: Sequence[Sandbox], count: int) -> list[dict[str, str]]:
    """Write files in all sandboxes at once, half of them before the disk is full and half of them on the full disk; what each confirmed."""
    with ThreadPoolExecutor(len(sandboxes)) as pool:
        before = list(pool.map(lambda sandbox: write(sandbox, count // 2), sandboxes))
        with filled(service.data_dir):
            after = list(pool.map(lambda sandbox: write(sandbox, count // 2, first=count // 2), sandboxes))
    return [{**one, **other} for one, other in zip(before, after, strict=True)]
