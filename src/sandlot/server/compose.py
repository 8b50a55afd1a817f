"""Composition root: builds a service from its settings. No other module names concrete drivers and stores.

Each part of the service is built from parts that exist already. One registration follows: the refiller evicts warm sandboxes for the reservations.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass

import structlog

from sandlot import __version__
from sandlot.core.access.api_keys import ApiKeys
from sandlot.core.admission import AdmissionPolicy
from sandlot.core.execution.code import CodeService
from sandlot.core.execution.package_access import PackageAccess
from sandlot.core.execution.packages import PackageInstaller
from sandlot.core.execution.processes import ProcessService
from sandlot.core.execution.stdin import StdinManager
from sandlot.core.execution.unattended import UnattendedExecutions
from sandlot.core.files.signed_urls import UrlSigner
from sandlot.core.lifecycle import suspend
from sandlot.core.lifecycle.memory_images import MemoryImages
from sandlot.core.lifecycle.mounts import MountManager
from sandlot.core.lifecycle.supervisor import LifecycleDependencies
from sandlot.core.manager import SandboxManager
from sandlot.core.node.buffer_budget import BufferBudget
from sandlot.core.node.disposer import Disposer
from sandlot.core.node.drivers import Drivers, Templates
from sandlot.core.node.reservations import Reservations
from sandlot.core.oneshot.runner import OneShotRunner
from sandlot.core.pools.config_file import PoolConfigFile
from sandlot.core.pools.manager import PoolManager
from sandlot.core.pools.models import PoolSpec
from sandlot.core.pools.ownership import PoolOwners
from sandlot.core.pools.refill import PoolRefiller
from sandlot.core.pools.registry import PoolRegistry
from sandlot.core.pools.template_snapshot_cache import TemplateSnapshotCache
from sandlot.core.pools.template_snapshots import TemplateSnapshotManager
from sandlot.core.ports import Clock, PackageIndex, ResolvedTemplate, SystemClock, Template, TemplateStore
from sandlot.core.records.sandboxes import SandboxRecorder
from sandlot.core.registry import SandboxRegistry
from sandlot.core.scheduler import Scheduler
from sandlot.core.service import Core
from sandlot.core.snapshots.forks import ForkManager
from sandlot.core.snapshots.manager import SnapshotManager
from sandlot.core.volumes import VolumeManager
from sandlot.core.webhooks.manager import WebhookManager
from sandlot.doors.sandbase import events as sandbase
from sandlot.drivers.oci.paths import sandboxes_folder
from sandlot.drivers.registry import DriverSettings, driver_names, open_driver
from sandlot.egress.outbound.client import OutboundHttpClient
from sandlot.egress.packages.cache import PackageCache
from sandlot.egress.packages.config.machine import PackageSources
from sandlot.host.capacity import Host, own_bounds
from sandlot.host.cgroup_layout import Layout
from sandlot.host.cgroups import detect_layout
from sandlot.host.volume_disks import VolumeFiles
from sandlot.images.recipe import builtin
from sandlot.images.store import ImageStore
from sandlot.link.client import Link
from sandlot.model.access import OPERATOR
from sandlot.model.errors import ErrorCode, HostError, UnavailableError
from sandlot.model.ids import NodeId, new_sandbox_id
from sandlot.model.ports import Driver, HostReading
from sandlot.model.specs import DEFAULT_TEMPLATE, Limits
from sandlot.model.storage import Blobs, Store
from sandlot.server import state
from sandlot.server.records import open_records
from sandlot.server.settings import Settings
from sandlot.store.blobs import open_blobs
from sandlot.store.store import open_store

_log = structlog.get_logger("sandlot.server")


@dataclass(frozen=True, slots=True)
class Service:
    """A running service.

    Args:
        settings: Settings of the operator.
        core: Services that routes use.
        api_keys: API keys, for requests over TCP.
        store: Repositories.
        blobs: Contents of stored files.
        stop: Event that ends the service when it is set.
        keep: Leave the sandboxes running for the next service.
    """

    settings: Settings
    core: Core
    api_keys: ApiKeys
    store: Store
    blobs: Blobs
    stop: asyncio.Event
    keep: bool

    @property
    def node(self) -> NodeId:
        """Id of this node."""
        return self.core.node

    @property
    def sandboxes(self) -> SandboxManager:
        """Creates, changes and ends sandboxes."""
        return self.core.manager

    @property
    def budget(self) -> BufferBudget:
        """Memory of the service for buffered client data."""
        return self.core.buffers


class ImageTemplates:
    """Recipes of the image store as templates of core.

    Args:
        store: Builds and keeps the root filesystem images.
    """

    def __init__(self, store: ImageStore) -> None:
        self._store = store
        self._recipes = builtin()
        self._stopping = threading.Event()
        self._steps: dict[str, str] = {}

    def names(self) -> Collection[str]:
        """Return the names of all templates."""
        return self._recipes

    def all(self) -> Sequence[Template]:
        """Return all templates and the state of their builds."""
        return [
            Template(
                name=name,
                description=recipe.description,
                digest=None if (image := self._store.find(name)) is None else image.digest,
                building=self._steps.get(name),
            )
            for name, recipe in sorted(self._recipes.items())
        ]

    def base(self, name: str) -> ResolvedTemplate:
        """Return the current build of a template; build the template first if it has none, and report the progress."""
        try:
            root = self._store.root(name, functools.partial(self._progress, name))
        finally:
            self._steps.pop(name, None)
        return ResolvedTemplate(root=root, env=self._store.ensure(name).env)

    def at(self, name: str, digest: str) -> ResolvedTemplate | None:
        """Return the build of a template that has a digest. None: the build has been removed."""
        root = self._store.find_root(digest)
        return None if root is None else ResolvedTemplate(root=root, env=self._store.environment(name))

    def stop(self) -> None:
        """Stop a build at its next step, so that a service that stops need not wait for minutes."""
        self._stopping.set()

    def _progress(self, name: str, line: str) -> None:
        if self._stopping.is_set():
            raise UnavailableError(
                "The service is stopping.",
                code=ErrorCode.SERVICE_UNAVAILABLE,
                hint="Retry when the service has restarted.",
                fields={"retry_after_s": 1},
            )
        self._steps[name] = line.removeprefix(f"{name}: ")
        _log.info("template.build", step=line)


@asynccontextmanager
async def open_service(  # noqa: PLR0915 - one statement for each part of the service
    settings: Settings,
    *,
    drivers: Mapping[str, Driver] | None = None,
    templates: TemplateStore | None = None,
    clock: Clock | None = None,
    read_host: Callable[[], HostReading] | None = None,
    packages: PackageIndex | None = None,
    store: Store | None = None,
    blobs: Blobs | None = None,
    keep: bool = False,
) -> AsyncIterator[Service]:
    """Run the service of a data directory: lock the directory, recover what an earlier service left running, and remove its leftovers.

    Args:
        settings: Settings of the operator.
        drivers: Isolation name -> driver. None: all installed drivers.
        templates: Template store. None: the image store.
        clock: Clock. None: the machine's.
        read_host: Reads the host's resources. None: reads this machine.
        packages: Package indexes. None: a cache of the indexes that the machine is configured for.
        store: Repositories; the caller opens and closes them. None: the database of the settings.
        blobs: Contents of stored files. None: the folder of the settings.
        keep: Leave the sandboxes running for the next service when this one stops; otherwise they are removed.

    Raises:
        ConflictError: Another service runs on the data directory.
        HostError: The data directory or the database cannot be used, the directory has another format, or the two do not belong together.
        UnavailableError: The database cannot be reached.
    """
    images = ImageTemplates(ImageStore(settings.cache_dir))
    state.prepare(settings.data_dir)
    async with AsyncExitStack() as opened:
        opened.enter_context(state.locked(settings.data_dir))
        state.check_format(settings.data_dir)
        node = state.node(settings.data_dir)
        if store is None:
            store = database = await opened.enter_async_context(open_store(settings.database))
            state.belongs(settings.data_dir, await database.identity())
        if blobs is None:
            blobs = await open_blobs(settings.files)
        buffers = BufferBudget(settings.buffer_bytes)
        time = clock or SystemClock()

        reservations = Reservations(read_host or own_host(settings).read, settings.shares, time)
        records = await opened.enter_async_context(open_records(settings, node, store, blobs, time, reservations))
        if packages is None:
            packages = cache = await opened.enter_async_context(_package_cache(settings))
            records.metrics.count_packages(lambda: asdict(cache.counters()))
        recorder = SandboxRecorder(
            store,
            node,
            time,
            records.events,
            metrics=records.metrics,
        )
        opened.push_async_callback(recorder.aclose)
        registry = SandboxRegistry(recorder, buffers, time)
        records.metrics.count_sandboxes(registry.live_states)
        driver_set = Drivers(own_drivers(settings, node) if drivers is None else drivers)
        template_set = Templates(templates or images)
        policy = AdmissionPolicy(
            isolation_default=settings.isolation_default,
            isolation_allowed=settings.isolation_allowed,
            max_sandboxes=settings.max_sandboxes,
            max_creates=settings.max_creates,
            overcommit=settings.shares,
            max_suspended_s=settings.keep_resting_s,
        )
        start_slots = asyncio.Semaphore(policy.max_creates)
        new_id = functools.partial(new_sandbox_id, node)
        disposer = Disposer(time)
        memory_images = MemoryImages(settings.saved)
        package_access = PackageAccess(packages)
        code = CodeService(records.executions, records.execution_counter)
        unattended = UnattendedExecutions(records.executions, code, package_access)
        stdin = StdinManager()
        processes = ProcessService(records.executions, records.execution_counter, stdin, unattended)
        volumes = VolumeManager(
            store.volumes, VolumeFiles(settings.volumes), node, time, records.events, reservations=reservations, registry=registry
        )
        opened.push_async_callback(volumes.aclose)
        template_snapshots = TemplateSnapshotManager(
            cache=TemplateSnapshotCache(settings.cache_dir),
            drivers=driver_set,
            templates=template_set,
            reservations=reservations,
            link_factory=Link.open,
            clock=time,
            new_id=new_id,
            metrics=records.metrics,
            version=__version__,
        )
        pool_registry = PoolRegistry(PoolConfigFile(settings.data_dir), settings.pools, policy.isolation_default)
        refiller = PoolRefiller(
            registry=pool_registry,
            owners=PoolOwners(records.api_keys.principal_of, registry.live_limits),
            snapshots=template_snapshots,
            # An operator who sets no pools wants no template snapshot either.
            extra_snapshots=[PoolSpec(DEFAULT_TEMPLATE, policy.isolation_default, Limits())] if settings.pools else [],
            drivers=driver_set,
            templates=template_set,
            reservations=reservations,
            disposer=disposer,
            link_factory=Link.open,
            clock=time,
            new_id=new_id,
            metrics=records.metrics,
            start_slots=start_slots,
        )
        reservations.add_evictor(refiller)
        pools = PoolManager(
            registry=pool_registry,
            refiller=refiller,
            snapshots=template_snapshots,
            drivers=driver_set,
            templates=template_set,
            reservations=reservations,
            policy=policy,
            clock=time,
            metrics=records.metrics,
        )
        scheduler = Scheduler(
            registry=registry,
            drivers=driver_set,
            templates=template_set,
            reservations=reservations,
            policy=policy,
            pools=pools,
            volumes=volumes,
            files=records.files,
            api_keys=records.api_keys,
            buffers=buffers,
            clock=time,
            new_id=new_id,
        )
        lifecycle = LifecycleDependencies(
            drivers=driver_set,
            templates=template_set,
            recorder=recorder,
            reservations=reservations,
            disposer=disposer,
            scheduler=scheduler,
            pools=pools,
            volumes=volumes,
            memory_images=memory_images,
            package_access=package_access,
            link_factory=Link.open,
            clock=time,
            policy=policy,
            start_slots=start_slots,
            on_timeout=suspend.expire,
            on_wake=(unattended.resume,),
        )
        manager = SandboxManager(registry=registry, scheduler=scheduler, lifecycle=lifecycle)
        oneshot = OneShotRunner(manager, processes, records.execution_counter)
        opened.callback(oneshot.close)
        await volumes.open()
        snapshots = SnapshotManager(
            manager,
            store,
            memory_images,
            node,
            time,
            records.events,
            registry=registry,
            drivers=driver_set,
            templates=template_set,
            reservations=reservations,
        )
        forks = ForkManager(
            manager, store, memory_images, node, time, records.events, registry=registry, scheduler=scheduler, reservations=reservations
        )
        kept = await snapshots.open()
        await manager.open()
        refiller.start()
        volumes.unmount_unused()
        await memory_images.tidy([*kept, *registry.without_driver, *(sandbox.id for sandbox in registry.live())])
        await unattended.settle({sandbox.id: sandbox for sandbox in registry.list(OPERATOR)}.get)
        calls = OutboundHttpClient(settings.webhooks_allow)
        webhooks = WebhookManager(
            webhooks=store.webhooks,
            events=records.events,
            sender=calls,
            api_keys=records.api_keys,
            formats={"sandbase": sandbase.event},
            node=node,
            clock=time,
        )
        try:
            snapshots.begin()
            webhooks.start()
            core = Core(
                node=node,
                registry=registry,
                manager=manager,
                drivers=driver_set,
                templates=template_set,
                reservations=reservations,
                pools=pools,
                code=code,
                processes=processes,
                stdin=stdin,
                packages=PackageInstaller(processes, package_access),
                oneshot=oneshot,
                clock=time,
                buffers=buffers,
                files=records.files,
                events=records.events,
                webhooks=webhooks,
                executions=records.executions,
                metrics=records.metrics,
                api_keys=records.api_keys,
                execution_counter=records.execution_counter,
                snapshots=snapshots,
                forks=forks,
                volumes=volumes,
                mounts=MountManager(registry, driver_set, volumes),
                url_signer=UrlSigner(state.secret(settings.data_dir), time.now, records.api_keys.principal_of),
            )
            yield Service(settings=settings, core=core, api_keys=records.api_keys, store=store, blobs=blobs, stop=asyncio.Event(), keep=keep)
        finally:
            images.stop()
            await webhooks.aclose()
            await calls.aclose()
            await manager.aclose(keep=keep)
            await snapshots.aclose()
            await forks.aclose()


@asynccontextmanager
async def _package_cache(settings: Settings) -> AsyncIterator[PackageCache]:
    """Run a cache of the package indexes that this machine is configured for."""
    cache = PackageCache(settings.packages, PackageSources.of_this_machine, max_bytes=settings.packages_max_bytes, ttl_s=settings.packages_ttl_s)
    await cache.start()
    try:
        yield cache
    finally:
        await cache.aclose()


def own_host(settings: Settings) -> Host:
    """Return a reader of this machine's resources for the sandboxes of this service."""
    bounds = own_bounds(control_groups())
    return Host(data_dir=settings.data_dir, sandboxes=sandboxes_folder(settings.data_dir), bounds=bounds, volumes=settings.volumes)


def control_groups() -> Layout | None:
    """Return the layout of this machine's control groups. None: there are none; then no sandbox starts, and the probes of the drivers say why."""
    try:
        return detect_layout()
    except HostError:
        return None


def own_drivers(settings: Settings, node: NodeId) -> Mapping[str, Driver]:
    """Return all installed drivers.

    Drivers that the operator does not allow are included: they may have to remove leftovers of the time when they were allowed.
    """
    given = DriverSettings(node=node, data_dir=settings.data_dir)
    return {name: open_driver(name, given) for name in driver_names()}
