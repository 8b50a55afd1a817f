"""Native operations on the machine of ``sandlot bench``, with which the operations of sandboxes are compared.

Invariant: no part of Sandlot is used, and nothing outlives the run: processes are ended, and files are in a temporary directory.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Self

import httpx

PRINT = "print(1)"
DISK = "/var/tmp"  # noqa: S108 - the temporary directory on a disk (file-hierarchy(7)); mkdtemp(3) makes the name
PIECE = bytes(range(256)) * 4096
"""Chunk of written files, 1 MiB."""
START_TIMEOUT_S = 30.0
IDLE = "import sys; print(flush=True); sys.stdin.read()"
"""Python program that is idle until its standard input ends."""


class NativeBaselines:
    """A bare HTTP server and its client, an idle process, and a temporary directory. An async context manager.

    Args:
        unix: Let the server listen on a unix socket, as a local service does, instead of the loopback interface.
    """

    def __init__(self, *, unix: bool) -> None:
        self._unix = unix
        self._folder = Path()
        self._python = os.path.realpath(sys.executable)  # the program in PATH may be a script that chooses an interpreter
        self._server: subprocess.Popen[bytes] | None = None
        self._idle: subprocess.Popen[bytes] | None = None
        self._http = httpx.AsyncClient()
        self.node = shutil.which("node")
        """Path of Node.js; None if it is not installed."""
        self.uv = shutil.which("uv", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))))
        """Path of uv; None if it is not installed."""

    async def __aenter__(self) -> Self:
        # A unix socket's path has at most 107 bytes (unix(7)).
        self._folder = _folder()
        with socket.socket(socket.AF_UNIX if self._unix else socket.AF_INET) as listening:
            listening.bind(str(self._folder / "sock") if self._unix else ("127.0.0.1", 0))
            listening.listen()
            argv = (sys.executable, "-P", "-m", f"{__package__}.bare_http", str(listening.fileno()), str(self._folder / "files"))
            self._server = subprocess.Popen(argv, stdin=subprocess.DEVNULL, pass_fds=(listening.fileno(),))  # noqa: ASYNC220 - takes milliseconds
            transport = httpx.AsyncHTTPTransport(uds=str(self._folder / "sock")) if self._unix else httpx.AsyncHTTPTransport()
            base_url = "http://bare" if self._unix else f"http://127.0.0.1:{listening.getsockname()[1]}"
        await self._http.aclose()
        self._http = httpx.AsyncClient(transport=transport, base_url=base_url, timeout=START_TIMEOUT_S)
        self._idle = subprocess.Popen((self._python, "-c", IDLE), stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: ASYNC220 - the same
        try:
            await asyncio.to_thread(lambda: self._idle and self._idle.stdout and self._idle.stdout.readline())
            await self.http()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()
        for process in (self._server, self._idle):
            if process is not None:
                process.kill()
                process.wait()
                for pipe in (process.stdin, process.stdout):
                    if pipe is not None:
                        pipe.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def http(self) -> None:
        """Send a request to a handler of a few lines."""
        (await self._http.get("/")).raise_for_status()

    async def execute(self) -> None:
        """Send a request to a handler that runs its code."""
        response = await self._http.post("/run", content=PRINT)
        if response.json() != {"stdout": "1\n"}:
            raise RuntimeError(f"The bare server responded {response.status_code}: {response.text}")

    async def stop_and_go(self) -> None:
        """Stop and continue a process, and send it a request."""
        if self._server is not None:
            self._server.send_signal(signal.SIGSTOP)
            self._server.send_signal(signal.SIGCONT)
        await self.execute()

    async def spawn(self, *argv: str) -> None:
        """Run a program."""
        await asyncio.to_thread(subprocess.run, argv, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    async def python(self) -> None:
        """Run a Python program that prints."""
        await self.spawn(self._python, "-c", PRINT)

    async def shell(self) -> None:
        """Run a shell that does nothing."""
        await self.spawn("sh", "-c", "true")

    async def upload(self, content: AsyncIterator[bytes], size_bytes: int) -> None:
        """Upload a file."""
        (await self._http.put("/moved", content=content, headers={"Content-Length": str(size_bytes)})).raise_for_status()

    async def download(self) -> int:
        """Download the file, and return its size in bytes."""
        taken = 0
        async with self._http.stream("GET", "/moved") as response:
            async for piece in response.aiter_raw():
                taken += len(piece)
        return taken

    async def write(self, size_bytes: int, *, synced: bool) -> None:
        """Write a file; with ``synced``, flush it to the disk."""
        await asyncio.to_thread(_write, self._folder / "image", size_bytes, synced=synced)

    async def read(self, size_bytes: int, times: int = 1) -> None:
        """Read a file of a size, which is written first if it does not exist."""
        path = self._folder / "image"
        if not path.exists() or path.stat().st_size != size_bytes:
            await self.write(size_bytes, synced=False)
        await asyncio.to_thread(_read, path, times)

    async def install(self, package: str) -> float | None:
        """Install a package with uv from the machine's index, and return the seconds; None without uv, or if the installation fails."""
        if self.uv is None:
            return None
        home = self._folder / "venv"
        await asyncio.to_thread(venv.create, home, clear=True)
        env = {**os.environ, "VIRTUAL_ENV": str(home), **_index()}
        argv = (self.uv, "pip", "install", "--no-cache", "--no-config", package)
        began_s = time.perf_counter()
        done = await asyncio.to_thread(subprocess.run, argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        return time.perf_counter() - began_s if done.returncode == 0 else None

    def idle_bytes(self) -> int:
        """Return the proportional memory of an idle Python (proc_pid_smaps_rollup(5): Pss); 0 if the kernel does not report it."""
        try:
            lines = self._proc("smaps_rollup").splitlines()
        except OSError:
            return 0
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))

    def idle_cpu_s(self) -> float:
        """Return the CPU time of the idle Python (proc_pid_stat(5): utime and stime)."""
        utime, stime = self._proc("stat").rpartition(")")[2].split()[11:13]
        return (int(utime) + int(stime)) / os.sysconf("SC_CLK_TCK")

    def _proc(self, name: str) -> str:
        return Path(f"/proc/{self._idle.pid if self._idle else 'self'}/{name}").read_text(encoding="ascii", errors="replace")


def _folder() -> Path:
    made = Path(tempfile.mkdtemp(prefix="sandlot-bench-", dir=DISK if Path(DISK).is_dir() else None))
    (made / "files").mkdir()
    return made


def _write(path: Path, size_bytes: int, *, synced: bool) -> None:
    with path.open("wb", buffering=0) as file:
        left = size_bytes
        while left > 0:
            left -= file.write(PIECE[:left])
        if synced:
            os.fsync(file.fileno())


def _read(path: Path, times: int) -> None:
    into = bytearray(len(PIECE))
    for _ in range(times):
        with path.open("rb", buffering=0) as file:
            while file.readinto(into):
                pass


def _index() -> dict[str, str]:
    """Return pip's configured index for uv, which does not read pip's configuration."""
    if os.environ.keys() & {"UV_DEFAULT_INDEX", "UV_INDEX_URL"}:
        return {}
    url = _output((sys.executable, "-m", "pip", "config", "get", "global.index-url"))
    return {"UV_DEFAULT_INDEX": url} if url else {}


def _output(argv: Sequence[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    return done.stdout.strip() if done.returncode == 0 else ""
