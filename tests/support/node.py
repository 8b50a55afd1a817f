"""A whole node in memory: the real core and link on the in-memory driver, a scripted guest and a manual clock.

Tests of core use :class:`MemoryNode` and nothing below it. Its names are those that core is to have; where core has another one today, the facade
adapts it here, so that a renaming changes this file and no test.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sandlot.core.access.api_keys import ApiKeys
from sandlot.core.pools import ownership
from sandlot.core.pools.manager import PoolManager
from sandlot.core.pools.pool import Pool
from sandlot.core.pools.template_snapshot_cache import TemplateSnapshot
from sandlot.core.ports import NetworkGateway, PackageIndex, ResolvedTemplate, VolumeDisks
from sandlot.core.records.metrics import Metrics
from sandlot.core.sandbox import Sandbox
from sandlot.images.recipe_files import builtin_templates
from sandlot.model.access import LOCAL, OPERATOR, OwnerId, Principal
from sandlot.model.errors import NotFoundError
from sandlot.model.pools import PoolInfo, PoolSizes
from sandlot.model.ports import DriverCapability, HostReading, Resources
from sandlot.model.repositories import Store
from sandlot.model.sandboxes import CreateSandboxParams, LimitsChange
from sandlot.model.service import Capacity, TemplateInfo
from sandlot.model.specs import Limits, RootFs, RootKind, TemplateRef
from sandlot.model.templates import TemplateDefaults
from sandlot.server.composition import RunningService, open_service
from sandlot.server.settings import Settings
from sandlot.testing.memory.driver import MemoryDriver, MemoryInstance
from sandlot.testing.memory.guest import MemoryGuest
from sandlot.testing.memory.store import MemoryBlobs, MemoryDatabase, MemoryStore
from tests.support.clock import ManualClock
from tests.support.gateway import RecordingGateway
from tests.support.pools import live_pools

SPIN_LIMIT = 20_000
"""Turns of the event loop after which a wait has failed: far more than anything in memory needs."""
_ENDLESS = Resources(memory_bytes=1 << 60, disk_bytes=1 << 60, pids=1 << 40)
ENDLESS_HOST = HostReading(total=_ENDLESS, free=_ENDLESS, sandbox_disk_bytes=0)
"""A host that is never full: sandboxes in memory take next to nothing."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class MemoryTemplates:
    """The built-in templates and templates of owners, without images.

    Attributes:
        custom: Templates of owners, besides the built-in templates.
        missing: Names of templates that are not built.
        images: Names of templates whose root file system is an image.
        defaults_of: ``NAME`` or ``NAME:TAG`` -> defaults of a template.
        deleted: Names of templates whose pools still exist.
        envs: Id of a build -> its environment. The build of a template is that of ``defaults_of``.
        errors: Name -> exception that building it raises.
    """

    def __init__(self) -> None:
        self._recipes = builtin_templates()
        self.custom: set[TemplateRef] = set()
        self.missing: set[str] = set()
        self.images: set[str] = set()
        self.defaults_of: dict[str, TemplateDefaults] = {}
        self.deleted: set[str] = set()
        self.envs: dict[str, Mapping[str, str]] = {}
        self.errors: dict[str, Exception] = {}

    async def list(self, principal: Principal) -> Sequence[TemplateInfo]:
        """Return the templates that a principal can name."""
        descriptions = {name: recipe.description for name, recipe in self._recipes.items()}
        descriptions |= {ref.name: "" for ref in self.custom if ref.owner == principal.owner}
        return [
            TemplateInfo(
                name,
                description,
                None if name in self.missing else self._current(name).root.digest,
                languages=self._languages(name),
                limits=self._defaults(name).limits,
            )
            for name, description in sorted(descriptions.items())
        ]

    async def find(self, principal: Principal, name: str) -> TemplateRef | None:
        """Return the template that a name means."""
        own = TemplateRef(principal.owner, name)
        if own in self.custom:  # with its digest, because no record has it
            return replace(own, digest=self._current(f"{own.owner}/{name}").root.digest)
        name, _, tag = name.partition(":")
        return TemplateRef(LOCAL, name, tag=tag) if name in self._recipes and (not tag or f"{name}:{tag}" in self.defaults_of) else None

    async def defaults(self, ref: TemplateRef) -> TemplateDefaults:
        """Return the defaults of a template, whose root file system is a folder, except for templates in ``images``."""
        if ref.full_name in self.deleted:
            raise NotFoundError(f"The template {ref.name} was deleted.")
        return replace(self._defaults(ref.full_name), root_kind=RootKind.IMAGE if ref.name in self.images else RootKind.TREE)

    async def build(self, ref: TemplateRef, *, images: bool) -> ResolvedTemplate:  # noqa: ARG002 - templates are folders
        """Return the build of a template. A template in ``missing`` is built from now on."""
        if ref.name in self.errors:
            raise self.errors[ref.name]
        self.missing.discard(ref.name)
        return self._current(ref.name if ref.owner == LOCAL else f"{ref.owner}/{ref.name}", ref.build or self._defaults(ref.full_name).build)

    async def at(self, ref: TemplateRef) -> ResolvedTemplate | None:
        """Return the build of a template with the digest of ``ref``."""
        current = self._current(ref.name if ref.owner == LOCAL else f"{ref.owner}/{ref.name}", ref.build)
        return current if current.root.digest == ref.digest else None

    def _defaults(self, name: str) -> TemplateDefaults:
        memory_bytes = self._recipes[name].memory_bytes if name in self._recipes else None
        return self.defaults_of.get(name) or TemplateDefaults(limits=Limits() if memory_bytes is None else Limits(memory_bytes=memory_bytes))

    def _languages(self, name: str) -> dict[str, str | None]:
        known = self._defaults(name).languages or ()
        return dict.fromkeys(known, None if name in self.missing else "1.0")

    def _current(self, name: str, build: str = "") -> ResolvedTemplate:
        build = build or self._defaults(name).build
        digest = hashlib.sha256(name.encode()).hexdigest()
        path = Path("/nonexistent") / digest
        root = RootFs(digest, image=path, index=path) if name in self.images else RootFs(digest, path)
        return ResolvedTemplate(root, {"PATH": _PATH, **self.envs.get(build, {})}, build)


