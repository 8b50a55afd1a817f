"""The local service of a data directory: found, or started by the first client that needs it.

Invariants:
- The service is running once its socket accepts a connection. The socket file of a killed service accepts none.
- Any number of clients may start the service at the same time. They take turns at ``start.lock``, so that one starts it and the others find it. The
  service's own lock decides: a service that finds the data directory in use exits with :data:`LOCK_HELD`, and its client waits for the other service.
- The service outlives the client that started it: it has a session of its own, no terminal, and writes to ``service.log``.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sandlot.model.errors import ErrorCode, HostError, SandlotError, UnavailableError, UnsupportedError
from sandlot.sdk.config import DATA_DIR, SOCKET

START_TIMEOUT_S = 60.0
"""A service starts in well under 5 s. On a busy machine, cleaning up after a killed service takes longer."""
LOCK_HELD = 3
"""Exit status of a service that finds its data directory in use."""
LOG_ROTATE_BYTES = 1024 * 1024
LOG_TAIL_LINES = 20
START_LOCK = "start.lock"
_LOG = "service.log"
_SANDBOXES = "sandboxes"
"""Directory with one entry per sandbox."""
_POLL_S = 0.02
_URL_HINT = "Set SANDLOT_URL and SANDLOT_API_KEY of a service on another machine."


class LocalService:
    """The service of a data directory on this machine.

    Args:
        data_dir: Data directory; by default ``SANDLOT_DATA_DIR`` or ``/var/lib/sandlot``.
    """

    def __init__(self, data_dir: str | Path | None = None) -> None:
        self.data_dir = Path(data_dir or os.environ.get("SANDLOT_DATA_DIR") or DATA_DIR).absolute()

    @property
    def socket(self) -> Path:
        """Unix socket of the service."""
        return self.data_dir / SOCKET

    @property
    def log_file(self) -> Path:
        """File that the service writes its log to."""
        return self.data_dir / _LOG

    def is_running(self) -> bool:
        """Return True if the service accepts connections.

        Raises:
            HostError: The socket belongs to another user, or its path is too long.
        """
        return is_listening(self.socket)

    def has_sandboxes(self) -> bool:
        """Return True if the data directory has live sandboxes, which a service would take over. Nothing is started."""
        try:
            with os.scandir(self.data_dir / _SANDBOXES) as entries:
                return any(True for _ in entries)
        except OSError:  # there never was a service, or the directory belongs to another user
            return False

    def ensure(self, *, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start the service if it is not running, and return when it accepts connections. Blocks the calling thread.

        Args:
            timeout_s: Seconds that a start may take.

        Raises:
            HostError: This user cannot start a service, the service is not installed, or the data directory cannot be used.
            UnsupportedError: This machine does not run Linux.
            UnavailableError: The service did not start; the message ends with its log.
        """
        try:
            if self.is_running():
                return
            _check_host()
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not any(self.data_dir.iterdir()):
                self.data_dir.chmod(0o700)  # an empty directory is taken over with whatever mode it has
            deadline = time.monotonic() + timeout_s
            with self._start_lock(deadline):
                self._start(deadline)
        except PermissionError as error:
            raise _other_user(self.data_dir) from error
        except OSError as error:
            raise HostError(
                f"Cannot use the data directory {self.data_dir}: {error.strerror or error}.",
                code=ErrorCode.HOST_NOT_READY,
                hint="Set SANDLOT_DATA_DIR to another directory.",
            ) from error

    @contextmanager
    def _start_lock(self, deadline: float) -> Iterator[None]:
        """Wait until no other client is starting the service. The kernel releases the lock of a client that dies."""
        import fcntl  # noqa: PLC0415 - Windows has none, and no local service

        descriptor = os.open(self.data_dir / START_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if self.is_running():
                        break
                    if time.monotonic() > deadline:
                        raise self._not_started("another client has been starting it for too long", 0) from None
                    time.sleep(_POLL_S)
            yield
        finally:
            os.close(descriptor)

    def _start(self, deadline: float) -> None:
        process: subprocess.Popen[bytes] | None = None
        log_from = 0
        while not self.is_running():
            if time.monotonic() > deadline:
                raise self._not_started("it does not accept connections", log_from)
            if process is None:
                process, log_from = self._spawn()
            status = process.poll()
            if status is not None and status != LOCK_HELD:
                raise self._not_started(f"it exited with status {status}", log_from)
            if status == LOCK_HELD:
                process = None  # another service is stopping or starting
                time.sleep(10 * _POLL_S)
            time.sleep(_POLL_S)
        if process is not None:
            # A parent has to collect the status of a service that ends before it.
            threading.Thread(target=process.wait, name="sandlot-service-reaper", daemon=True).start()

    def _spawn(self) -> tuple[subprocess.Popen[bytes], int]:
        if self.log_file.exists() and self.log_file.stat().st_size > LOG_ROTATE_BYTES:
            self.log_file.replace(self.log_file.with_suffix(".log.1"))
        descriptor = os.open(self.log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            log_from = os.fstat(descriptor).st_size
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "sandlot.server", "--local"],
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                cwd="/",
                env=self._environment(),
                start_new_session=True,
            )
            return process, log_from
        finally:
            os.close(descriptor)

    def _environment(self) -> dict[str, str]:
        """Return the environment of this process, with paths that do not depend on its working directory."""
        cache = os.environ.get("SANDLOT_CACHE_DIR")
        paths = {"SANDLOT_DATA_DIR": os.fspath(self.data_dir), **({"SANDLOT_CACHE_DIR": os.path.abspath(cache)} if cache else {})}  # noqa: PTH100 - text
        return {**os.environ, **paths}

    def _not_started(self, why: str, log_from: int) -> SandlotError:
        try:
            with self.log_file.open("rb") as file:
                file.seek(log_from)
                tail = file.read()[-64 * 1024 :].decode("utf-8", "replace").splitlines()[-LOG_TAIL_LINES:]
        except OSError:
            tail = []
        lines = "".join(f"\n    {line}" for line in tail)
        return UnavailableError(
            f"The local service did not start: {why}." + (f" End of its log:{lines}\n" if lines else ""),
            code=ErrorCode.SERVICE_UNAVAILABLE,
            hint=f"See {self.log_file}, and run `sandlot doctor` to check this machine.",
        )


