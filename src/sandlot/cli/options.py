"""Arguments and options that several commands have: one name, one help, one completion each."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from sandlot.sdk import Client


def asking() -> Client:
    """A client for a question about sandboxes that there are already.

    A local service that does not run is started only where one has left sandboxes, which it then takes over: without any, it has nothing to tell.
    """
    from sandlot.sdk import Client, LocalService
    from sandlot.sdk.config import resolve

    folder = resolve(os.environ).local
    return Client(autostart=folder is not None and LocalService(folder).has_sandboxes())


def live_ids(incomplete: str) -> list[tuple[str, str]]:
    """For the shell's completion: the ids of the sandboxes that live, and what they are. None where no service answers."""
    from sandlot.model.errors import SandlotError
    from sandlot.sdk import Client, LocalService

    with suppress(SandlotError, OSError), Client(autostart=False) as client:
        target = client.target
        if target.local is None or LocalService(target.local).is_running():
            return [(info.id, info.name or info.template) for info in client.sandboxes.list(limit=100) if info.id.startswith(incomplete)]
    return []


def snapshot_names(incomplete: str) -> list[tuple[str, str]]:
    """For the shell's completion: the snapshots by their names, and by their ids where they have none. None where no service answers."""
    from sandlot.model.errors import SandlotError
    from sandlot.sdk import Client, LocalService

    with suppress(SandlotError, OSError), Client(autostart=False) as client:
        target = client.target
        if target.local is None or LocalService(target.local).is_running():
            found = [(each.name or each.id, f"{each.kind} of {each.template}") for each in client.snapshots.list(limit=100)]
            return [each for each in found if each[0].startswith(incomplete)]
    return []


def template_names(incomplete: str) -> list[tuple[str, str]]:
    """For the shell's completion: what a sandbox can be started from."""
    from sandlot.images.recipe import builtin

    return [(name, recipe.description) for name, recipe in sorted(builtin().items()) if name.startswith(incomplete)]


_PERIODS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


def parse_when(text: str) -> datetime | Literal["never"]:
    """Return the time that an option means: an ISO 8601 time (local without a time zone), a period from now such as ``30d``, or ``never``.

    Raises:
        typer.BadParameter: The text has no such form, or the time is out of range.
    """
    if text == "never":
        return "never"
    with suppress(ValueError, OverflowError):
        if text[-1:] in _PERIODS_S and text[:-1].isascii() and text[:-1].isdigit():
            return datetime.now(UTC) + timedelta(seconds=int(text[:-1]) * _PERIODS_S[text[-1]])
        return datetime.fromisoformat(text).astimezone(UTC)
    raise typer.BadParameter(f"{text!r} is not a time. Use an ISO 8601 time, a period from now such as 30d, or never.")


SandboxId = Annotated[str, typer.Argument(metavar="ID", help="The sandbox.", autocompletion=live_ids)]
InJson = Annotated[bool, typer.Option("--json", help="As JSON, for programs: sizes in bytes, durations in seconds.")]
Raw = Annotated[bool, typer.Option("--raw", help="Also to a terminal every byte as it is: what commands a terminal then does.")]
Metadata = Annotated[list[str] | None, typer.Option("--metadata", "-m", metavar="K=V", help="Words of yours; may be given again.")]
TemplateName = Annotated[
    str | None,
    typer.Option("--template", "-t", metavar="NAME", help="What it starts from. (default: code-interpreter)", autocompletion=template_names),
]
