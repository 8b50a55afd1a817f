"""What a driver can do on this host, found by doing it with the smallest sandbox there is.

Its root file system holds one program of 170 bytes where the guest would be started: it says ``ok``, waits for a byte and
ends. So a probe needs no image, and goes the way of every other sandbox.
"""

from __future__ import annotations

import asyncio
import platform
import shutil
import struct
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sandlot.drivers.oci.places import sandboxes_folder
from sandlot.drivers.oci.runtime import Program
from sandlot.host.cgroups import detect_layout
from sandlot.host.hierarchies import missing
from sandlot.link.payload import GUEST_ARGV, GUEST_ROOT, VOLUMES
from sandlot.model.errors import ConflictError, ErrorCode, HostError, LimitError, SandboxEndedError, SandlotError, UnsupportedError
from sandlot.model.ids import SandboxId
from sandlot.model.ports import Attachment, Capabilities, Change, Driver, DriverCapability, ExitReason, Instance, ProbeResult
from sandlot.model.specs import MIB, Limits, RootFs, SandboxSpec, Shape

PROBE_LIMITS = Limits(cpus=1.0, memory_bytes=128 * MIB, disk_bytes=16 * MIB, pids=16)
_SPEC = SandboxSpec(id=SandboxId("sb-aaaa-probeprobeprobepr"), limits=PROBE_LIMITS)
_PATIENCE_S = 60.0
_YES = ProbeResult(ok=True)
_TRIED = (
    *(
        DriverCapability.BOOT,
        DriverCapability.LIMIT_MEMORY,
        DriverCapability.LIMIT_CPU,
        DriverCapability.LIMIT_PIDS,
        DriverCapability.LIMIT_DISK,
        DriverCapability.SHOW_LIMITS,
    ),
    *(DriverCapability.PAUSE, DriverCapability.ADOPT, DriverCapability.SNAPSHOT, DriverCapability.VOLUMES),
    *(
        DriverCapability.CONFIGURE_MEMORY,
        DriverCapability.CONFIGURE_CPU,
        DriverCapability.CONFIGURE_PIDS,
        DriverCapability.CONFIGURE_DISK,
        DriverCapability.CONFIGURE_VOLUMES,
    ),
)
_CHANGES = {
    # There and back again.
    DriverCapability.CONFIGURE_MEMORY: (Change(memory_bytes=PROBE_LIMITS.memory_bytes + 64 * MIB), Change(memory_bytes=PROBE_LIMITS.memory_bytes)),
    DriverCapability.CONFIGURE_CPU: (Change(cpus=PROBE_LIMITS.cpus / 2), Change(cpus=PROBE_LIMITS.cpus)),
    DriverCapability.CONFIGURE_PIDS: (Change(pids=PROBE_LIMITS.pids + 1), Change(pids=PROBE_LIMITS.pids)),
    DriverCapability.CONFIGURE_DISK: (Change(disk_bytes=PROBE_LIMITS.disk_bytes + MIB), Change(disk_bytes=PROBE_LIMITS.disk_bytes)),
}

_BASE = 0x400000
_HEADER_BYTES, _PROGRAM_HEADER_BYTES = 64, 56
_CODE = bytes.fromhex(
    "b801000000 bf01000000 488d351e000000 ba03000000 0f05"  # write(1, "ok\n", 3)
    "31c0 31ff 4889e6 ba01000000 0f05"  # read(0, stack, 1)
    "b83c000000 31ff 0f05"  # exit(0)
    "6f6b0a"
)


def tiny_program() -> bytes:
    """The program: an ELF file of one segment for x86-64 (elf(5))."""
    entry = _BASE + _HEADER_BYTES + _PROGRAM_HEADER_BYTES
    size = _HEADER_BYTES + _PROGRAM_HEADER_BYTES + len(_CODE)
    ident = b"\x7fELF" + bytes((2, 1, 1)) + bytes(9)
    header = ident + struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, entry, _HEADER_BYTES, 0, 0, _HEADER_BYTES, _PROGRAM_HEADER_BYTES, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 0x1000)
    return header + segment + _CODE


def make_tiny_root(folder: Path) -> RootFs:
    """A root file system with nothing but that program, where the guest's interpreter would be."""
    program = folder / GUEST_ARGV[0].lstrip("/")
    program.parent.mkdir(parents=True)
    program.write_bytes(tiny_program())
    program.chmod(0o755)
    for name in ("dev", "proc", "sys", "tmp", f"{GUEST_ROOT}/{VOLUMES}".strip("/")):
        (folder / name).mkdir()
    return RootFs(folder, "tiny")


def probe(name: str, find: Callable[[], Program], absent: Mapping[DriverCapability, str], driver: Driver, data_dir: Path) -> Capabilities:
    """Try everything; blocks for about a second.

    Args:
        name: The driver's.
        find: Finds the runtime's program; the driver's own.
        absent: What the runtime cannot do anywhere, and why.
        driver: One that nobody else uses: it is driven from an event loop of its own.
        data_dir: Where the tiny root is put for the time being.
    """
    version = ""
    verdicts = {ability: ProbeResult(ok=False, reason=reason) for ability, reason in absent.items()}
    try:
        program = find()
        version = f"{program.name} {program.version} ({program.path})"
        if platform.machine() != "x86_64":
            raise HostError(f"Only x86-64 machines are supported; this is {platform.machine()}.", code=ErrorCode.HOST_NOT_READY)
        if lacking := missing(detect_layout()):
            raise HostError(
                f"The cgroup controllers {', '.join(lacking)} are missing.",
                code=ErrorCode.HOST_NOT_READY,
                hint="Let the kernel's command line enable them, or mount their hierarchies below /sys/fs/cgroup.",
            )
        _in_own_thread(lambda: asyncio.run(_try_all(driver, data_dir, verdicts)))
    except (SandlotError, OSError) as error:
        # A timeout is an OSError, too, one without words.
        late = f"No sandbox was up within {_PATIENCE_S:g} s: the machine may be overloaded, or {version or 'the runtime'} does not work on it."
        for ability in _TRIED:
            verdicts.setdefault(ability, ProbeResult(ok=False, reason=str(error) or late))
    return Capabilities(driver=name, runtime=version, abilities=verdicts)


