"""A real service on TCP with keys, as a process of its own: what a vendor's client talks to."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.localservice import LocalService
from tests.support.preloaded import start_interpreter, start_service
from tests.support.sweeping import sweep
from tests.support.traces import NOTHING, settle


class TcpService(LocalService):
    """One service process on a port of its own.

    Args:
        data_dir: Its state directory; an earlier service's can be taken over.
        env: Settings and anything else for its environment.
        program: The module that is the service. One of ``tests.support`` gets an interpreter of its own.
    """

    def __init__(self, data_dir: Path, env: Mapping[str, str] | None = None, program: str = "sandlot.server") -> None:
        super().__init__(data_dir, program=program)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.environ = {**os.environ, **(env or {}), "SANDLOT_DATA_DIR": str(data_dir)}
        for name in ("SANDLOT_URL", "SANDLOT_API_KEY"):
            self.environ.pop(name, None)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def launch(self) -> None:
        """Start it."""
        argv = ["--host", "127.0.0.1", "--port", str(self.port)]
        start = start_service if self._program == "sandlot.server" else start_interpreter
        self._process = start(self._program, argv, self.environ, self.data_dir / "service.log")

    def key(self, name: str, *options: str) -> str:
        """Create an API key.

        Args:
            name: Its name.
            options: Options of ``sandlot key create``; without any, no process is started.

        Returns:
            Its secret.
        """
        if not options:
            return self.client.keys.create(name).key
        made = subprocess.run(
            [sys.executable, "-m", "sandlot.cli", "key", "create", name, *options],
            env=self.environ,
            check=True,
            capture_output=True,
            text=True,
        )
        return made.stdout.splitlines()[-1]


@contextmanager
def tcp_service(env: Mapping[str, str] | None = None, *, isolation: str = "gvisor", program: str = "sandlot.server") -> Iterator[TcpService]:
    """Run a service for some tests. Afterwards it must have ended well and left nothing on the host.

    Args:
        env: Settings and anything else for its environment.
        isolation: The only isolation that its sandboxes have.
        program: As for :class:`TcpService`.
    """
    own = {"SANDLOT_ISOLATION_DEFAULT": isolation, "SANDLOT_ISOLATION_ALLOWED": isolation}
    if program != "sandlot.server":
        own["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
    # Not pytest's folder, whose path may be too long for a unix socket (unix(7): 107 bytes).
    folder = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    service = TcpService(folder, {**own, **(env or {})}, program)
    try:
        service.start()
        yield service
        assert service.is_alive(), service.log()
        for left in service.client.sandboxes.list():
            service.client.sandboxes.kill(left.id)
        settle(service.traces, NOTHING)
        assert service.end() == 0, service.log()
        settle(service.traces, NOTHING)
    finally:
        service.end(signal.SIGKILL)
        sweep(folder)
        shutil.rmtree(folder, ignore_errors=True)
