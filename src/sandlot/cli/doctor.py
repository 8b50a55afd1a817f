"""``sandlot doctor``: can this machine run sandboxes, found by running one, and what would help.

Exit status 0 means that it can; what is merely missing comfort does not count.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sandlot.model.ports import Capabilities
    from sandlot.server.settings import Settings

SUPPORTED = {"debian": ("12", "13")}
"""os-release's ID -> VERSION_IDs that Sandlot is tested on."""
DISK_BYTES = 4 * 1024**3
"""Two images of 1 GiB and what their building takes."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    Args:
        name: What.
        ok: Whether it is as it should be.
        detail: What was found.
        hint: What to do where it is not.
        required: Whether sandboxes cannot run without it.
        parts: Finer findings: name, whether it is so, and why not.
    """

    name: str
    ok: bool
    detail: str
    hint: str = ""
    required: bool = True
    parts: tuple[tuple[str, bool, str], ...] = field(default=())


def doctor(*, as_json: Annotated[bool, typer.Option("--json", help="Everything that was found, as JSON.")] = False) -> None:
    """Check whether this machine can run sandboxes, by running one."""
    from sandlot.server.settings import Settings

    url = os.environ.get("SANDLOT_URL", "")
    checks = [check_service(url)] if url else _check_here(Settings.from_env())
    able = healthy(checks)
    if as_json:
        typer.echo(json.dumps({"ok": able, "checks": [asdict(check) for check in checks]}, indent=2))
    else:
        for line in report(checks):
            typer.echo(line)
    raise typer.Exit(0 if able else 1)


def healthy(checks: Sequence[Check]) -> bool:
    """Whether sandboxes can run."""
    return all(check.ok for check in checks if check.required)


def report(checks: Sequence[Check]) -> list[str]:
    """The findings as lines for a person."""
    lines = []
    width = max(len(check.name) for check in checks)
    for check in checks:
        mark = "ok" if check.ok else "NO" if check.required else "--"
        lines.append(f"{mark}  {check.name.ljust(width)}  {check.detail}")
        if not check.ok and check.hint:
            lines.append(f"    {' ' * width}  {check.hint}")
        lines += [f"    {' ' * width}  {'ok' if fine else '--'} {name}{f': {why}' if why else ''}" for name, fine, why in check.parts]
    lines.append("Sandboxes can run." if healthy(checks) else "Sandboxes cannot run: see the lines that begin with NO.")
    return lines


def check_system(release: dict[str, str], machine: str, kernel: str) -> Check:
    """The operating system; others than the supported ones may work.

    Args:
        release: os-release(5).
        machine: The architecture, as uname(1) has it.
        kernel: The kernel's release.
    """
    name = release.get("PRETTY_NAME") or release.get("NAME") or "an unknown system"
    detail = f"{name}, Linux {kernel}, {machine}"
    if machine != "x86_64":
        return Check("system", ok=False, detail=detail, hint="Sandlot runs on x86-64 only.")
    known = release.get("VERSION_ID", "") in SUPPORTED.get(release.get("ID", ""), ())
    return Check("system", ok=known, detail=detail, hint="Tested on Debian 12 and 13; elsewhere it is best effort.", required=False)


def check_user(uid: int) -> Check:
    """Whether this user may make sandboxes."""
    if uid == 0:
        return Check("user", ok=True, detail="root")
    return Check(
        "user",
        ok=False,
        detail=f"uid {uid}",
        hint="Only root can start sandboxes: use sudo, or set SANDLOT_URL and SANDLOT_API_KEY of a service that runs.",
    )


def check_driver(found: Capabilities) -> Check:
    """What a driver can do, and whether it can start a sandbox at all."""
    from sandlot.model.ports import Ability

    parts = tuple((ability.value, found.can(ability), "" if found.can(ability) else found.why_not(ability)) for ability in Ability)
    return Check(found.driver, ok=found.can(Ability.BOOT), detail=found.runtime or "no runtime", hint=found.why_not(Ability.BOOT), parts=parts)


def check_images(built: Sequence[str], names: Sequence[str], *, builder: bool) -> Check:
    """What sandboxes start from.

    Args:
        built: Templates that have been built.
        names: All templates.
        builder: Whether mmdebstrap is there.
    """
    missing = [name for name in names if name not in built]
    if not missing:
        return Check("images", ok=True, detail=f"built: {', '.join(built)}")
    detail = f"built: {', '.join(built) or 'none'}; the first use builds: {', '.join(missing)}"
    return Check("images", ok=builder, detail=detail, hint="Install the package mmdebstrap.", required=not built)


def check_disk(folder: Path) -> Check:
    """Room for images and sandboxes."""
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    free = shutil.disk_usage(existing).free
    return Check(
        "disk",
        ok=free >= DISK_BYTES,
        detail=f"{free / 1024**3:.1f} GiB free for {folder}",
        hint="Images and sandboxes take some GiB.",
        required=False,
    )


def check_service(url: str = "") -> Check:
    """Whether a service answers; a local one need not, because it is started when it is needed."""
    from sandlot.model.errors import SandlotError
    from sandlot.sdk import Client, local

    with Client(autostart=False) as client:
        try:
            if client.target.socket is not None and client.target.local is not None and not local.answers(client.target.socket):
                return Check("service", ok=True, detail="not running; it starts when it is needed", required=False)
            found = client.version()
        except SandlotError as error:
            return Check("service", ok=False, detail=error.message, hint=error.hint, required=bool(url))
    return Check("service", ok=True, detail=f"{client.target}, version {found['version']}, process {found.get('pid', '?')}", required=bool(url))


def _check_here(settings: Settings) -> list[Check]:
    checks = [check_system(_os_release(), platform.machine(), platform.release()), check_user(os.geteuid())]
    if checks[-1].ok:
        checks += [_check_driver(settings.isolation_default), _check_images(settings), check_disk(settings.cache_dir), check_service()]
    return checks


def _check_driver(name: str) -> Check:
    from sandlot.drivers.registry import DriverSettings, open_driver
    from sandlot.model.errors import SandlotError
    from sandlot.model.ids import new_node_id

    with tempfile.TemporaryDirectory(prefix="sandlot-doctor-") as folder:
        try:
            return check_driver(open_driver(name, DriverSettings(node=new_node_id(), data_dir=Path(folder))).probe())
        except SandlotError as error:
            return Check(name, ok=False, detail=error.message, hint=error.hint)


def _check_images(settings: Settings) -> Check:
    from sandlot.images.recipe import builtin
    from sandlot.images.store import ImageStore

    store = ImageStore(settings.cache_dir)
    names = sorted(builtin())
    return check_images([name for name in names if store.find(name) is not None], names, builder=shutil.which("mmdebstrap") is not None)


def _os_release() -> dict[str, str]:
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}