async def _try_all(driver: Driver, data_dir: Path, verdicts: dict[DriverCapability, ProbeResult]) -> None:
    clean(driver.name, data_dir)
    folder = _folder(driver.name, data_dir)
    folder.mkdir(mode=0o700, parents=True)
    try:
        async with asyncio.timeout(_PATIENCE_S):
            shape, snapshot = Shape(make_tiny_root(folder / "root"), PROBE_LIMITS), folder / "snapshot"
            prepared = await driver.prepare(shape)
            volume = Attachment(slot=0, source=folder / "volume", path="/volume")
            volume.source.mkdir()
            try:
                verdicts[DriverCapability.VOLUMES] = await _attached(prepared.attach((volume,)))
                instance = await prepared.boot(_SPEC)
                if DriverCapability.CONFIGURE_VOLUMES not in verdicts:
                    verdicts[DriverCapability.CONFIGURE_VOLUMES] = await _attached(instance.configure(Change(volumes=(replace(volume, slot=1),))))
                await _talk(instance, verdicts, snapshot)
            finally:
                await prepared.destroy()
            end = await instance.wait()
            verdicts[DriverCapability.ADOPT] = (
                _YES if end.reason is ExitReason.EXITED else ProbeResult(ok=False, reason=f"it ended {end.reason}: {end.detail}")
            )
            if snapshot.exists():
                verdicts[DriverCapability.SNAPSHOT] = await _restored(driver, shape, snapshot)
    finally:
        clean(driver.name, data_dir)


def clean(name: str, data_dir: Path) -> None:
    """Remove what a driver's probe that was killed left in the state directory. It may not be probing there."""
    shutil.rmtree(_folder(name, data_dir), ignore_errors=True)


def _folder(name: str, data_dir: Path) -> Path:
    return sandboxes_folder(data_dir) / f".probe-{name}"  # not a ref, so a sweep takes it for no sandbox


async def _restored(driver: Driver, shape: Shape, snapshot: Path) -> ProbeResult:
    """Whether what was written while it waited for its byte still does."""
    prepared = await driver.prepare(shape, snapshot=snapshot)
    try:
        instance = await prepared.restore(snapshot, _SPEC)
        stream = await instance.connect()
        stream.try_send(b"x")
        end = await instance.wait()
        await stream.aclose()
    except (ConflictError, HostError, SandboxEndedError) as error:
        return ProbeResult(ok=False, reason=error.message)
    finally:
        await prepared.destroy()
    return _YES if end.reason is ExitReason.EXITED else ProbeResult(ok=False, reason=f"what was restored ended {end.reason}: {end.detail}")


async def _written(instance: Instance, into: Path) -> ProbeResult:
    try:
        await instance.snapshot(into, keep_running=True, durable=False)
    except (ConflictError, HostError, LimitError) as error:
        return ProbeResult(ok=False, reason=str(error.fields.get("reason", error.message)))
    return _YES


async def _talk(instance: Instance, verdicts: dict[DriverCapability, ProbeResult], snapshot: Path) -> None:
    stream = await instance.connect()
    if (said := await stream.receive(16)) != b"ok\n":
        raise HostError(f"The sandbox started, but said {said!r}.", code=ErrorCode.HOST_NOT_READY)
    verdicts[DriverCapability.BOOT] = _YES
    usage = await instance.usage()
    # Preparing wrote the limits and the kernel took them; what is left to see is that the sandbox is where they apply.
    counted = usage.pids > 0 and usage.memory_bytes > 0
    for ability in (DriverCapability.LIMIT_MEMORY, DriverCapability.LIMIT_CPU, DriverCapability.LIMIT_PIDS):
        verdicts[ability] = _YES if counted else ProbeResult(ok=False, reason="the sandbox runs outside of its control group")
    verdicts[DriverCapability.LIMIT_DISK] = _YES
    verdicts.setdefault(DriverCapability.SHOW_LIMITS, _YES)
    for ability, changes in _CHANGES.items():
        verdicts[ability] = await _changed(instance, changes)
    await instance.pause()
    await instance.resume()
    verdicts[DriverCapability.PAUSE] = _YES
    if DriverCapability.SNAPSHOT not in verdicts:
        verdicts[DriverCapability.SNAPSHOT] = await _written(instance, snapshot)
    stream.try_send(b"x")
    await instance.wait()
    await stream.aclose()


async def _attached(attaching: Coroutine[Any, Any, None]) -> ProbeResult:
    try:
        await attaching
    except (UnsupportedError, HostError) as error:
        return ProbeResult(ok=False, reason=error.message)
    return _YES


async def _changed(instance: Instance, changes: Sequence[Change]) -> ProbeResult:
    try:
        for change in changes:
            await instance.configure(change)
    except (UnsupportedError, ConflictError, HostError) as error:
        return ProbeResult(ok=False, reason=str(error.fields.get("reason", error.message)))
    return _YES


def _in_own_thread(work: Callable[[], None]) -> None:
    # The caller may be a thread with a running event loop: a second one cannot be started in it.
    failure: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            failure.append(error)

    thread = threading.Thread(target=run, name="sandlot-probe")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