def is_listening(path: Path) -> bool:
    """Return True if a service accepts connections on a unix socket.

    Raises:
        HostError: The socket belongs to another user, or its path is too long.
        UnsupportedError: This machine has no unix sockets.
    """
    if not hasattr(socket, "AF_UNIX"):
        raise UnsupportedError("Python has no unix sockets on this system.", hint=_URL_HINT)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(5)
        try:
            probe.connect(os.fspath(path))
        except (FileNotFoundError, ConnectionError, NotADirectoryError):
            return False
        except TimeoutError:
            return True  # the backlog is full, so something listens
        except PermissionError as error:
            raise _other_user(path.parent) from error
        except OSError as error:
            raise HostError(
                f"Cannot use the service's socket {path}: {error.strerror or error}.",
                code=ErrorCode.HOST_NOT_READY,
                hint="Set SANDLOT_DATA_DIR to a directory whose path has at most 90 characters.",
            ) from error
    return True


def _check_host() -> None:
    if sys.platform != "linux":
        raise UnsupportedError("No Sandlot service is configured, and a local one runs on Linux only.", hint=_URL_HINT)
    if importlib.util.find_spec("uvicorn") is None:
        raise HostError(
            "No Sandlot service is configured, and this Python environment has the client only.",
            code=ErrorCode.HOST_NOT_READY,
            hint="Set SANDLOT_URL and SANDLOT_API_KEY of a service, or run `pip install 'sandlot[server]'` for a local one.",
        )
    if os.geteuid() != 0:
        raise HostError(
            "No Sandlot service is configured, and only root can start one: sandboxes need cgroups, mounts and namespaces of this machine.",
            code=ErrorCode.HOST_NOT_READY,
            hint="Run this as root (sudo), or set SANDLOT_URL and SANDLOT_API_KEY of a service (`sudo sandlot serve`, `sudo sandlot key create`).",
        )


def _other_user(directory: Path) -> SandlotError:
    return HostError(
        f"The local service of {directory} belongs to another user.",
        code=ErrorCode.HOST_NOT_READY,
        hint="Run this as that user (root for the system's service), or set SANDLOT_URL and SANDLOT_API_KEY of a service on TCP.",
    )
