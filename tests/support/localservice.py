"""A real service on a state directory of its own, as a process of its own, and the SDK against it.

The image cache is the machine's (``SANDLOT_CACHE_DIR``): an image that is there is used, one that is not is built, once.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sandlot import Sandbox
from sandlot.sdk import Client
from sandlot.sdk.config import SOCKET
from sandlot.sdk.local_service import is_listening
from sandlot.server.preview.listener import PORT_FILE
from tests.support.preloaded import PreloadedProcess, start_interpreter, start_service
from tests.support.sweeping import sweep
from tests.support.traces import NOTHING, Traces, descriptors, settle, traces

TEMPLATE = "base"
"""What tests start from unless they need more: Debian with python3, and its plain kernel."""
ISOLATIONS = ("gvisor", "container")
"""What the promises of tests/security are held by, each of them by each."""
EVERY_DAY = ("gvisor", pytest.param("container", marks=pytest.mark.soak))
"""For what is the guest's own doing, whatever isolates it: the default in every run, the other one in ``scripts/soak``."""
EACH_ISOLATION = ("gvisor", pytest.param("container", marks=pytest.mark.slow))
"""Parameters of a test that runs on both: gVisor in every run, containers in ``scripts/test --all``."""
ON_GVISOR = pytest.mark.parametrize("service", ["gvisor"], indirect=True)
"""For a test whose behaviour does not depend on the isolation, in a module whose service has each of them in turn."""
START_PATIENCE_S = 150.0


def besides_root_images(opened: Counter[str]) -> Counter[str]:
    """Descriptors besides those of root images of users' templates, which a service holds so that no other service evicts them."""
    return Counter({name: number for name, number in opened.items() if "/erofs/" not in name})


class LocalService:
    """One service process, started and ended by the test.

    Args:
        data_dir: Its state directory; an earlier service's can be taken over.
        env: Settings and anything else for its environment.
        isolation: What its sandboxes are unless a test says otherwise; by default whatever the service's own default is.
        program: The module that is the service.
        preloaded: Fork the service from the preloader (``preloaded.py``). Otherwise it gets an interpreter of its own.
    """

    def __init__(
        self,
        data_dir: Path,
        env: Mapping[str, str] | None = None,
        *,
        isolation: str | None = None,
        program: str = "sandlot.server",
        preloaded: bool = True,
    ) -> None:
        self.data_dir = data_dir
        self.isolation = isolation
        self.secret = f"sandlot-test-secret-{secrets.token_hex(16)}"
        """Stands in the service's environment, so that tests can look for it elsewhere."""
        self._env = dict(env or {})
        self._program = program
        self._preloaded = preloaded
        self._process: PreloadedProcess | subprocess.Popen[bytes] | None = None
        self.client = Client(data_dir=data_dir, autostart=False)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def launch(self) -> None:
        """Start it."""
        env = {**os.environ, **self._env, "SANDLOT_DATA_DIR": str(self.data_dir), "SANDLOT_TEST_SECRET": self.secret}
        for name in ("SANDLOT_URL", "SANDLOT_API_KEY"):
            env.pop(name, None)
        log = self.data_dir / "service.log"
        start = start_service if self._preloaded else start_interpreter
        self._process = start(self._program, ["--local"], env, log)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.launch()
        assert self._process is not None
        deadline = time.monotonic() + START_PATIENCE_S
        while not is_listening(self.data_dir / SOCKET):
            assert self._process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.02)
        self.client.service.version()

    def create(self, template: str = TEMPLATE, **options: Any) -> Sandbox:  # noqa: ANN401 - whatever Sandbox.create takes
        """A sandbox of this service, of its isolation unless told otherwise."""
        if self.isolation is not None:
            options.setdefault("isolation", self.isolation)
        return Sandbox.create(template, client=self.client, **options)

    def refs(self) -> frozenset[str]:
        """What the sandboxes that there are now are called on the host."""
        return frozenset(path.name for path in (self.data_dir / "sandboxes").glob("*"))

    def traces(self, keep: frozenset[str] = frozenset()) -> Traces:
        """What its sandboxes have on the host now, but for those of these refs."""
        return traces(self.data_dir, besides=frozenset({self.pid}), keep=keep)

    def descriptors(self) -> Counter[str]:
        """What the service holds open while no client is connected."""
        self.client.close()
        found: Counter[str] | None = None
        while found != (found := descriptors(self.pid)):
            time.sleep(0.1)
        return found

    def preview_listener(self) -> Counter[str]:
        """The listener of previews, which a local service opens on demand and keeps open."""
        return Counter({"socket:[N]": 1} if (self.data_dir / PORT_FILE).exists() else {})

    def log(self) -> str:
        """What it said."""
        return (self.data_dir / "service.log").read_text(encoding="utf-8", errors="replace")[-4000:]

    def records(self) -> Iterator[dict[str, Any]]:
        """Its log, line by line."""
        for line in (self.data_dir / "service.log").read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue

    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send it a signal and wait until it has ended; its exit status."""
        self.client.close()
        if self._process is None:
            return 0
        if self._process.poll() is None:
            self._process.send_signal(number)
        return self._process.wait(timeout=150)


@contextmanager
def local_service(
    env: Mapping[str, str] | None = None,
    *,
    isolation: str | None = None,
    roots: Path | None = None,
    program: str = "sandlot.server",
    preloaded: bool = True,
) -> Iterator[LocalService]:
    """A service for some tests; afterwards it must have ended well and left nothing on the host.

    Args:
        env: Settings and anything else for its environment.
        isolation: What its sandboxes are unless a test says otherwise; the service then allows every one of :data:`ISOLATIONS`.
        roots: A folder whose folders are its templates (``served.py``), in place of the image store's.
        program: As for :class:`LocalService`; one of ``tests.support`` is found.
        preloaded: As for :class:`LocalService`.
    """
    allowed = {} if isolation is None else {"SANDLOT_ISOLATION_ALLOWED": ",".join(ISOLATIONS)}
    # Not pytest's folder, whose path may be too long for a unix socket (unix(7): 107 bytes).
    folder = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
    if roots is not None and program == "sandlot.server":
        program = "tests.support.served"
    own = {} if program == "sandlot.server" else {"PYTHONPATH": path}
    if roots is not None:
        own["SANDLOT_TEST_ROOTS"] = str(roots)
    service = LocalService(folder, {**allowed, **own, **(env or {})}, isolation=isolation, program=program, preloaded=preloaded)
    try:
        service.start()
        opened = service.descriptors()
        yield service
        assert service.is_alive(), service.log()
        for left in service.client.sandboxes.list():
            service.client.sandboxes.kill(left.id)
        settle(service.traces, NOTHING)
        settle(lambda: besides_root_images(service.descriptors() - opened - service.preview_listener()), Counter[str]())  # no more than at its start
        assert service.end() == 0, service.log()
        settle(service.traces, NOTHING)
    finally:
        service.end(signal.SIGKILL)
        sweep(folder)
        shutil.rmtree(folder, ignore_errors=True)
