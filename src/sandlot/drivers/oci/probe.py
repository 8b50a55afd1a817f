"""Capabilities of a driver on this host, found by trying them with the smallest possible sandbox.

The sandbox's root file system contains one program of 170 bytes in place of the guest. The program writes ``ok``, waits for a byte and ends. So the
probe needs no image of a template, and creates its sandbox in the same way as every other sandbox.
"""

from __future__ import annotations

import asyncio
import platform
import shutil
import threading
import time
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sandlot.drivers.oci.network_cards import NetworkCards
from sandlot.drivers.oci.runtime import Runtime
from sandlot.drivers.oci.runtime_builds import RuntimeBuilds
from sandlot.host.blocking import call_in_own_thread
from sandlot.host.cgroup_layout import missing_controllers
from sandlot.host.cgroups import detect_layout
from sandlot.host.programs import date_of_version
from sandlot.link.elf import elf_file
from sandlot.link.payload import GUEST_ARGV, GUEST_ROOT, VOLUMES
from sandlot.model.errors import ConflictError, ErrorCode, HostError, LimitError, SandboxEndedError, SandlotError, UnsupportedError
from sandlot.model.ids import SandboxId
from sandlot.model.ports import Attachment, Capabilities, Change, Driver, DriverCapability, ExitReason, Instance, ProbeResult, RuntimeInfo
from sandlot.model.specs import MIB, Limits, RootFs, SandboxSpec, Shape

PROBE_LIMITS = Limits(cpus=1.0, memory_bytes=128 * MIB, disk_bytes=16 * MIB, pids=16)
_SPEC = SandboxSpec(id=SandboxId("sb-aaaa-probeprobeprobepr"), limits=PROBE_LIMITS)
SNAPSHOT_RETRY_S = 60.0
"""Seconds after which a driver is probed again if snapshots did not work. The reason may have been temporary, such as a full disk."""
_TIMEOUT_S = 60.0
_YES = ProbeResult(ok=True)
_CHANGES = {
    # Two changes for each limit: the first sets a new value, the second sets the old value again.
    DriverCapability.CONFIGURE_MEMORY: (Change(memory_bytes=PROBE_LIMITS.memory_bytes + 64 * MIB), Change(memory_bytes=PROBE_LIMITS.memory_bytes)),
    DriverCapability.CONFIGURE_CPU: (Change(cpus=PROBE_LIMITS.cpus / 2), Change(cpus=PROBE_LIMITS.cpus)),
    DriverCapability.CONFIGURE_PIDS: (Change(pids=PROBE_LIMITS.pids + 1), Change(pids=PROBE_LIMITS.pids)),
    DriverCapability.CONFIGURE_DISK: (Change(disk_bytes=PROBE_LIMITS.disk_bytes + MIB), Change(disk_bytes=PROBE_LIMITS.disk_bytes)),
}

_CODE = bytes.fromhex(
    "b801000000 bf01000000 488d351e000000 ba03000000 0f05"  # write(1, "ok\n", 3)
    "31c0 31ff 4889e6 ba01000000 0f05"  # read(0, stack, 1)
    "b83c000000 31ff 0f05"  # exit(0)
    "6f6b0a"
)


class Probe:
    """Capabilities of one driver, which are probed once and then remembered.

    A capability that a probe has found once is reported as available from then on. If the driver cannot boot sandboxes, every call probes again, so
    that an operator who repairs the host need not restart the service. If only snapshots are missing, one caller probes again after
    :data:`SNAPSHOT_RETRY_S` seconds, and other callers receive the old result without waiting.

    Args:
        driver: Driver to probe. The probe calls the driver from an event loop of its own.
        builds: Builds of the driver's runtime.
        runtime: The driver's runtime.
        cards: Network cards of the driver's sandboxes.
        folder: Folder in which the probe creates its files.
    """

    def __init__(self, driver: Driver, builds: RuntimeBuilds, runtime: Runtime, cards: NetworkCards, folder: Path) -> None:
        self._driver = driver
        self._builds = builds
        self._runtime = runtime
        self._cards = cards
        self._folder = folder / f".probe-{driver.name}"  # this name is not a ref, so sweeps ignore the folder
        self._lock = threading.Lock()
        self._known: Capabilities | None = None
        self._known_since_s = 0.0

    def capabilities(self) -> Capabilities:
        """Return the capabilities of the driver. Blocks for about a second if the driver must be probed."""
        known = self._known
        if known is not None and known.can(DriverCapability.BOOT) and (self._lock.locked() or not self._may_retry_snapshots(known)):
            return known
        with self._lock:
            known = self._known
            if known is None or not known.can(DriverCapability.BOOT) or self._may_retry_snapshots(known):
                found = try_capabilities(self._driver, self._builds, self._runtime, self._cards, self._folder)
                known = self._known = _keep_available(found, known)
                self._known_since_s = time.monotonic()
            return known

    def clean(self) -> None:
        """Remove the files of a probe that was killed with its service. Does nothing while a probe is running."""
        if self._lock.acquire(blocking=False):
            try:
                shutil.rmtree(self._folder, ignore_errors=True)
            finally:
                self._lock.release()

    def _may_retry_snapshots(self, known: Capabilities) -> bool:
        missing = not known.can(DriverCapability.SNAPSHOT) and DriverCapability.SNAPSHOT not in self._runtime.unsupported
        return missing and time.monotonic() > self._known_since_s + SNAPSHOT_RETRY_S


