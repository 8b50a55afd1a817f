"""The local service: found, or started, by whoever needs it first.

Laws:
- Ready means that the socket accepts a connection; a socket file that a killed service left behind does not.
- Any number of clients may come at once: one starts the service, under a lock of the clients' own (``start.lock``), and the others find it there. The
  service's own lock has the last word: one that finds it taken leaves with :data:`LOCK_HELD`, and its starter goes on waiting.
- The service outlives its starter: own session, no terminal, output to ``service.log``.
"""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sandlot.model.errors import ErrorCode, HostError, SandlotError, UnavailableError
from sandlot.sdk.config import SOCKET

START_TIMEOUT_S = 60.0
"""It is up in well under 5 s; a busy machine that sweeps what a killed service left behind may take longer."""
LOCK_HELD = 3
"""Exit status of a service that finds another one on its state directory."""
LOG = "service.log"
LOG_ROTATE_BYTES = 1024 * 1024
LOG_TAIL_LINES = 20
SANDBOXES = "sandboxes"
"""Folder of what is on the host for each of them."""
START_LOCK = "start.lock"
_POLL_S = 0.02


def answers(path: Path) -> bool:
    """Whether a service accepts connections on this socket.

    Raises:
        HostError: The socket is another user's, or its path is too long for one.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(5)
        try:
            probe.connect(os.fspath(path))
        except (FileNotFoundError, ConnectionError, NotADirectoryError):
            return False
        except TimeoutError:
            return True  # a full backlog: somebody is there
        except PermissionError as error:
            raise _not_ours(path.parent) from error
        except OSError as error:
            raise HostError(
                f"The service's socket {path} cannot be used: {error.strerror or error}.",
                code=ErrorCode.HOST_NOT_READY,
                hint="Choose another folder by SANDLOT_DATA_DIR; its path may have at most 90 characters.",
            ) from error
    return True


def keeps_sandboxes(folder: Path) -> bool:
    """Whether sandboxes of this state directory may live although no service runs. Neither blocks nor starts anything.

    Args:
        folder: The state directory.
    """
    try:
        with os.scandir(folder / SANDBOXES) as found:
            return any(True for _ in found)
    except OSError:  # none was ever there, or it is another user's
        return False


def ensure(folder: Path, *, timeout_s: float = START_TIMEOUT_S) -> None:
    """Return once the local service of this state directory accepts connections; start it where it does not run.

    Blocks; call it off the event loop.

    Args:
        folder: The state directory, absolute.
        timeout_s: How long a start may take.

    Raises:
        HostError: This user cannot start one, or the folder cannot be used.
        UnavailableError: It did not come up; the message ends with its log.
    """
    try:
        if answers(folder / SOCKET):
            return
        _may_start()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not any(folder.iterdir()):
            # An empty one that somebody made for this: the service takes it over, but it must not find files of ours in it.
            folder.chmod(0o700)
        deadline = time.monotonic() + timeout_s
        with _start_lock(folder, deadline):
            _start(folder, deadline)
    except PermissionError as error:
        raise _not_ours(folder) from error
    except OSError as error:
        raise HostError(
            f"The state directory {folder} cannot be used: {error.strerror or error}.",
            code=ErrorCode.HOST_NOT_READY,
            hint="Choose another one by SANDLOT_DATA_DIR.",
        ) from error


def _may_start() -> None:
    if os.geteuid() != 0:
        raise HostError(
            "No Sandlot service is configured, and only root can start one: sandboxes need cgroups, mounts and namespaces of this machine.",
            code=ErrorCode.HOST_NOT_READY,
            hint="Run this as root (sudo), or set SANDLOT_URL and SANDLOT_API_KEY of a service (`sudo sandlot serve`, `sudo sandlot keys create`).",
        )


def _not_ours(folder: Path) -> SandlotError:
    return HostError(
        f"The local service of {folder} belongs to another user.",
        code=ErrorCode.HOST_NOT_READY,
        hint="Run this as that user (for the system's service: as root), or set SANDLOT_URL and SANDLOT_API_KEY of a service on TCP.",
    )


@contextmanager
def _start_lock(folder: Path, deadline: float) -> Iterator[None]:
    """Among the clients, one starts the service at a time. The kernel drops the lock of a client that dies."""
    descriptor = os.open(folder / START_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if answers(folder / SOCKET):
                    break
                if time.monotonic() > deadline:
                    raise _not_up(folder, "another client has been starting it for too long", 0) from None
                time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)


def _start(folder: Path, deadline: float) -> None:
    path = folder / SOCKET
    process: subprocess.Popen[bytes] | None = None
    log_from = 0
    while not answers(path):
        if time.monotonic() > deadline:
            raise _not_up(folder, "it does not accept connections", log_from)
        if process is None:
            process, log_from = _spawn(folder)
        status = process.poll()
        if status is not None and status != LOCK_HELD:
            raise _not_up(folder, f"it ended with status {status}", log_from)
        if status == LOCK_HELD:
            process = None  # one that is just leaving, or just coming, holds the state directory
            time.sleep(10 * _POLL_S)
        time.sleep(_POLL_S)
    if process is not None:
        # Whoever started it has to collect its status, should it end first.
        threading.Thread(target=process.wait, name="sandlot-service-reaper", daemon=True).start()


def _spawn(folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    log = folder / LOG
    if log.exists() and log.stat().st_size > LOG_ROTATE_BYTES:
        log.replace(log.with_suffix(".log.1"))
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        log_from = os.fstat(descriptor).st_size
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "sandlot.server", "--local"],
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            cwd="/",
            env=_environment(folder),
            start_new_session=True,
        )
        return process, log_from
    finally:
        os.close(descriptor)


def _environment(folder: Path) -> dict[str, str]:
    """The starter's, with paths that do not depend on its working directory."""
    cache = os.environ.get("SANDLOT_CACHE_DIR")
    return {**os.environ, "SANDLOT_DATA_DIR": os.fspath(folder), **({"SANDLOT_CACHE_DIR": os.path.abspath(cache)} if cache else {})}  # noqa: PTH100 - text


def _not_up(folder: Path, why: str, log_from: int) -> SandlotError:
    log = folder / LOG
    try:
        with log.open("rb") as file:
            file.seek(log_from)
            tail = file.read()[-64 * 1024 :].decode("utf-8", "replace").splitlines()[-LOG_TAIL_LINES:]
    except OSError:
        tail = []
    said = "".join(f"\n    {line}" for line in tail)
    return UnavailableError(
        f"The local service did not start: {why}." + (f" Its log says:{said}\n" if said else ""),
        code=ErrorCode.SERVICE_UNAVAILABLE,
        hint=f"See {log}; `sandlot doctor` checks whether this machine can run sandboxes.",
    )
