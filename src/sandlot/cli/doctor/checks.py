"""The checks of ``sandlot doctor``: parts of the machine (``host/checks``), drivers, images and the service, in parallel.

Invariants:
- Each check that could block is a process with a deadline, so that the whole run takes no longer than the longest deadline.
- The deciding check boots a sandbox in the data directory with the driver of the default isolation. If it succeeds, failed checks of parts are
  reported but not required.
- Nothing is left behind, also by a killed run: the next run sweeps directories of earlier runs.
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
from dataclasses import asdict, dataclass, replace
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
"""Isolations that need each part of the machine."""
PLENTY_BYTES = {"data-dir": 2 * 1024**3, "cache-dir": 4 * 1024**3}
"""Recommended free space: files of a few sandboxes; two images of 1 GiB and their builds."""
DRIVER_DEADLINE_S = 90.0
"""A driver's own limits are 60 s for the boot of a sandbox, and some seconds for finding its runtime."""
_SWEEP_DEADLINE_S = 60.0
_FOLDER = re.compile(r"\.sandlot-doctor-(?P<driver>[a-z0-9_-]+)\.(?P<node>[a-z2-7]{4})")
_ITSELF = re.compile(r"[;,.]? ?[`']sandlot doctor[`'][^.]*\.")
"""Reference to ``sandlot doctor`` in a hint."""
_CHECKS = "sandlot.host.checks"
_LATE_FIX = "The check did not finish. Look at the machine's load, its disks and network file systems, and the kernel log (dmesg)."


@dataclass(frozen=True, slots=True)
class Report:
    """Result of all checks.

    Args:
        findings: Findings, sorted by group.
        default: Isolation of ``auto``; empty if the service of another machine was checked.
        allowed: Isolations that requests may use.
    """

    findings: tuple[Finding, ...]
    default: str = ""
    allowed: tuple[str, ...] = ()

    @property
    def can_run(self) -> bool:
        """True if sandboxes can run."""
        return all(finding.ok for finding in self.findings if finding.required)


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """A task and the names of its findings, which are reported also if the task fails."""

    task: Task
    group: str
    names: tuple[str, ...]


def examine(env: Mapping[str, str]) -> Report:
    """Run all checks, which takes some seconds.

    Args:
        env: Environment. With ``SANDLOT_URL``, only that service is checked; otherwise this machine with the settings in ``SANDLOT_*``.
    """
    if url := env.get("SANDLOT_URL", ""):
        service = DoctorCheck(
            Task("service", "sandlot.cli.doctor.checks:inspect_service", {"required": True}, deadline_s=60.0), "service", ("service",)
        )
        found = _findings([service], run([service.task]))
        return Report(tuple(replace(finding, facts={**finding.facts, "url": url}) for finding in found))
    settings, of_settings = _settings(env)
    from sandlot.host.checks import machine

    checks = _checks(settings)
    at_once = [of_settings, *machine.check_machine(), machine.check_program("mkfs.ext4", "apt-get install e2fsprogs")]
    found = at_once + _findings(checks, _run_checks(checks))
    return Report(
        tuple(_ordered(settle(found, settings.isolation_default, settings.isolation_allowed))), settings.isolation_default, settings.isolation_allowed
    )


