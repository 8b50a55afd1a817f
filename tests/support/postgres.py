"""A PostgreSQL cluster of a test module: in a temporary folder, reachable by a unix socket only, removed at the end.

The folder is in memory and the server does not sync (``fsync=off``): tests kill the server's clients, never the machine. What is promised
about syncing is a setting of the operator's, and for SQLite tests/unit/store checks the settings of Sandlot's own connection.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

USER = "postgres"
"""Debian's package creates this user; a server refuses to run as root."""
START_TIMEOUT_S = 150.0
STOP_TIMEOUT_S = 90.0
_IN_MEMORY = Path("/dev/shm")
_SETTINGS = ("listen_addresses=", "fsync=off", "full_page_writes=off", "autovacuum=off", "max_wal_size=64MB")


def programs() -> Path:
    """Return the folder of the newest version's programs. Debian keeps them off PATH, so that several versions can be installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    assert found, "PostgreSQL is not installed: scripts/setup --tools"
    return found[-1].parent


class Cluster:
    """One running cluster.

    Args:
        folder: Its files and its socket.
        process: The server.
    """

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.folder = folder
        self.process = process
        self._made = 0

    def url(self, database: str, user: str = USER) -> str:
        return f"postgresql://{user}@/{database}?host={quote(str(self.folder))}"

    def database(self) -> str:
        """Create an empty database, and return its URL."""
        self._made += 1
        name = f"sandlot_{self._made}"
        self.query(f"CREATE DATABASE {name}")
        return self.url(name)

    def restart(self) -> None:
        """Stop the server, whoever is connected, and start it again."""
        _stop(self.process, signal.SIGINT)
        self.process = _started(self.folder)

    def query(self, statement: str, database: str = "postgres") -> str:
        where = ["-h", str(self.folder), "-U", USER, "-d", database]
        command = [str(programs() / "psql"), "-XqAt", "-v", "ON_ERROR_STOP=1", *where, "-c", statement]
        done: subprocess.CompletedProcess[str] = subprocess.run(command, check=True, capture_output=True, text=True)
        return done.stdout


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """Run a new cluster."""
    folder = Path(tempfile.mkdtemp(prefix="sandlot-postgres-", dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None))
    try:
        shutil.chown(folder, USER, USER)
        subprocess.run(
            [str(programs() / "initdb"), "-D", str(folder / "data"), "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"],
            user=USER,
            group=USER,
            extra_groups=[],
            cwd="/",
            check=True,
            stdout=subprocess.DEVNULL,
        )
        running = Cluster(folder, _started(folder))
        try:
            yield running
        finally:
            _stop(running.process, signal.SIGQUIT)  # without a checkpoint: the folder is removed
    finally:
        shutil.rmtree(folder)


def _started(folder: Path) -> subprocess.Popen[bytes]:
    command = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--pdeathsig=INT"]
    command += [str(programs() / "postgres"), "-D", str(folder / "data"), "-k", str(folder)]
    command += [word for setting in _SETTINGS for word in ("-c", setting)]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(command, cwd="/", stdout=log, stderr=log)
    ends = time.monotonic() + START_TIMEOUT_S
    while subprocess.run([programs() / "pg_isready", "-q", "-h", folder], check=False).returncode != 0:
        if process.poll() is not None or time.monotonic() > ends:
            _stop(process, signal.SIGQUIT)
            raise AssertionError((folder / "log").read_text())
        time.sleep(0.05)
    return process


def _stop(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    """Stop a server: SIGINT disconnects its clients and keeps what is committed; SIGQUIT leaves at once."""
    process.send_signal(how)
    process.wait(STOP_TIMEOUT_S)