@dataclass
class NodeState:
    """The parts that survive a restart of the service.

    Attributes:
        folder: Folder of the test.
        clock: Clock of all services of this state.
        driver: Driver with its sandboxes.
        database: Rows of the store and contents of stored files; fails on demand.
        templates: Templates.
        host: Reading of the host; assign another one to change it.
        capabilities: Capabilities of the driver.
    """

    folder: Path
    clock: ManualClock = field(default_factory=ManualClock)
    driver: MemoryDriver = field(init=False)
    database: MemoryDatabase = field(default_factory=MemoryDatabase)
    templates: MemoryTemplates = field(default_factory=MemoryTemplates)
    host: HostReading = ENDLESS_HOST
    capabilities: Collection[DriverCapability] = tuple(DriverCapability)

    def __post_init__(self) -> None:
        self.driver = MemoryDriver(clock=self.clock, capabilities=self.capabilities)

    @property
    def data_dir(self) -> Path:
        """The data directory."""
        return self.folder / "data"


class SandboxesFacade:
    """``SandboxService``, ``SandboxManager`` and ``SandboxRegistry``, with live sandboxes."""

    def __init__(self, service: RunningService) -> None:
        self._service = service.node.sandboxes
        self._manager = service.internals.manager
        self._registry = service.internals.registry
        self._reservations = service.internals.reservations
        self._pools = service.node.pools

    @property
    def count(self) -> int:
        """Number of live sandboxes."""
        return self._registry.count

    held = count

    async def create(self, principal: Principal, params: CreateSandboxParams, *, key: str | None = None) -> Sandbox:
        """Create a sandbox."""
        if params.snapshot is None:
            return await self._manager.create(principal, params, key=key)
        return await self._registry.load((await self._service.create(principal, params, idempotency_key=key)).id, principal)

    def find(self, id_: str, principal: Principal) -> Sandbox:
        """Return a sandbox, also one that has ended lately."""
        return self._registry.find(id_, principal)

    def list(self, principal: Principal, *, ended: bool = False) -> Sequence[Sandbox]:
        """Return the live sandboxes that a principal may see, on demand with those that ended lately."""
        return self._registry.list(principal, ended=ended)

    async def capacity(self) -> Capacity:
        """Return the capacity of the node."""
        return await self._reservations.capacity()

    @property
    def pools(self) -> PoolManager:
        """The pools."""
        return self._pools

    async def load(self, id_: str, principal: Principal) -> Sandbox:
        """Return a sandbox, also one that has ended."""
        return await self._registry.load(id_, principal)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the other names are core's own
        return getattr(self._manager if hasattr(self._manager, name) else self._registry, name)


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """A live pool, its template snapshot and its error."""

    pool: Pool
    snapshot: TemplateSnapshot | None
    error: str


