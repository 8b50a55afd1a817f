"""All that ``sandlot doctor`` looks at: the machine's parts (``host/checks``), every driver, the images and the service, side by side.

Laws:
- Every look that could wait for something is a process of its own with a deadline; so the whole takes no longer than the slowest of them may.
- What decides is done for real: the driver of the default isolation has booted a sandbox in the state directory. The parts explain; one that
  looks bad while that driver works is told, and does not decide.
- Nothing is left behind, also by a doctor that was killed: the next one sweeps what carries its node's id.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandlot.host.checks import finding as findings
from sandlot.host.checks.finding import Finding, Part
from sandlot.host.checks.runner import Outcome, Task, describe_error, run
from sandlot.model.errors import SandlotError

if TYPE_CHECKING:
    from sandlot.model.ids import NodeId
    from sandlot.model.ports import Capabilities
    from sandlot.server.settings import Settings

BOTH = frozenset({"gvisor", "container"})
NEEDED_BY: Mapping[str, frozenset[str]] = {
    "namespaces": BOTH,
    "seccomp": BOTH,
    "pidfds": BOTH,
    "cgroups": BOTH,
    "cgroup-delegation": BOTH,
    "cgroup-freezer": BOTH,
    "loop-devices": BOTH,
    "mkfs.ext4": BOTH,
    "shared-roots": frozenset({"container"}),
}
"""Parts of the machine -> isolations that do not work without."""
PLENTY_BYTES = {"data-dir": 2 * 1024**3, "cache-dir": 4 * 1024**3}
"""A few sandboxes' files; two images of 1 GiB and what their building takes."""
DRIVER_DEADLINE_S = 90.0
"""A driver gives itself 60 s to boot a sandbox, and some to look for its runtime."""
_SWEEP_DEADLINE_S = 60.0
_FOLDER = re.compile(r"\.sandlot-doctor-(?P<driver>[a-z0-9_-]+)\.(?P<node>[a-z2-7]{4})")
_ITSELF = re.compile(r"[;,.]? ?[`']sandlot doctor[`'][^.]*\.")
"""Where a hint sends people here."""
_CHECKS = "sandlot.host.checks"
_LATE_FIX = "It does not answer: look at the machine's load, its disks and network file systems, and the kernel's messages (dmesg)."


@dataclass(frozen=True, slots=True)
class Report:
    """What a doctor has to say.

    Args:
        findings: Everything, by group.
        default: The isolation that ``auto`` means; empty where another machine's service was looked at.
        allowed: What a request may ask for.
    """

    findings: tuple[Finding, ...]
    default: str = ""
    allowed: tuple[str, ...] = ()

    @property
    def able(self) -> bool:
        """Whether sandboxes can run."""
        return all(finding.ok for finding in self.findings if finding.required)


@dataclass(frozen=True, slots=True)
class Look:
    """A task, and the names of its findings, which are told also when it fails."""

    task: Task
    group: str
    names: tuple[str, ...]


def examine(env: Mapping[str, str]) -> Report:
    """Look at everything. Blocks for some seconds.

    Args:
        env: The environment: with ``SANDLOT_URL`` only the service there is looked at, otherwise this machine with what ``SANDLOT_*`` sets.
    """
    if url := env.get("SANDLOT_URL", ""):
        service = Look(Task("service", "sandlot.cli.doctor.checks:look_at_service", {"required": True}, deadline_s=60.0), "service", ("service",))
        found = _findings([service], run([service.task]))
        return Report(tuple(replace(finding, facts={**finding.facts, "url": url}) for finding in found))
    settings, of_settings = _settings(env)
    from sandlot.host.checks import machine

    looks = _looks(settings)
    at_once = [of_settings, *machine.check_machine(), machine.check_program("mkfs.ext4", "apt-get install e2fsprogs")]
    found = at_once + _findings(looks, _carried_out(looks))
    return Report(
        tuple(_ordered(settle(found, settings.isolation_default, settings.isolation_allowed))), settings.isolation_default, settings.isolation_allowed
    )


