"""Arguments, options, value types and completion that several commands share.

The SDK is imported inside the functions, so that ``--help`` and shell completion start quickly.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sandlot.sdk import Client, Mount, Network

NEVER = "never"
MAX_PORT = 65_535
_SANDBOX_ID = re.compile(r"sb-[a-z2-7]{4}-[a-z2-7]{16}")
_PERIODS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


def query_client() -> Client:
    """Return a client for commands that need existing sandboxes.

    A stopped local service is started only if it left sandboxes behind: otherwise a command such as ``ls`` would start a service that has nothing
    to show.
    """
    from sandlot.sdk import Client, LocalService

    client = Client(autostart=False)
    local = client.target.local
    if local is None or not LocalService(local).has_sandboxes():
        return client
    client.close()
    return Client()


def resolve_sandbox_id(client: Client, sandbox: str | None) -> str | None:
    """Return the id of a sandbox for a filter, which takes ids only; an id is not looked up, because its sandbox may have been forgotten."""
    if sandbox is None or _SANDBOX_ID.fullmatch(sandbox):
        return sandbox
    return client.sandboxes.get(sandbox).id


# Value types. Each parser raises typer.BadParameter, whose message gets the name of the option.


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A ``KEY=VALUE`` option."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class When:
    """A point in time; None for never."""

    at: datetime | None


@dataclass(frozen=True, slots=True)
class PortMapping:
    """A local port, 0 for any free one, and the port of a sandbox."""

    local: int
    remote: int


@dataclass(frozen=True, slots=True)
class VolumeMount:
    """A volume and the path of its mount in a sandbox."""

    volume: str
    path: str
    read_only: bool


def parse_key_value(text: str) -> KeyValue:
    """Parse ``KEY=VALUE``; the value can be empty and can contain ``=``."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise typer.BadParameter(f"{text!r} is not KEY=VALUE.")
    return KeyValue(key, value)


def parse_size_bytes(text: str) -> int:
    """Parse a number of bytes, or a number with a unit such as ``512M`` or ``1.5GiB``."""
    from sandlot.sdk import InvalidRequestError, parse_size

    try:
        return parse_size(text)
    except InvalidRequestError as error:
        raise typer.BadParameter(str(error)) from None


def parse_when(text: str) -> When:
    """Parse an ISO 8601 time (local without a time zone), a period from now such as ``30d``, or ``never``."""
    if text == NEVER:
        return When(None)
    with suppress(ValueError, OverflowError):
        if text[-1:] in _PERIODS_S and text[:-1].isascii() and text[:-1].isdigit():
            return When(datetime.now(UTC) + timedelta(seconds=int(text[:-1]) * _PERIODS_S[text[-1]]))
        return When(datetime.fromisoformat(text).astimezone(UTC))
    raise typer.BadParameter(f"{text!r} is not a time. Pass an ISO 8601 time, a period from now such as 30d, or never.")


def parse_ports(text: str) -> PortMapping:
    """Parse ``LOCAL:PORT``, or ``PORT`` for the same port on both sides."""
    local, colon, remote = text.rpartition(":")
    local = local if colon else remote
    for port, lowest in ((remote, 1), (local, 0)):
        if not (port.isascii() and port.isdigit() and lowest <= int(port) <= MAX_PORT):
            raise typer.BadParameter(f"{text!r} is not [LOCAL:]PORT with ports up to {MAX_PORT}.")
    return PortMapping(int(local), int(remote))


def parse_volume(text: str) -> VolumeMount:
    """Parse ``NAME:/PATH`` or ``NAME:/PATH:ro``."""
    volume, _, path = text.partition(":")
    read_only = path.endswith(":ro")
    path = path.removesuffix(":ro").removesuffix(":rw")
    if not volume or not path.startswith("/"):
        raise typer.BadParameter(f"{text!r} is not NAME:/PATH or NAME:/PATH:ro.")
    return VolumeMount(volume, path, read_only)


def as_dict(values: Iterable[KeyValue] | None) -> dict[str, str]:
    """Return ``KEY=VALUE`` options as a mapping; the last value of a key applies."""
    return {each.key: each.value for each in values or ()}


def as_mounts(values: Iterable[VolumeMount] | None) -> dict[str, Mount] | None:
    """Return ``--volume`` options by path, as the SDK takes them.

    Raises:
        typer.BadParameter: Two volumes have the same path.
    """
    from sandlot.sdk import Mount

    mounts: dict[str, Mount] = {}
    for each in values or ():
        if each.path in mounts:
            raise typer.BadParameter(f"{each.path} is given twice.", param_hint="--volume")
        mounts[each.path] = Mount(each.volume, each.path, read_only=each.read_only)
    return mounts or None