class PoolsFacade:
    """``PoolManager``, with live pools."""

    def __init__(self, service: RunningService) -> None:
        self._node = service.node
        self._pools = service.node.pools

    async def create(
        self, principal: Principal, template: str, isolation: str, limits: Limits, sizes: PoolSizes, metadata: Mapping[str, str] | None = None
    ) -> PoolStatus:
        """Create a pool."""
        info = await self._pools.create(principal, template, isolation, LimitsChange.to(limits), sizes, metadata)
        return self._status(live_pools(self._node)[info.id])

    def find(self, principal: Principal, id_or_template: str) -> PoolStatus:
        """Return one pool."""
        return self._status(ownership.find_pool(live_pools(self._node), id_or_template, principal))

    def list(self, principal: Principal) -> list[PoolStatus]:
        """Return the pools that a principal may see, sorted by their ids."""
        return [self._status(pool) for _, pool in sorted(live_pools(self._node).items()) if principal.sees(pool.owner)]

    def _status(self, pool: Pool) -> PoolStatus:
        snapshots = self._pools._snapshots  # noqa: SLF001 - as above
        return PoolStatus(pool, snapshots.current(pool.snapshot_spec), pool.error or snapshots.error(pool.snapshot_spec))

    def count(self, owner: OwnerId) -> int:
        """Return the number of an owner's pools."""
        return self._pools.count(owner)

    async def update(self, principal: Principal, id_: str, **sizes: Any) -> PoolInfo:  # noqa: ANN401 - numbers and metadata
        """Change sizes (``warm``, ``max``, ``prepared``) or ``metadata``."""
        return await self._pools.update(principal, id_, **sizes)

    async def delete(self, principal: Principal, id_: str) -> None:
        """Delete a pool."""
        await self._pools.delete(principal, id_)

    async def run_until_idle(self) -> None:
        """Run the refill task until it has nothing left to do at this moment of the clock."""
        refiller = self._pools._refiller  # noqa: SLF001 - the facade of core
        refiller.notify()
        await settled(lambda: refiller.is_idle)


class ReservationsFacade:
    """``Reservations``."""

    def __init__(self, service: RunningService) -> None:
        self._reservations = service.internals.reservations

    async def reserved(self) -> Resources:
        """Return the sum of all reservations."""
        return (await self._reservations.capacity()).reserved

    async def capacity(self) -> Capacity:
        """Return the capacity of the node."""
        return await self._reservations.capacity()


