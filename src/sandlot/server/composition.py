"""Composition root: builds a service from its settings. No other module names concrete drivers and stores.

:func:`open_service` builds the objects leaves first: storage, records, resources of the node, executions, pools, lifecycle, and the features on
top. An object gets the objects that it uses as arguments of its constructor. Three objects are instead registered with an object that was built
before them. The pool refiller is registered with the reservations, for which it evicts warm sandboxes. The sandbox registry and the
package cache are registered with the metrics, which count sandboxes and packages.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import structlog

from sandlot import __version__
from sandlot.builds.layers import LayerStore
from sandlot.builds.merged_root_images import MergedRootImages
from sandlot.builds.uploads import Uploads
from sandlot.core.access.api_keys import ApiKeys
from sandlot.core.admission import AdmissionPolicy, NetworkLimits
from sandlot.core.admission_controller import AdmissionController
from sandlot.core.agents import AgentService
from sandlot.core.execution.code import CodeService
from sandlot.core.execution.contexts import ContextService
from sandlot.core.execution.execution import Executions
from sandlot.core.execution.guest_services import GuestServices
from sandlot.core.execution.network_access import NetworkAccess
from sandlot.core.execution.package_access import PackageAccess
from sandlot.core.execution.packages import PackageInstaller
from sandlot.core.execution.processes import ProcessService
from sandlot.core.execution.stdin import StdinManager
from sandlot.core.execution.terminals import TerminalService
from sandlot.core.files.files import FileService
from sandlot.core.files.signed_urls import TokenService
from sandlot.core.files.store import FileStore
from sandlot.core.files.watch import WatchService
from sandlot.core.forwarding.previews import PreviewService
from sandlot.core.forwarding.tunnels import TunnelService
from sandlot.core.history import HistoryService
from sandlot.core.keys import KeyService
from sandlot.core.lifecycle import suspend
from sandlot.core.lifecycle.memory_images import MemoryImages
from sandlot.core.lifecycle.mounts import MountManager
from sandlot.core.lifecycle.supervisor import LifecycleDependencies
from sandlot.core.manager import SandboxManager
from sandlot.core.network import NetworkService
from sandlot.core.node import Node
from sandlot.core.pools.build_snapshots import BuildSnapshots
from sandlot.core.pools.config_file import PoolConfigFile
from sandlot.core.pools.manager import PoolManager
from sandlot.core.pools.models import PoolConfig, PoolSpec, default_pools
from sandlot.core.pools.ownership import PoolOwners
from sandlot.core.pools.pooled_sandboxes import PooledSandboxes
from sandlot.core.pools.refill import PoolRefiller
from sandlot.core.pools.registry import PoolRegistry
from sandlot.core.pools.snapshot_maker import SnapshotMaker
from sandlot.core.pools.template_snapshot_cache import TemplateSnapshotCache
from sandlot.core.pools.template_snapshots import TemplateSnapshotManager
from sandlot.core.ports import Clock, ImageRegistry, NetworkGateway, PackageIndex, SystemClock, TemplateStore
from sandlot.core.programs.runner import ProgramRunner
from sandlot.core.programs.templates import LanguageTemplates
from sandlot.core.records.events import EventFeed
from sandlot.core.records.execution_log import ExecutionLog
from sandlot.core.records.metrics import Metrics
from sandlot.core.records.retention import Retention
from sandlot.core.records.sandboxes import SandboxRecorder
from sandlot.core.records.space import BoundedFiles, RecordSpace
from sandlot.core.records.usage import MonthlyExecutionCounter
from sandlot.core.registry import SandboxRegistry
from sandlot.core.resources.drivers import Drivers
from sandlot.core.resources.reservations import Reservations
from sandlot.core.resources.start_slots import StartSlots
from sandlot.core.resources.templates import TemplateResolver, Templates
from sandlot.core.sandboxes import SandboxService
from sandlot.core.service import ServiceInspector
from sandlot.core.snapshots.forks import ForkManager
from sandlot.core.snapshots.leases import FolderLeases
from sandlot.core.snapshots.manager import SnapshotManager
from sandlot.core.snapshots.sources import SnapshotSources
from sandlot.core.template_builds import TemplateBuilds
from sandlot.core.volumes.manager import VolumeManager
from sandlot.core.volumes.mounter import VolumeMounter
from sandlot.core.volumes.registry import VolumeRegistry
from sandlot.core.webhooks.delivery import WebhookDispatcher
from sandlot.core.webhooks.manager import WebhookManager
from sandlot.drivers.oci.paths import sandboxes_folder
from sandlot.drivers.registry import DriverSettings, driver_names, open_driver
from sandlot.egress.gateway.gateway import Gateway
from sandlot.egress.outbound.client import OutboundHttpClient
from sandlot.egress.outbound.connector import Connector, is_own_address
from sandlot.egress.packages.cache import PackageCache
from sandlot.egress.packages.config.machine import PackageSources
from sandlot.host.capacity import Host, own_bounds
from sandlot.host.cgroup_layout import Layout
from sandlot.host.cgroups import detect_layout
from sandlot.host.free_space import FreeSpace
from sandlot.host.volume_disks import VolumeFiles
from sandlot.images.store import ImageStore
from sandlot.model.access import LOCAL, OPERATOR
from sandlot.model.buffer_budget import BufferShares
from sandlot.model.errors import HostError
from sandlot.model.ids import NodeId, new_sandbox_id
from sandlot.model.ports import Driver, HostReading
from sandlot.model.repositories import Blobs, Store
from sandlot.model.specs import DEFAULT_TEMPLATE, TemplateRef
from sandlot.server import data_dir, log_config
from sandlot.server.base_resolver import ServiceBaseResolver
from sandlot.server.build_results import ServiceBuildResults
from sandlot.server.image_templates import ImageTemplates
from sandlot.server.settings import Settings
from sandlot.server.user_templates import UserTemplates
from sandlot.server.vendors import VENDORS
from sandlot.store.blobs import open_blobs
from sandlot.store.store import open_store

LAST_WRITE_S = 6.0
"""Seconds for the last writes when the service stops. Records that the store has not accepted by then are lost."""

_log = structlog.get_logger("sandlot.server")


@dataclass(frozen=True, slots=True)
class Internals:
    """Parts of core behind the node. The process opens, reads and closes them; requests do not reach them."""

    registry: SandboxRegistry
    manager: SandboxManager
    forks: ForkManager
    mounts: MountManager
    build_snapshots: BuildSnapshots
    volume_mounter: VolumeMounter
    drivers: Drivers
    reservations: Reservations
    stdin: StdinManager
    execution_log: ExecutionLog
    execution_counter: MonthlyExecutionCounter
    image_registry: ImageRegistry
    clock: Clock


@dataclass(frozen=True, slots=True)
class RunningService:
    """A running service.

    Args:
        settings: Settings of the operator.
        node: Services that the HTTP routes use.
        internals: Parts of core behind the node.
        api_keys: API keys, for requests over TCP.
        events: Event feed, closed before the requests of the clients that follow events are awaited.
        metrics: Metrics, in which the HTTP requests are counted.
        store: Repositories.
        blobs: Contents of stored files.
        images: Images of built-in templates, whose builds end at the begin of the stop of the service.
        bases: Finds the bases of builds of templates.
        build_results: Makes the root images and the snapshots of builds.
        layers: Layers of templates of users.
        uploads: Archives that clients have uploaded for builds.
        stop: Event that ends the service when it is set.
        keep: Leave the sandboxes running for the next service.
    """

    settings: Settings
    node: Node
    internals: Internals
    api_keys: ApiKeys
    events: EventFeed
    metrics: Metrics
    store: Store
    blobs: Blobs
    images: ImageStore
    bases: ServiceBaseResolver
    build_results: ServiceBuildResults
    layers: LayerStore
    uploads: Uploads
    stop: asyncio.Event
    keep: bool


@asynccontextmanager
async def open_service(  # noqa: PLR0913, PLR0915 - one straight sequence: parts of it would have to pass most of its objects to the next part
    settings: Settings,
    *,
    drivers: Mapping[str, Driver] | None = None,
    templates: TemplateStore | None = None,
    clock: Clock | None = None,
    read_host: Callable[[], HostReading] | None = None,
    packages: PackageIndex | None = None,
    image_registry: ImageRegistry | None = None,
    gateway: NetworkGateway | None = None,
    store: Store | None = None,
    blobs: Blobs | None = None,
    keep: bool = False,
) -> AsyncIterator[RunningService]:
    """Run the service of a data directory. Lock the directory, recover the sandboxes of an earlier service, and remove unused files.

    Args:
        settings: Settings of the operator.
        drivers: Isolation name -> driver. None: all installed drivers.
        templates: Template store. None: the image store.
        clock: Clock of the service. None: the clock of the machine.
        read_host: Function that reads the host's resources. None: the resources of this machine.
        packages: Package indexes. None: a cache of the indexes for which the machine is configured.
        image_registry: Images of registries. None: the same cache.
        gateway: Network gateway. None: a gateway that uses the network of this machine.
        store: Repositories; the caller opens and closes them. None: the database of the settings.
        blobs: Contents of stored files. None: the folder of the settings.
        keep: Leave the sandboxes running for the next service when this service stops. False: the sandboxes are removed.

    Raises:
        ConflictError: Another service runs on the data directory.
        HostError: The data directory or the database cannot be used, the directory has another format, or directory and database do not match.
        UnavailableError: The database cannot be reached.
    """
    image_store = ImageStore(settings.cache_dir, settings.recipes, reserve_bytes=settings.disk_reserve_bytes)
    images, layers, clock = (
        ImageTemplates(image_store),
        LayerStore(settings.layers, FreeSpace(settings.data_dir, settings.disk_reserve_bytes).check),
        clock or SystemClock(),
    )
    async with AsyncExitStack() as opened:
        # Storage
        data_dir.prepare_data_dir(settings.data_dir)
        opened.enter_context(data_dir.locked(settings.data_dir))
        data_dir.check_format(settings.data_dir)
        node_id = data_dir.node(settings.data_dir)
        database = None
        if store is None:
            store = database = await opened.enter_async_context(open_store(settings.database))
            data_dir.check_database(settings.data_dir, await database.identity())
        blobs = blobs or await open_blobs(settings.files)

        # Records
        metrics, reservations = Metrics(), Reservations(read_host or own_host(settings).read, settings.overcommit, clock)
        api_keys = ApiKeys(store.keys, clock)
        await api_keys.refresh()
        counter = MonthlyExecutionCounter(store.executions, clock, api_keys.quota_of)
        await counter.refresh()
        retention = Retention(store, settings.retention, api_keys.quota_of, clock, metrics)
        execution_log, events = ExecutionLog(store.executions, node_id, clock, metrics, retention), EventFeed(store.events)
        recorder = SandboxRecorder(store, node_id, clock, events, metrics)
        buffers = BufferShares(settings.buffer_bytes)
        registry = SandboxRegistry(recorder, buffers, clock)
        metrics.count_sandboxes(registry.live_states)
        file_store = FileStore(store.files, blobs, registry, clock, reservations, max_bytes=settings.upload_max_bytes)
        await file_store.open()
        space = RecordSpace(_bounded_files(settings, has_database=database is not None), reservations, clock)
        await space.update()
        await opened.enter_async_context(_writing(metrics, api_keys, counter, file_store, execution_log, events, recorder, retention, space))

        # Resources of the node
        if packages is None or image_registry is None:
            package_cache = await opened.enter_async_context(_package_cache(settings, metrics, reservations))
            packages, image_registry = packages or package_cache, image_registry or package_cache
        driver_set = Drivers(own_drivers(settings, node_id) if drivers is None else drivers)

        async def roots_in_use() -> Collection[str]:
            specs = [sandbox.spec for sandbox in registry.live()] + [record.spec for record in await store.snapshots.list_by_node(node_id)]
            return {spec.template.digest for spec in specs}

        roots = MergedRootImages(image_store, settings.cache_dir, in_use=roots_in_use, reserve_bytes=settings.disk_reserve_bytes)
        opened.push_async_callback(roots.aclose)
        template_store = UserTemplates(templates or images, store.templates, roots, layers.open)
        template_set, resolver = Templates(template_store), TemplateResolver(template_store, driver_set)
        languages = LanguageTemplates(template_set)
        policy = AdmissionPolicy(
            isolation_default=settings.isolation_default,
            isolation_allowed=settings.isolation_allowed,
            max_sandboxes=settings.max_sandboxes,
            max_creates=settings.max_creates,
            overcommit=settings.overcommit,
            max_suspended_s=settings.suspended_keep_s,
            network=NetworkLimits(settings.network_allowed, settings.network_private, is_own_address),
        )
        start_slots, new_id = StartSlots(policy.max_creates), functools.partial(new_sandbox_id, node_id)
        volume_disks, volume_registry = VolumeFiles(settings.volumes, settings.allocates_disks), VolumeRegistry(store.volumes)
        volume_mounter = VolumeMounter(volume_registry, volume_disks)
        volumes = VolumeManager(
            store.volumes, volume_disks, volume_registry, volume_mounter, node_id, clock, events, reservations=reservations, registry=registry
        )
        memory_images = MemoryImages(settings.saved)

        # Executions
        network_access = NetworkAccess(gateway or _gateway(settings, opened), events, clock)
        package_access = PackageAccess(packages, network_access)
        executions = Executions(execution_log, counter, package_access)
        stdin = StdinManager()
        processes = ProcessService(registry, stdin, executions, clock)
        contexts = ContextService(registry)

        # Pools
        capacity = await reservations.capacity()
        pool_settings = default_pools(capacity.allocatable.memory_bytes) if settings.pools is None else settings.pools

        async def pool_spec(template: str) -> PoolSpec:
            ref = TemplateRef(LOCAL, template)
            return PoolSpec(ref, policy.isolation_default, (await template_set.defaults(ref)).limits)

        pool_configs = [PoolConfig(await pool_spec(each.template), each.sizes, is_implied=each.is_implied) for each in pool_settings]
        pool_registry = PoolRegistry(PoolConfigFile(settings.data_dir), pool_configs)
        guest_services = GuestServices(package_access, network_access)
        snapshot_maker = SnapshotMaker(
            cache=TemplateSnapshotCache(settings.cache_dir),
            drivers=driver_set,
            reservations=reservations,
            clock=clock,
            node=node_id,
            new_id=new_id,
            metrics=metrics,
            version=__version__,
            guest_services=guest_services,
            network=policy.network,
            principal_of=api_keys.principal_of,
            buffers=buffers,
        )
        template_snapshots = TemplateSnapshotManager(maker=snapshot_maker, drivers=driver_set, templates=resolver, clock=clock, metrics=metrics)
        build_snapshots = BuildSnapshots(
            maker=snapshot_maker,
            drivers=driver_set,
            templates=resolver,
            clock=clock,
            metrics=metrics,
            node=node_id,
            admission_policy=policy,
            start_slots=start_slots,
        )
        refiller = PoolRefiller(
            registry=pool_registry,
            owners=PoolOwners(api_keys.principal_of, reservations.live_limits),
            snapshots=template_snapshots,
            # An operator who configures no pools does not want a template snapshot either.
            extra_snapshots=[await pool_spec(DEFAULT_TEMPLATE)] if pool_configs else [],
            drivers=driver_set,
            templates=template_set,
            resolver=resolver,
            reservations=reservations,
            clock=clock,
            new_id=new_id,
            metrics=metrics,
            start_slots=start_slots,
        )
        reservations.evict_with(refiller.evict_next)
        pooled = PooledSandboxes(registry=pool_registry, refiller=refiller, snapshots=template_snapshots, clock=clock, metrics=metrics)
        pools = PoolManager(
            registry=pool_registry,
            refiller=refiller,
            snapshots=template_snapshots,
            drivers=driver_set,
            templates=template_set,
            reservations=reservations,
            policy=policy,
        )

        # Lifecycle
        admission = AdmissionController(
            registry=registry,
            drivers=driver_set,
            templates=template_set,
            reservations=reservations,
            policy=policy,
            pools=pooled,
            volumes=volumes,
            file_store=file_store,
            blobs=blobs,
            api_keys=api_keys,
            buffers=buffers,
            clock=clock,
            new_id=new_id,
        )
        lifecycle = LifecycleDependencies(
            drivers=driver_set,
            templates=resolver,
            recorder=recorder,
            reservations=reservations,
            admission=admission,
            pools=pooled,
            build_snapshots=build_snapshots,
            volumes=volumes,
            volume_mounter=volume_mounter,
            memory_images=memory_images,
            guest_services=guest_services,
            clock=clock,
            policy=policy,
            start_slots=start_slots,
            read_free_disk=own_host(settings).free_disk_bytes if read_host is None else lambda: read_host().free.disk_bytes,
            on_timeout=suspend.expire,
            on_wake=(executions.resume, lambda sandbox: contexts.confirmed.of(sandbox).clear()),
        )
        manager = SandboxManager(registry=registry, admission=admission, lifecycle=lifecycle)

        # Features that use sandboxes
        grading = ThreadPoolExecutor(1, "grading")
        opened.callback(grading.shutdown, wait=False, cancel_futures=True)
        connector = Connector(settings.network_private)
        opened.callback(connector.close)
        sender = OutboundHttpClient(connector)
        opened.push_async_callback(sender.aclose)
        dispatcher = WebhookDispatcher(
            webhooks=store.webhooks,
            events=events,
            sender=sender,
            api_keys=api_keys,
            formats={vendor.name: vendor.webhook_payload for vendor in VENDORS if vendor.webhook_payload is not None},
            node=node_id,
            clock=clock,
        )
        mounts = MountManager(registry, driver_set, volumes)
        snapshot_leases, snapshot_sources = FolderLeases(memory_images), SnapshotSources(memory_images, driver_set, resolver, node_id)
        snapshots = SnapshotManager(
            manager=manager,
            registry=registry,
            store=store,
            memory_images=memory_images,
            leases=snapshot_leases,
            sources=snapshot_sources,
            drivers=driver_set,
            templates=resolver,
            reservations=reservations,
            api_keys=api_keys,
            events=events,
            clock=clock,
            node=node_id,
        )
        forks = ForkManager(
            manager=manager,
            admission=admission,
            registry=registry,
            store=store,
            memory_images=memory_images,
            reservations=reservations,
            events=events,
            clock=clock,
            node=node_id,
        )
        internals = Internals(
            registry=registry,
            manager=manager,
            forks=forks,
            mounts=mounts,
            build_snapshots=build_snapshots,
            volume_mounter=volume_mounter,
            drivers=driver_set,
            reservations=reservations,
            stdin=stdin,
            execution_log=execution_log,
            execution_counter=counter,
            image_registry=image_registry,
            clock=clock,
        )
        agents = AgentService(node=node_id, agents=store.agents, clock=clock)
        opened.callback(agents.close)
        template_builds = TemplateBuilds(node=node_id, templates=store.templates, builtin=frozenset(image_store.all_recipes), clock=clock)
        opened.callback(template_builds.close)
        tokens = TokenService(data_dir.secret(settings.data_dir), registry, clock.now, api_keys.valid_principal_of)
        node = Node(
            id=node_id,
            keys=KeyService(api_keys=api_keys, store=store, registry=registry, execution_counter=counter, pools=pools),
            service=ServiceInspector(
                node=node_id,
                version=__version__,
                max_sandboxes=policy.max_sandboxes,
                registry=registry,
                drivers=driver_set,
                reservations=reservations,
                metrics=metrics,
            ),
            history=HistoryService(registry=registry, executions=store.executions, execution_log=execution_log, events=events),
            files=FileService(registry),
            watches=WatchService(registry),
            file_store=file_store,
            tunnels=TunnelService(registry),
            network=NetworkService(registry, manager, network_access),
            buffers=buffers,
            templates=template_set,
            volumes=volumes,
            code=CodeService(registry, contexts, executions),
            contexts=contexts,
            terminals=TerminalService(registry, processes),
            processes=processes,
            packages=PackageInstaller(registry, processes),
            pools=pools,
            sandboxes=SandboxService(
                registry=registry,
                manager=manager,
                snapshots=snapshots,
                snapshot_leases=snapshot_leases,
                snapshot_sources=snapshot_sources,
                forks=forks,
                mounts=mounts,
                drivers=driver_set,
                records=store.sandboxes,
            ),
            programs=ProgramRunner(manager, processes, languages, counter, grading),
            languages=languages,
            snapshots=snapshots,
            webhooks=WebhookManager(webhooks=store.webhooks, dispatcher=dispatcher, sender=sender, events=events, clock=clock),
            tokens=tokens,
            agents=agents,
            template_builds=template_builds,
            previews=PreviewService(registry, tokens, api_keys.valid_principal_of),
        )
        roots.connect(node)
        await opened.enter_async_context(_running(node, internals, refiller, memory_images, executions, keep=keep))
        opened.push_async_callback(images.aclose)
        yield RunningService(
            settings=settings,
            node=node,
            internals=internals,
            api_keys=api_keys,
            events=events,
            metrics=metrics,
            store=store,
            blobs=blobs,
            layers=layers,
            images=image_store,
            # Not the clock of a test: the file system has the time of the machine.
            uploads=Uploads(settings.build_uploads, SystemClock(), max_bytes=settings.upload_max_bytes),
            bases=ServiceBaseResolver(
                templates=template_store,
                images=image_store,
                roots=roots,
                layers=layers,
                registry=image_registry,
                aliases=settings.aliases,
                node=node_id,
            ),
            build_results=ServiceBuildResults(template_store, roots, layers, build_snapshots),
            stop=asyncio.Event(),
            keep=keep,
        )


@asynccontextmanager
async def _writing(
    metrics: Metrics,
    api_keys: ApiKeys,
    counter: MonthlyExecutionCounter,
    file_store: FileStore,
    execution_log: ExecutionLog,
    events: EventFeed,
    recorder: SandboxRecorder,
    retention: Retention,
    space: RecordSpace,
) -> AsyncIterator[None]:
    """Run the loops that write records. Leaving the context writes the pending records."""
    loops = [
        asyncio.create_task(_restart_on_defect(work, metrics))
        for work in (
            execution_log.writer.run,
            retention.run,
            space.run,
            metrics.watch_loop,
            api_keys.run,
            api_keys.end_expired_requests,
            counter.writer.run,
        )
    ]
    try:
        yield
    finally:
        await recorder.aclose()
        events.close()
        for loop in loops:
            loop.cancel()
        # A commit cannot be interrupted, so a store that does not respond can hold each of these tasks for minutes.
        last_writes = [asyncio.create_task(work) for work in (execution_log.aclose(), counter.writer.close(), file_store.commits.wait())]
        _, pending = await asyncio.wait([*loops, *last_writes], timeout=LAST_WRITE_S)
        if pending:
            _log.error("records.lost", hint="The store does not respond, so the last records are lost. Check the database.")
        for task in pending:
            task.cancel()


async def _restart_on_defect(work: Callable[[], Coroutine[Any, Any, None]], metrics: Metrics) -> None:
    """Run a loop, and start the loop again after an unexpected exception. The exception is logged, because no task awaits the loop."""
    while True:
        try:
            await work()
        except Exception:  # noqa: BLE001 - logged; the work of the loop must continue
            metrics.store_failed("defect")
            _log.exception("records.internal_error")
            await asyncio.sleep(1)


def _gateway(settings: Settings, opened: AsyncExitStack) -> Gateway:
    """Return a network gateway with a connector of its own: lookups of sandboxes take no threads from those of webhooks."""
    connector = Connector(settings.network_private)
    opened.callback(connector.close)
    return Gateway(connector, mbit=settings.network_mbit or None)


@asynccontextmanager
async def _package_cache(settings: Settings, metrics: Metrics, reservations: Reservations) -> AsyncIterator[PackageCache]:
    """Run a cache of the package indexes for which this machine is configured.

    A cache on the disk of the data directory leaves the disk space free that is reserved, and gives up files when more is needed.
    """
    cache = PackageCache(
        settings.packages,
        functools.partial(PackageSources.of_this_machine, registries=settings.registries),
        max_bytes=settings.packages_max_bytes,
        ttl_s=settings.packages_ttl_s,
        private=settings.network_private,
    )
    await cache.start()
    metrics.count_packages(lambda: asdict(cache.counters()))
    if settings.packages.stat().st_dev == settings.data_dir.stat().st_dev:
        cache.share_disk(reservations)
        reservations.reclaim_with(cache.reclaim)
    try:
        yield cache
    finally:
        await cache.aclose()


@asynccontextmanager
async def _running(
    node: Node, internals: Internals, refiller: PoolRefiller, memory_images: MemoryImages, executions: Executions, *, keep: bool
) -> AsyncIterator[None]:
    """Recover the state that an earlier service left, and run the background work of this service until the context ends.

    Args:
        node: Services to open and to close. Requests are served only inside the context.
        internals: Parts of core to open and to close.
        refiller: Fills the pools once the sandboxes of the earlier service have their reservations again.
        memory_images: Images of hibernated sandboxes and of snapshots. Images without a record are removed.
        executions: Continues the executions that the earlier service did not finish.
        keep: Leave the sandboxes running for the next service.
    """
    await node.volumes.open()
    kept = await node.snapshots.open()
    await internals.manager.open()
    refiller.start()
    internals.volume_mounter.unmount_unused()
    await memory_images.tidy([*kept, *internals.registry.without_driver, *(sandbox.id for sandbox in internals.registry.live())])
    await executions.settle({sandbox.id: sandbox for sandbox in internals.registry.list(OPERATOR)}.get)
    try:
        node.snapshots.begin()
        node.webhooks.start()
        yield
    finally:
        await node.webhooks.aclose()
        await internals.build_snapshots.aclose()
        await internals.manager.aclose(keep=keep)
        await node.snapshots.aclose()
        await internals.forks.tasks.wait()
        await internals.volume_mounter.tasks.wait()


def _bounded_files(settings: Settings, *, has_database: bool) -> list[BoundedFiles]:
    """Return the files of the service in the data directory whose disk space is reserved."""
    log = settings.data_dir / data_dir.LOG
    files = [BoundedFiles((log, log.with_name(f"{log.name}.1")), 2 * log_config.MAX_BYTES)]
    if has_database and isinstance(settings.database, Path):
        database = settings.database
        files.append(BoundedFiles((database, database.with_name(f"{database.name}-wal")), settings.retention.database_bytes))
    return files


def own_host(settings: Settings) -> Host:
    """Return a reader of this machine's resources for the sandboxes of this service."""
    bounds = own_bounds(control_groups())
    return Host(data_dir=settings.data_dir, sandboxes=sandboxes_folder(settings.data_dir), bounds=bounds, volumes=settings.volumes)


def control_groups() -> Layout | None:
    """Return the layout of this machine's control groups. None: the machine has no control groups, so no sandbox can start.

    The probes of the drivers report why no sandbox can start.
    """
    try:
        return detect_layout()
    except HostError:
        return None


def own_drivers(settings: Settings, node: NodeId) -> Mapping[str, Driver]:
    """Return all installed drivers by isolation name.

    Drivers that the operator does not allow are included: an earlier service, for which these drivers were allowed, may have left sandboxes
    that the drivers must remove.
    """
    driver_settings = DriverSettings(node=node, data_dir=settings.data_dir, allocates_disks=settings.allocates_disks)
    return {name: open_driver(name, driver_settings) for name in driver_names()}
