"""A PostgreSQL of one's own: a cluster in a temporary folder, on a unix socket only, gone with the test run."""

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
"""Debian's package makes it; a server refuses to run as root."""
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0


def programs() -> Path:
    """Where the newest version's are: Debian puts them beside PATH, so that many versions can be installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    assert found, "PostgreSQL is not installed: scripts/setup --tools"
    return found[-1].parent


class Cluster:
    """One that runs.

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
        """The URL of a new, empty database."""
        self._made += 1
        name = f"sandlot_{self._made}"
        self.query(f"CREATE DATABASE {name}")
        return self.url(name)

    def restart(self) -> None:
        """Stop it, whoever is connected, and start it again."""
        ended(self.process)
        self.process = started(self.folder)

    def query(self, statement: str, database: str = "postgres") -> str:
        where = ["-h", str(self.folder), "-U", USER, "-d", database]
        command = [str(programs() / "psql"), "-XqAt", "-v", "ON_ERROR_STOP=1", *where, "-c", statement]
        done: subprocess.CompletedProcess[str] = subprocess.run(command, check=True, capture_output=True, text=True)
        return done.stdout


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """Make a cluster, and run it while the body does."""
    folder = Path(tempfile.mkdtemp(prefix="sandlot-postgres-"))
    try:
        shutil.chown(folder, USER, USER)
        # A server that is killed with the test run's machine may lose what it has: the tests kill its clients, not it.
        subprocess.run(
            [str(programs() / "initdb"), "-D", str(folder / "data"), "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"],
            user=USER,
            group=USER,
            extra_groups=[],
            cwd="/",
            check=True,
            stdout=subprocess.DEVNULL,
        )
        made = Cluster(folder, started(folder))
        try:
            yield made
        finally:
            ended(made.process)
    finally:
        shutil.rmtree(folder)


def started(folder: Path) -> subprocess.Popen[bytes]:
    """Run a cluster that was made."""
    command = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--pdeathsig=INT"]
    command += [str(programs() / "postgres"), "-D", str(folder / "data"), "-k", str(folder), "-c", "listen_addresses=", "-c", "fsync=off"]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(command, cwd="/", stdout=log, stderr=log)
    ends = time.monotonic() + START_TIMEOUT_S
    while subprocess.run([programs() / "pg_isready", "-q", "-h", folder], check=False).returncode != 0:
        if process.poll() is not None or time.monotonic() > ends:
            ended(process)
            raise AssertionError((folder / "log").read_text())
        time.sleep(0.05)
    return process


def ended(process: subprocess.Popen[bytes]) -> None:
    """End it in the way that it calls fast: clients are cut off, and what is committed stays."""
    process.send_signal(signal.SIGINT)
    process.wait(STOP_TIMEOUT_S)