def settle(found: Sequence[Finding], default: str, allowed: Sequence[str]) -> list[Finding]:
    """Decide what is required. Pure.

    Args:
        found: Everything that was found.
        default: The isolation that ``auto`` means.
        allowed: What a request may ask for.
    """
    built = any(finding.name == "images" and finding.facts.get("built") for finding in found)
    works = any(finding.group == "isolation" and finding.name == default and finding.ok for finding in found)
    settled = []
    for finding in found:
        if finding.group == "isolation":
            words = "the default" if finding.name == default else "allowed" if finding.name in allowed else "not allowed by SANDLOT_ISOLATION_ALLOWED"
            facts = {**finding.facts, "default": finding.name == default, "allowed": finding.name in allowed}
            settled.append(replace(finding, required=finding.name == default, detail=f"{finding.detail}; {words}", facts=facts))
        elif finding.name in NEEDED_BY:
            settled.append(replace(finding, required=default in NEEDED_BY[finding.name] and (bool(finding.ok) or not works)))
        elif finding.name == "cache-dir" and built:  # what is there is only read
            settled.append(replace(finding, required=False))
        else:
            settled.append(finding)
    return settled


def _ordered(found: Sequence[Finding]) -> list[Finding]:
    groups = list(
        dict.fromkeys(("machine", "control groups", "kernel", "programs", "storage", "isolation", "service", *(each.group for each in found)))
    )
    return sorted(found, key=lambda finding: groups.index(finding.group))  # stable: within a group as they came


def _settings(env: Mapping[str, str]) -> tuple[Settings, Finding]:
    from sandlot.server.settings import SYSTEM_CACHE_DIR, SYSTEM_DATA_DIR, Settings

    if os.geteuid() != 0:  # whoever cannot start a service looks at what root's would use
        env = {"SANDLOT_DATA_DIR": str(SYSTEM_DATA_DIR), "SANDLOT_CACHE_DIR": str(SYSTEM_CACHE_DIR), **env}
    try:
        settings = Settings.load(env)
    except SandlotError as error:
        defaults = {name: env[name] for name in ("SANDLOT_DATA_DIR", "SANDLOT_CACHE_DIR") if Path(env.get(name, "-")).is_absolute()}
        return Settings.load({**defaults, "SANDLOT_CONFIG": os.devnull}), Finding(
            "settings", ok=False, detail=error.message, fix=error.hint, group="machine"
        )
    facts = {"data_dir": str(settings.data_dir), "cache_dir": str(settings.cache_dir)}
    detail = f"isolation {settings.isolation_default}, allowed: {', '.join(settings.isolation_allowed)}"
    return settings, Finding("settings", ok=True, detail=detail, group="machine", facts=facts)


def _looks(settings: Settings) -> list[Look]:
    from sandlot.drivers.registry import driver_names
    from sandlot.model.ids import new_node_id

    data, cache = str(settings.data_dir), str(settings.cache_dir)
    folders = {"data_dir": data, "cache_dir": cache}
    drivers = list(dict.fromkeys((*driver_names(), *settings.isolation_allowed)))
    return [
        Look(Task("cgroups", f"{_CHECKS}.cgroups:check_cgroups"), "control groups", ("cgroups", "cgroup-delegation", "cgroup-freezer")),
        Look(Task("kernel", f"{_CHECKS}.kernel:check_kernel", deadline_s=60.0), "kernel", ("namespaces", "seccomp", "pidfds")),
        Look(Task("storage", f"{_CHECKS}.storage:check_storage", {**folders, "plenty": PLENTY_BYTES}), "storage", ("data-dir", "cache-dir")),
        Look(Task("loops", f"{_CHECKS}.storage:check_loops", {"data_dir": data}), "storage", ("loop-devices",)),
        Look(Task("layers", f"{_CHECKS}.storage:check_layers", folders, deadline_s=30.0), "storage", ("shared-roots",)),
        Look(Task("images", "sandlot.cli.doctor.checks:look_at_images", {"cache_dir": cache}, deadline_s=30.0), "storage", ("images",)),
        *(
            Look(
                Task(
                    name,
                    "sandlot.cli.doctor.checks:try_driver",
                    {"name": name, "data_dir": data, "node": new_node_id()},
                    deadline_s=DRIVER_DEADLINE_S,
                ),
                "isolation",
                (name,),
            )
            for name in drivers
        ),
        Look(Task("service", "sandlot.cli.doctor.checks:look_at_service", {"required": False}, deadline_s=60.0), "service", ("service",)),
    ]