def _keep_available(found: Capabilities, before: Capabilities | None) -> Capabilities:
    if before is None:
        return found
    return replace(found, results={**found.results, **{capability: result for capability, result in before.results.items() if result.ok}})


def tiny_program() -> bytes:
    """Return the program of the probe, an ELF file."""
    return elf_file(_CODE)


def make_tiny_root(folder: Path) -> RootFs:
    """Create a root file system with the probe's program, at the path of the guest's interpreter, and with empty folders as mount points."""
    program = folder / GUEST_ARGV[0].lstrip("/")
    program.parent.mkdir(parents=True)
    program.write_bytes(tiny_program())
    program.chmod(0o755)
    for name in ("dev", "proc", "sys", "tmp", f"{GUEST_ROOT}/{VOLUMES}".strip("/")):
        (folder / name).mkdir()
    return RootFs("tiny", folder)


def try_capabilities(driver: Driver, builds: RuntimeBuilds, runtime: Runtime, cards: NetworkCards, folder: Path) -> Capabilities:
    """Try all capabilities of a driver and return the results. Blocks for about a second.

    If sandboxes do not start with a network that the runtime copies, they are tried without a network card.

    Args:
        driver: Driver to try. It is called from an event loop in another thread.
        builds: Builds of the driver's runtime.
        runtime: The driver's runtime.
        cards: Network cards of the driver's sandboxes.
        folder: Folder for the probe's files; removed afterwards.
    """
    info: RuntimeInfo | None = None
    results = {capability: ProbeResult(ok=False, reason=reason) for capability, reason in runtime.unsupported.items()}
    try:
        program = builds.current()
        info = RuntimeInfo(program.name, program.version, date_of_version(program.version), program.source)
        if platform.machine() != "x86_64":
            raise HostError(f"Only x86-64 machines are supported; this is {platform.machine()}.", code=ErrorCode.HOST_NOT_READY)
        if lacking := missing_controllers(detect_layout()):
            raise HostError(
                f"The cgroup controllers {', '.join(lacking)} are missing.",
                code=ErrorCode.HOST_NOT_READY,
                hint="Enable them on the kernel's command line, or mount their hierarchies below /sys/fs/cgroup.",
            )
        try:
            _try_in_folder(driver, folder, results, cards.probe(program))
        except HostError as error:
            if not cards.give_up(program, error.message):
                raise
            _try_in_folder(driver, folder, results, cards.probe(program))
    except (SandlotError, OSError) as error:
        # TimeoutError is an OSError without a message.
        timed_out = f"No sandbox ran within {_TIMEOUT_S:g} s: the machine may be overloaded, or {info or 'the runtime'} does not work on it."
        for capability in DriverCapability:
            results.setdefault(capability, ProbeResult(ok=False, reason=str(error) or timed_out))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Capabilities(driver=driver.name, runtime=info, results=results)


def _try_in_folder(driver: Driver, folder: Path, results: dict[DriverCapability, ProbeResult], card: ProbeResult) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # left by a killed or failed probe
    folder.mkdir(mode=0o700, parents=True)
    results[DriverCapability.NETWORK] = card
    # A separate thread is used, because the caller's thread may have a running event loop.
    call_in_own_thread(lambda: asyncio.run(_try_all(driver, folder, results)))


