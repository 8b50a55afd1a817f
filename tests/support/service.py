"""A whole service in the test's own process: the real core and link, on the in-memory driver with its scripted guest."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import httpx
import pytest

from sandlot.core.lifecycle.idle import TICK_S
from sandlot.core.node import Node
from sandlot.core.ports import Clock, PackageIndex
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR
from sandlot.model.ports import DriverCapability, HostReading, Resources
from sandlot.model.sandboxes import CreateSandboxParams, LimitsChange
from sandlot.model.states import State
from sandlot.server.composition import RunningService, open_service
from sandlot.server.process import serve_in_background
from sandlot.server.settings import Settings
from sandlot.testing.memory.driver import MemoryDriver
from sandlot.testing.memory.store import MemoryBlobs, MemoryDatabase, MemoryStore
from sandlot.web import listener
from tests.support import marks
from tests.support.bare import BareDriver
from tests.support.cache import CACHE_DIR
from tests.support.clock import ManualClock
from tests.support.http import NO_TLS, unix_client
from tests.support.node import MemoryTemplates, NoPackages, SandboxesFacade

BASE = CreateSandboxParams(template="base", limits=LimitsChange(pids=32768))
"""What tests create unless they are about something else: the smaller of the built-in images.

The guest's limit of processes counts those of its users (RLIMIT_NPROC), and without isolation those of the whole machine.
"""

_ENDLESS = Resources(memory_bytes=1 << 60, disk_bytes=1 << 60, pids=1 << 40)
BOUNDLESS = HostReading(total=_ENDLESS, free=_ENDLESS, sandbox_disk_bytes=0)
"""A host that is never full: without isolation sandboxes take next to nothing, whatever they were promised."""


PLAIN_CAPABILITIES = frozenset(DriverCapability) - {
    DriverCapability.SNAPSHOT,
    DriverCapability.CONFIGURE_DISK,
    DriverCapability.CONFIGURE_VOLUMES,
    DriverCapability.SHOW_LIMITS,
}
"""Without snapshots and what else not every driver has, so that tests see it refused; ``tests/support/node.py`` has all of it."""
_DATABASES: WeakKeyDictionary[Any, MemoryDatabase] = WeakKeyDictionary()
"""Driver -> rows of its services."""


@dataclass
class Bench:
    """A service and the driver below it: a ``MemoryDriver``, or a ``BareDriver`` where the test is marked ``real_guest``."""

    service: RunningService
    driver: Any

    @property
    def node(self) -> Node:
        return self.service.node

    @property
    def sandboxes(self) -> SandboxesFacade:
        return SandboxesFacade(self.service)

    async def sandbox(self) -> Sandbox:
        return await self.service.internals.manager.create(OPERATOR, BASE)

    async def pass_idly(self, clock: ManualClock, seconds: float) -> None:
        """Let time pass in which the sandboxes do nothing, and the idle monitor looks at every one of its moments."""
        await clock.pass_s(seconds, TICK_S)


@asynccontextmanager
async def bench(
    folder: Path,
    settings: Settings | None = None,
    clock: Clock | None = None,
    read_host: Callable[[], HostReading] = lambda: BOUNDLESS,
    *,
    packages: PackageIndex | None = None,
) -> AsyncIterator[Bench]:
    """Run a service in a folder of its own; in the end nothing may be left of its sandboxes.

    In a test marked ``real_guest`` sandboxes are real guests without isolation, for programs that the scripted guest does not have.

    Args:
        folder: Where its data is.
        settings: Its settings.
        clock: Its clock; None is the machine's.
        read_host: Reads the host's resources.
        packages: Package indexes; None is none.
    """
    driver: MemoryDriver | BareDriver = MemoryDriver(capabilities=PLAIN_CAPABILITIES)
    if marks.real_guest:
        (folder / "driver").mkdir(parents=True)
        driver = BareDriver(folder / "driver")
    async with serving(folder, driver, settings, clock, read_host, packages=packages) as service:
        yield Bench(service, driver)
    assert driver.leftovers() == []


@asynccontextmanager
async def serving(
    folder: Path,
    driver: MemoryDriver | BareDriver,
    settings: Settings | None = None,
    clock: Clock | None = None,
    read_host: Callable[[], HostReading] = lambda: BOUNDLESS,
    *,
    packages: PackageIndex | None = None,
    keep: bool = False,
) -> AsyncIterator[RunningService]:
    """One service of a folder; with ``keep`` its sandboxes live on, for the next one on the same driver.

    Rows are in memory and survive with the driver, unless the settings name a database or the driver runs real guests.
    """
    is_real = isinstance(driver, BareDriver)
    chosen = replace(settings or Settings(), data_dir=folder / "data", cache_dir=CACHE_DIR if is_real else folder / "cache")
    if chosen.pools is None:
        chosen = replace(chosen, pools=())  # what nobody asked for is nothing that a test counts on
    driver.restart()
    async with AsyncExitStack() as opened:
        store = blobs = None
        if not is_real and chosen.database_url is None:
            database = _DATABASES.setdefault(driver, MemoryDatabase())
            store, blobs = await opened.enter_async_context(MemoryStore(database)), MemoryBlobs(database)
        yield await opened.enter_async_context(
            open_service(
                chosen,
                drivers={"gvisor": driver},
                templates=None if is_real else MemoryTemplates(),
                clock=clock,
                read_host=read_host,
                packages=packages or NoPackages(),
                store=store,
                blobs=blobs,
                keep=keep,
            )
        )


def detach_when_announced(monkeypatch: pytest.MonkeyPatch) -> list[Sandbox]:
    """Detach from each new sandbox at the moment its creation is announced, as a service does that stops then. Return the list of these sandboxes."""
    detached: list[Sandbox] = []
    become = Sandbox.become

    def watched(sandbox: Sandbox, state: State) -> None:
        become(sandbox, state)
        if state is State.RUNNING and not sandbox.ready.done():
            detached.append(sandbox)
            sandbox.ready.add_done_callback(lambda _: sandbox.detach())

    monkeypatch.setattr(Sandbox, "become", watched)
    return detached


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    """Yield the parts of a body or an input."""
    for part in parts:
        yield part


@asynccontextmanager
async def client(service: RunningService) -> AsyncIterator[httpx.AsyncClient]:
    """The service's HTTP on its unix socket, and a client of it."""
    path = service.settings.socket
    async with serve_in_background(service, [listener.unix_socket(path)]), unix_client(path) as http:
        yield http


@asynccontextmanager
async def tcp_client(service: RunningService, key: str | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """The service's HTTP on TCP, and a client of it; without a key unless one is given."""
    tcp = listener.tcp_socket("127.0.0.1", 0)
    base, headers = f"http://127.0.0.1:{tcp.getsockname()[1]}", {} if key is None else {"Authorization": f"Bearer {key}"}
    async with (
        serve_in_background(service, [tcp]),
        httpx.AsyncClient(base_url=base, headers=headers, timeout=60, trust_env=False, verify=NO_TLS) as http,
    ):
        yield http