def _carried_out(looks: Sequence[Look]) -> dict[str, Outcome]:
    """Run the checks, and remove what those leave behind that were killed."""
    drivers = [look.task for look in looks if look.group == "isolation"]
    answers: dict[str, Outcome] = {}
    try:
        answers = run([look.task for look in looks])
        return answers
    finally:
        killed = [task for task in drivers if task.name not in answers or answers[task.name].value is None]
        sweeps = [Task(task.name, "sandlot.cli.doctor.checks:sweep_after", task.keywords, deadline_s=_SWEEP_DEADLINE_S) for task in killed]
        run([Task("groups", f"{_CHECKS}.cgroups:sweep_groups"), *sweeps])


def _findings(looks: Sequence[Look], answers: Mapping[str, Outcome]) -> list[Finding]:
    found = []
    for look in looks:
        answer = answers[look.task.name]
        if answer.value is not None:
            found += [findings.load(told) for told in answer.value]
        else:
            found += [Finding(name, ok=False, detail=answer.error, fix=_LATE_FIX if answer.late else "", group=look.group) for name in look.names]
    return found


# ------------------------------------------------------------------------------------------------------------ in processes of their own
def look_at_images(*, cache_dir: str) -> list[dict[str, Any]]:
    """What sandboxes start from."""
    from sandlot.images.recipe import builtin
    from sandlot.images.store import ImageStore

    store = ImageStore(Path(cache_dir))
    names = sorted(builtin())
    try:
        built = [name for name in names if store.find(name) is not None]
    except PermissionError:
        return [Finding("images", ok=None, detail="not looked at: only root can run this check", group="storage").dump()]
    return [check_images(built, names, builder=shutil.which("mmdebstrap") is not None).dump()]


def check_images(built: Sequence[str], names: Sequence[str], *, builder: bool) -> Finding:
    """Whether there are images, or can be.

    Args:
        built: Templates that have been built.
        names: All templates.
        builder: Whether mmdebstrap is there.
    """
    missing = [name for name in names if name not in built]
    parts = tuple(Part(name, name in built, "" if name in built else "not built yet") for name in names)
    facts = {"built": list(built), "builder": builder}
    detail = f"built: {', '.join(built) or 'none'}"
    if not missing:
        return Finding("images", ok=True, detail=detail, group="storage", parts=parts, facts=facts)
    detail += f"; the first use builds: {', '.join(missing)}" if builder else "; without mmdebstrap no more can be built"
    fix = "" if builder else "apt-get install mmdebstrap."
    # One that can be built at its first use is as good as there.
    parts = tuple(replace(part, ok=True) for part in parts) if builder else parts
    return Finding("images", ok=builder, detail=detail, fix=fix, required=not built, group="storage", parts=parts, facts=facts)