async def _try_all(driver: Driver, folder: Path, results: dict[DriverCapability, ProbeResult]) -> None:
    async with asyncio.timeout(_TIMEOUT_S):
        shape, snapshot = Shape(make_tiny_root(folder / "root"), PROBE_LIMITS), folder / "snapshot"
        prepared = await driver.prepare(shape)
        volume = Attachment(slot=0, path="/volume", tree=folder / "volume")
        (folder / "volume").mkdir()
        try:
            results[DriverCapability.VOLUMES] = await _try_volume(prepared.attach((volume,)))
            instance = await prepared.boot(_SPEC)
            if DriverCapability.CONFIGURE_VOLUMES not in results:
                change = Change(volumes=(replace(volume, slot=1),))
                results[DriverCapability.CONFIGURE_VOLUMES] = await _try_volume(instance.configure(change))
            await _try_live(instance, results, snapshot)
        finally:
            await prepared.destroy()
        end = await instance.wait()
        exited = end.reason is ExitReason.EXITED
        results[DriverCapability.ADOPT] = _YES if exited else ProbeResult(ok=False, reason=f"the sandbox has ended ({end.reason}): {end.detail}")
        if snapshot.exists():
            results[DriverCapability.SNAPSHOT] = await _try_restore(driver, shape, snapshot)


async def _try_restore(driver: Driver, shape: Shape, snapshot: Path) -> ProbeResult:
    """Restore a snapshot in which the program waits for a byte. Send the byte and check that the program ends."""
    prepared = await driver.prepare(shape, snapshot=snapshot)
    try:
        headroom = await driver.restore_headroom(snapshot, _SPEC.limits)
        instance = await prepared.restore(snapshot, _SPEC, headroom_bytes=headroom.most_bytes)
        stream = await instance.connect()
        stream.try_send(b"x")
        end = await instance.wait()
        await stream.aclose()
    except (ConflictError, HostError, SandboxEndedError) as error:
        return ProbeResult(ok=False, reason=error.message)
    finally:
        await prepared.destroy()
    return _YES if end.reason is ExitReason.EXITED else ProbeResult(ok=False, reason=f"the restored sandbox has ended ({end.reason}): {end.detail}")


async def _try_snapshot(instance: Instance, into: Path) -> ProbeResult:
    try:
        headroom = await instance.snapshot_headroom()
        await instance.snapshot(into, keep_running=True, durable=False, headroom_bytes=headroom.most_bytes)
    except (ConflictError, HostError, LimitError) as error:
        return ProbeResult(ok=False, reason=str(error.fields.get("reason", error.message)))
    return _YES


async def _try_live(instance: Instance, results: dict[DriverCapability, ProbeResult], snapshot: Path) -> None:
    """Try all capabilities that need a live sandbox, then end the sandbox by sending a byte to its program."""
    stream = await instance.connect()
    if (output := await stream.receive(16)) != b"ok\n":
        raise HostError(f"The sandbox started, but its program wrote {output!r} instead of b'ok\\n'.", code=ErrorCode.HOST_NOT_READY)
    results[DriverCapability.BOOT] = _YES
    usage = await instance.usage()
    # The kernel accepted the limits when the sandbox was prepared. What remains to check is that the sandbox is in its control group.
    counted = usage.pids > 0 and usage.memory_bytes > 0
    for capability in (DriverCapability.LIMIT_MEMORY, DriverCapability.LIMIT_CPU, DriverCapability.LIMIT_PIDS):
        results[capability] = _YES if counted else ProbeResult(ok=False, reason="the sandbox runs outside of its control group")
    results[DriverCapability.LIMIT_DISK] = _YES
    results.setdefault(DriverCapability.BOOT_IMAGE, _YES)  # the host needs nothing more for an image
    results.setdefault(DriverCapability.SHOW_LIMITS, _YES)
    for capability, changes in _CHANGES.items():
        results[capability] = await _try_changes(instance, changes)
    await instance.pause()
    await instance.resume()
    results[DriverCapability.PAUSE] = _YES
    if DriverCapability.SNAPSHOT not in results:
        results[DriverCapability.SNAPSHOT] = await _try_snapshot(instance, snapshot)
    stream.try_send(b"x")
    await instance.wait()
    await stream.aclose()


async def _try_volume(attaching: Coroutine[Any, Any, None]) -> ProbeResult:
    try:
        await attaching
    except (UnsupportedError, HostError) as error:
        return ProbeResult(ok=False, reason=error.message)
    return _YES


async def _try_changes(instance: Instance, changes: Sequence[Change]) -> ProbeResult:
    try:
        for change in changes:
            await instance.configure(change)
    except (UnsupportedError, ConflictError, HostError) as error:
        return ProbeResult(ok=False, reason=str(error.fields.get("reason", error.message)))
    return _YES