def settle(found: Sequence[Finding], default: str, allowed: Sequence[str]) -> list[Finding]:
    """Return findings with ``required`` set.

    Args:
        found: Findings of all checks.
        default: Isolation of ``auto``.
        allowed: Isolations that requests may use.
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
        elif finding.name == "cache-dir" and built:  # built images are only read
            settled.append(replace(finding, required=False))
        else:
            settled.append(finding)
    return settled


def _ordered(found: Sequence[Finding]) -> list[Finding]:
    groups = list(
        dict.fromkeys(("machine", "control groups", "kernel", "programs", "storage", "isolation", "service", *(each.group for each in found)))
    )
    return sorted(found, key=lambda finding: groups.index(finding.group))  # stable: the order within a group is kept


def _settings(env: Mapping[str, str]) -> tuple[Settings, Finding]:
    from sandlot.server.settings import SYSTEM_CACHE_DIR, SYSTEM_DATA_DIR, Settings

    if os.geteuid() != 0:  # only root can start a service: check the directories of root's service
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


def _checks(settings: Settings) -> list[DoctorCheck]:
    from sandlot.drivers.registry import driver_names
    from sandlot.model.ids import new_node_id

    data, cache = str(settings.data_dir), str(settings.cache_dir)
    folders = {"data_dir": data, "cache_dir": cache}
    recipes_dir = None if settings.recipes_dir is None else str(settings.recipes_dir)
    images = {"cache_dir": cache, "recipes_dir": recipes_dir, "aliases": dict(settings.template_aliases)}
    drivers = list(dict.fromkeys((*driver_names(), *settings.isolation_allowed)))
    return [
        DoctorCheck(Task("cgroups", f"{_CHECKS}.cgroups:check_cgroups"), "control groups", ("cgroups", "cgroup-delegation", "cgroup-freezer")),
        DoctorCheck(Task("kernel", f"{_CHECKS}.kernel:check_kernel", deadline_s=60.0), "kernel", ("namespaces", "seccomp", "pidfds")),
        DoctorCheck(Task("storage", f"{_CHECKS}.storage:check_storage", {**folders, "plenty": PLENTY_BYTES}), "storage", ("data-dir", "cache-dir")),
        DoctorCheck(Task("loops", f"{_CHECKS}.storage:check_loops", {"data_dir": data}), "storage", ("loop-devices",)),
        DoctorCheck(Task("layers", f"{_CHECKS}.storage:check_layers", folders, deadline_s=30.0), "storage", ("shared-roots",)),
        DoctorCheck(Task("images", "sandlot.cli.doctor.checks:inspect_images", images, deadline_s=30.0), "storage", ("images",)),
        *(
            DoctorCheck(
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
        DoctorCheck(Task("service", "sandlot.cli.doctor.checks:inspect_service", {"required": False}, deadline_s=60.0), "service", ("service",)),
    ]


def _run_checks(checks: Sequence[DoctorCheck]) -> dict[str, Outcome]:
    """Run the checks, and clean up after killed ones."""
    drivers = [check.task for check in checks if check.group == "isolation"]
    outcomes: dict[str, Outcome] = {}
    try:
        outcomes = run([check.task for check in checks])
        return outcomes
    finally:
        killed = [task for task in drivers if task.name not in outcomes or outcomes[task.name].value is None]
        sweeps = [Task(task.name, "sandlot.cli.doctor.checks:sweep_after", task.keywords, deadline_s=_SWEEP_DEADLINE_S) for task in killed]
        run([Task("groups", f"{_CHECKS}.cgroups:sweep_groups"), *sweeps])


def _findings(checks: Sequence[DoctorCheck], outcomes: Mapping[str, Outcome]) -> list[Finding]:
    found = []
    for check in checks:
        outcome = outcomes[check.task.name]
        if outcome.value is not None:
            found += [findings.load(value) for value in outcome.value]
        else:
            found += [Finding(name, ok=False, detail=outcome.error, fix=_LATE_FIX if outcome.late else "", group=check.group) for name in check.names]
    return found


# Checks that run in processes of their own.
def inspect_images(*, cache_dir: str, recipes_dir: str | None, aliases: Mapping[str, str]) -> list[dict[str, Any]]:
    """Check the images of templates."""
    from sandlot.images.recipe_files import load_recipes
    from sandlot.images.store import ImageStore

    store = ImageStore(Path(cache_dir), load_recipes(Path(recipes_dir) if recipes_dir else None, aliases))
    names = store.names()
    try:
        built = [name for name in names if store.find(name) is not None]
    except PermissionError:
        return [Finding("images", ok=None, detail="not checked: only root can run this check", group="storage").dump()]
    return [check_images(built, names, builder=shutil.which("mmdebstrap") is not None).dump()]


def check_images(built: Sequence[str], names: Sequence[str], *, builder: bool) -> Finding:
    """Return the finding about images.

    Args:
        built: Names of built templates.
        names: Names of all templates.
        builder: True if mmdebstrap is installed.
    """
    missing = [name for name in names if name not in built]
    parts = tuple(Part(name, name in built, "" if name in built else "not built yet") for name in names)
    facts = {"built": list(built), "builder": builder}
    detail = f"built: {', '.join(built) or 'none'}"
    if not missing:
        return Finding("images", ok=True, detail=detail, group="storage", parts=parts, facts=facts)
    detail += f"; the first use builds: {', '.join(missing)}" if builder else "; mmdebstrap is missing, so no other image can be built"
    fix = "" if builder else "apt-get install mmdebstrap."
    # A template that its first use can build counts as available.
    parts = tuple(replace(part, ok=True) for part in parts) if builder else parts
    return Finding("images", ok=builder, detail=detail, fix=fix, required=not built, group="storage", parts=parts, facts=facts)


def inspect_service(*, required: bool) -> list[dict[str, Any]]:
    """Check that the service responds. A local service may be stopped, because clients start it."""
    from sandlot.sdk import Client, LocalService

    facts: dict[str, Any] = {"running": False}
    try:
        with Client(autostart=False) as client:
            if client.target.local is not None and not LocalService(client.target.local).is_running():
                detail = "not running; the first client starts it"
                return [Finding("service", ok=True, detail=detail, required=False, group="service", facts=facts).dump()]
            found = client.service.version()
    except SandlotError as error:
        return [Finding("service", ok=False, detail=error.message, fix=error.hint, required=required, group="service", facts=facts).dump()]
    facts = {"running": True, "version": found.version, "pid": found.pid}
    detail = f"{client.target}, version {found.version}, process {found.pid}"
    return [Finding("service", ok=True, detail=detail, required=required, group="service", facts=facts).dump()]


def try_driver(*, name: str, data_dir: str, node: NodeId) -> list[dict[str, Any]]:
    """Boot a sandbox with a driver."""
    from sandlot.drivers.registry import DriverSettings, driver_names, open_driver
    from sandlot.host.checks.storage import nearest

    if name not in driver_names():
        return [
            Finding(
                name, ok=False, detail="this version has no such driver", fix="Remove it from SANDLOT_ISOLATION_ALLOWED.", group="isolation"
            ).dump()
        ]
    # Users other than root cannot write to the data directory; they still get the version of the runtime.
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
    """Return the finding about a driver, which fails if the driver lacks a capability that every sandbox needs."""
    from sandlot.core.admission import check_host
    from sandlot.model.errors import HostError
    from sandlot.model.ports import DriverCapability

    parts = tuple(Part(ability.value, can.can(ability), can.why_not(ability)) for ability in DriverCapability)
    facts = {"runtime": can.runtime and asdict(can.runtime)}
    detail = str(can.runtime or "no runtime")
    try:
        check_host(can)
    except HostError:
        why = _ITSELF.sub(".", next((part.detail for part in parts if not part.ok), ""))
        return Finding(can.driver, ok=False, detail=detail, fix=why, group="isolation", parts=parts, facts=facts)
    return Finding(can.driver, ok=True, detail=detail, group="isolation", parts=parts, facts=facts)


def sweep_after(*, name: str, data_dir: str, node: str) -> None:
    """Clean up after a killed check of a driver."""
    from sandlot.host.checks.storage import nearest

    for place in (nearest(Path(data_dir)), Path(tempfile.gettempdir())):
        if (folder := place / f".sandlot-doctor-{name}.{node}").is_dir():
            _sweep(folder)


def _sweep_strays(place: Path) -> None:
    for folder in place.glob(".sandlot-doctor-*"):
        with contextlib.suppress(OSError, SandlotError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a running doctor holds the lock
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