def look_at_service(*, required: bool) -> list[dict[str, Any]]:
    """Whether a service answers; a local one need not, because it is started when it is needed."""
    from sandlot.sdk import Client, LocalService

    facts: dict[str, Any] = {"running": False}
    try:
        with Client(autostart=False) as client:
            if client.target.local is not None and not LocalService(client.target.local).is_running():
                detail = "not running; it starts when it is needed"
                return [Finding("service", ok=True, detail=detail, required=False, group="service", facts=facts).dump()]
            found = client.service.version()
    except SandlotError as error:
        return [Finding("service", ok=False, detail=error.message, fix=error.hint, required=required, group="service", facts=facts).dump()]
    facts = {"running": True, "version": found.version, "pid": found.pid}
    detail = f"{client.target}, version {found.version}, process {found.pid}"
    return [Finding("service", ok=True, detail=detail, required=required, group="service", facts=facts).dump()]


def try_driver(*, name: str, data_dir: str, node: NodeId) -> list[dict[str, Any]]:
    """Boot a sandbox."""
    from sandlot.drivers.registry import DriverSettings, driver_names, open_driver
    from sandlot.host.checks.storage import nearest

    if name not in driver_names():
        return [Finding(name, ok=False, detail="this version has no driver for it", fix="Take it out of the settings.", group="isolation").dump()]
    # Whoever may not write to the state directory learns the runtime's version at least.
    place = nearest(Path(data_dir)) if os.geteuid() == 0 else Path(tempfile.gettempdir())
    try:
        _sweep_strays(place)
        with _folder(place, name, node) as folder:
            can = open_driver(name, DriverSettings(node=node, data_dir=folder)).probe()
    except SandlotError as error:
        return [Finding(name, ok=False, detail=error.message, fix=error.hint, group="isolation").dump()]
    except OSError as error:
        return [Finding(name, ok=False, detail=describe_error(error), fix="See data-dir.", group="isolation").dump()]
    found = check_driver(can)
    if os.geteuid() != 0 and found.ok is False and can.runtime:
        found = replace(found, ok=None, detail=f"{can.runtime}, not tried: only root can run this check", fix="", parts=())
    return [found.dump()]


def check_driver(can: Capabilities) -> Finding:
    """What a driver can do, and whether it can do what every sandbox needs."""
    from sandlot.core.admission import check_host
    from sandlot.model.errors import HostError
    from sandlot.model.ports import DriverCapability

    parts = tuple(Part(ability.value, can.can(ability), "" if can.can(ability) else can.why_not(ability)) for ability in DriverCapability)
    facts = {"runtime": can.runtime}
    detail = can.runtime or "no runtime"
    try:
        check_host(can)
    except HostError:
        why = _ITSELF.sub(".", next((part.detail for part in parts if not part.ok), ""))
        return Finding(can.driver, ok=False, detail=detail, fix=why, group="isolation", parts=parts, facts=facts)
    return Finding(can.driver, ok=True, detail=detail, group="isolation", parts=parts, facts=facts)


def sweep_after(*, name: str, data_dir: str, node: str) -> None:
    """Remove what a driver's try left that was killed."""
    from sandlot.host.checks.storage import nearest

    for place in (nearest(Path(data_dir)), Path(tempfile.gettempdir())):
        if (folder := place / f".sandlot-doctor-{name}.{node}").is_dir():
            _sweep(folder)


def _sweep_strays(place: Path) -> None:
    for folder in place.glob(".sandlot-doctor-*"):
        with contextlib.suppress(OSError, SandlotError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # whose doctor lives holds it
                _sweep(folder)
            finally:
                os.close(lock)


def _sweep(folder: Path) -> None:
    from sandlot.drivers.registry import DriverSettings, open_driver
    from sandlot.model.ids import NodeId

    named = _FOLDER.fullmatch(folder.name)
    if named is not None:
        driver = open_driver(named["driver"], DriverSettings(node=NodeId(named["node"]), data_dir=folder))
        asyncio.run(driver.sweep(()))
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _folder(place: Path, name: str, node: str) -> Iterator[Path]:
    folder = place / f".sandlot-doctor-{name}.{node}"
    folder.mkdir(mode=0o700)
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
        finally:
            os.close(lock)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