def as_network(mode: str | None, allow: list[str] | None, deny: list[str] | None, *, packages: bool | None) -> Network | None:
    """Return the options of a network policy as the SDK takes them; without a mode, rules are those of an allowlist."""
    from sandlot.sdk import Network

    if mode is None and not allow and not deny:
        if packages is not None:
            raise typer.BadParameter("It needs --network or --allow.", param_hint="--packages/--no-packages")
        return None
    return Network(mode or "allowlist", allow or (), deny or (), packages)


# Shell completion: empty if no service answers.


def complete_sandboxes(incomplete: str) -> list[tuple[str, str]]:
    """Complete ids and names of live sandboxes."""
    from sandlot.sdk import SandlotError

    with suppress(SandlotError, OSError), _running_client() as client:
        live = client.sandboxes.list(limit=100)
        found = [(each.id, each.name or each.template) for each in live] + [(each.name, each.id) for each in live if each.name]
        return [each for each in found if each[0].startswith(incomplete)]
    return []


def complete_snapshots(incomplete: str) -> list[tuple[str, str]]:
    """Complete names of snapshots, and ids of snapshots without a name."""
    from sandlot.sdk import SandlotError

    with suppress(SandlotError, OSError), _running_client() as client:
        found = [(each.name or each.id, f"{each.kind} of {each.template}") for each in client.snapshots.list(limit=100)]
        return [each for each in found if each[0].startswith(incomplete)]
    return []


def complete_templates(incomplete: str) -> list[tuple[str, str]]:
    """Complete names of the templates that come with Sandlot."""
    from sandlot.images.recipe_files import builtin_templates

    return [(name, recipe.description) for name, recipe in sorted(builtin_templates().items()) if name.startswith(incomplete)]


def _running_client() -> Client:
    """Return a client that starts no service.

    Raises:
        OSError: The local service is not running.
    """
    from sandlot.sdk import Client, LocalService

    client = Client(autostart=False)
    if client.target.local is not None and not LocalService(client.target.local).is_running():
        client.close()
        raise ConnectionRefusedError
    return client


SandboxId = Annotated[str, typer.Argument(metavar="SANDBOX", help="Id or name of the sandbox.", autocompletion=complete_sandboxes)]
SandboxIds = Annotated[list[str], typer.Argument(metavar="SANDBOX", help="Ids or names of sandboxes.", autocompletion=complete_sandboxes)]
JsonOutput = Annotated[bool, typer.Option("--json", help="Print JSON: sizes in bytes, durations in seconds, times in ISO 8601.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print ids only.")]
Limit = Annotated[int | None, typer.Option("--limit", "-n", metavar="N", min=1, help="Print at most N entries.")]
Raw = Annotated[bool, typer.Option("--raw", help="Do not escape control characters on a terminal.")]
Env = Annotated[
    list[KeyValue] | None,
    typer.Option("--env", "-e", metavar="KEY=VALUE", help="Environment variable; repeat for more.", parser=parse_key_value),
]
Metadata = Annotated[
    list[KeyValue] | None,
    typer.Option("--metadata", "-m", metavar="KEY=VALUE", help="Metadata entry; repeat for more.", parser=parse_key_value),
]
NetworkMode = Annotated[
    str | None,
    typer.Option(
        "--network",
        metavar="MODE",
        help="Network mode: none, packages (package indexes only), allowlist (what --allow names) or internet. (default: packages; with --allow "
        "or --deny: allowlist)",
    ),
]
Allow = Annotated[
    list[str] | None,
    typer.Option("--allow", metavar="RULE", help="Allow this destination, such as github.com, '*.example.com:443' or 192.0.2.0/24; repeat for more."),
]
Deny = Annotated[list[str] | None, typer.Option("--deny", metavar="RULE", help="Deny this destination, even if --allow names it; repeat for more.")]
Packages = Annotated[
    bool | None,
    typer.Option("--packages/--no-packages", help="Read access to the package indexes with an allowlist or the internet. (default: --packages)"),
]
PublicPorts = Annotated[
    bool | None,
    typer.Option("--public-ports/--no-public-ports", help="Open preview URLs of the ports without a token. (default of a new sandbox: no)"),
]
TemplateName = Annotated[
    str | None,
    typer.Option("--template", "-t", metavar="NAME", help="Template of the sandbox. (default: code-interpreter)", autocompletion=complete_templates),
]
Cwd = Annotated[str | None, typer.Option("--cwd", "-w", metavar="PATH", help="Working directory. (default: that of the sandbox)")]
User = Annotated[
    str | None,
    typer.Option("--user", "-u", metavar="USER", help="User in the sandbox, by name or uid. (default: user)"),
]
Tag = Annotated[str | None, typer.Option("--tag", metavar="TEXT", help="Tag of the process, which `sandlot ps` shows.")]
Language = Annotated[
    str | None, typer.Option("--language", "-l", metavar="NAME", help="python, javascript, typescript, bash or r. (default: python)")
]