class MemoryNode:
    """A running service without HTTP."""

    def __init__(self, state: NodeState, service: RunningService) -> None:
        self.state = state
        self.service = service
        self.services = service.node
        self.internals = service.internals
        self.sandboxes = SandboxesFacade(service)
        self.pools = PoolsFacade(service)
        self.reservations = ReservationsFacade(service)

    @property
    def driver(self) -> MemoryDriver:
        """The in-memory driver."""
        return self.state.driver

    @property
    def clock(self) -> ManualClock:
        """The manual clock."""
        return self.state.clock

    @property
    def keys(self) -> ApiKeys:
        """API keys."""
        return self.service.api_keys

    @property
    def store(self) -> Store:
        """Repositories."""
        return self.service.store

    @property
    def metrics(self) -> Metrics:
        """Metrics."""
        return self.service.metrics

    def use_disks(self, disks: VolumeDisks) -> None:
        """Keep volumes on other disks, in place of filesystems."""
        volumes = self.services.volumes
        volumes._disks = volumes._mounter._disks = disks  # noqa: SLF001 - in place of a setting of the service

    def instance(self, sandbox: Sandbox | str) -> MemoryInstance:
        """Return the driver's side of a live sandbox, by the sandbox or its id."""
        found = sandbox if isinstance(sandbox, Sandbox) else self.internals.registry.find(sandbox, OPERATOR)
        return next(instance for instance in self.driver.booted if instance.ref == found.ref)

    def guest(self, sandbox: Sandbox | str) -> MemoryGuest:
        """Return the guest of a sandbox, or of a warm sandbox by its id."""
        for status in self.pools.list(OPERATOR):
            for warm in status.pool.ready:
                if warm.id == sandbox:
                    return self.driver.guest(warm.instance.ref)
        return self.instance(sandbox).guest


async def settled(condition: Callable[[], bool]) -> None:
    """Let the event loop run until a condition holds.

    Raises:
        AssertionError: It does not hold after ``SPIN_LIMIT`` turns.
    """
    for _ in range(SPIN_LIMIT):
        if condition():
            return
        await asyncio.sleep(0)
    for _ in range(100):  # work in threads, such as writing a file
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the condition does not come to hold")


async def run_pending() -> None:
    """Let everything run that waits for nothing but its turn."""
    for _ in range(100):
        await asyncio.sleep(0)


def settings_of(state: NodeState, **changes: Any) -> Settings:  # noqa: ANN401 - fields of Settings
    """Return the settings of a service."""
    return Settings(**{"pools": (), "suspend_reserve": 0, "data_dir": state.data_dir, "cache_dir": state.folder / "cache", **changes})


@asynccontextmanager
async def open_node(
    state: NodeState,
    *,
    keep_sandboxes: bool = False,
    memory_bytes: int | None = None,
    packages: PackageIndex | None = None,
    gateway: NetworkGateway | None = None,
    **settings: Any,  # noqa: ANN401 - fields of Settings
) -> AsyncIterator[MemoryNode]:
    """Run a service on a state.

    Args:
        state: What earlier services left.
        keep_sandboxes: Whether its sandboxes live on when it stops.
        memory_bytes: Memory of the host; None is endless.
        packages: Package indexes; None is none.
        gateway: Network gateway; None is one that records policies and connects to nothing.
        settings: Fields of ``Settings``.
    """
    if memory_bytes is not None:
        amount = replace(_ENDLESS, memory_bytes=memory_bytes)
        state.host = HostReading(total=amount, free=amount, sandbox_disk_bytes=0)
    state.driver.restart()
    async with (
        MemoryStore(state.database) as store,
        open_service(
            settings_of(state, **settings),
            drivers={state.driver.name: state.driver},
            templates=state.templates,
            clock=state.clock,
            read_host=lambda: state.host,
            packages=packages or NoPackages(),
            gateway=gateway or RecordingGateway(),
            store=store,
            blobs=MemoryBlobs(state.database),
            keep=keep_sandboxes,
        ) as service,
    ):
        yield MemoryNode(state, service)


class NoPackages:
    """Package indexes that nobody may read."""

    async def serve(self, stream: Any, *, sandbox: str, allowed: Callable[[], bool]) -> None:  # noqa: ANN401 - never used
        """Refuse the connection."""
        del sandbox, allowed
        stream.reset("unsupported", "This node has no package indexes.")
