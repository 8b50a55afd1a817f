"""``sandlot serve``, ``stop``, ``capacity``, ``templates`` and ``version``."""

from __future__ import annotations

import os
import select
from dataclasses import replace
from typing import Annotated

import typer

from sandlot.cli.options import InJson
from sandlot.cli.output import as_json, note, size, table

DEFAULT_HOST = "127.0.0.1"
STOP_TIMEOUT_S = 60.0


def serve(
    *,
    host: Annotated[str | None, typer.Option("--host", metavar="ADDRESS", help="Address to listen on. (default: 127.0.0.1)")] = None,
    port: Annotated[int | None, typer.Option("--port", metavar="PORT", help="(default: 8080)")] = None,
) -> None:
    """Serve the API on TCP, with keys, until it is told to stop."""
    from sandlot.server import process as server
    from sandlot.server.settings import Settings

    settings = Settings.load(host=host, port=port)
    raise typer.Exit(server.main(settings if settings.host else replace(settings, host=DEFAULT_HOST), local=False))


def stop(*, in_json: InJson = False) -> None:
    """End the local service, not its sandboxes.

    They live on, and the next service takes them over.
    """
    from sandlot.sdk import Client, LocalService

    with Client(autostart=False) as client:
        if client.target.local is None:
            raise typer.BadParameter("SANDLOT_URL is set: only the local service can be stopped from here.")
        local = LocalService(client.target.local)
        if not local.is_running():
            note("No local service runs.")
            if in_json:
                typer.echo(as_json({"stopped": False, "sandboxes": None}))
            return
        stopping = client.service.stop()
    if not _ends(stopping.pid, STOP_TIMEOUT_S):
        note(f"sandlot: the service (process {stopping.pid}) has not ended within {STOP_TIMEOUT_S:g} s; see {local.log_file}.")
        raise typer.Exit(1)
    note("The local service has ended.")
    if stopping.sandboxes:
        lives = "1 sandbox lives" if stopping.sandboxes == 1 else f"{stopping.sandboxes} sandboxes live"
        note(f"{lives} on: `sandlot ls` shows them, `sandlot rm --all` removes them; either starts the service again.")
    if in_json:
        typer.echo(as_json({"stopped": True, "sandboxes": stopping.sandboxes}))


def capacity(*, in_json: InJson = False) -> None:
    """Show the node's allocatable, reserved and available resources."""
    from sandlot.sdk import Client

    with Client(autostart=False) as client:
        found = client.service.capacity()
    if in_json:
        typer.echo(as_json(found))
        return
    columns = (found.allocatable, found.reserved, found.available)
    left = found.max_sandboxes - found.sandboxes
    rows = [
        ["memory", *(size(column.memory_bytes) for column in columns)],
        ["disk", *(size(column.disk_bytes) for column in columns)],
        ["tasks", *(str(column.pids) for column in columns)],
        ["sandboxes", *map(str, (found.max_sandboxes, found.sandboxes, left))],
    ]
    table(["RESOURCE", "ALLOCATABLE", "RESERVED", "AVAILABLE"], rows)


def templates(*, in_json: InJson = False) -> None:
    """List what a sandbox can be started from.

    One that is not built yet is built by the first sandbox that asks for it.
    """
    from sandlot.sdk import Client

    with Client() as client:
        found = client.templates.list()
    if in_json:
        typer.echo(as_json(found))
        return
    rows = [[each.name, each.building or ("yes" if each.built else "no"), each.description] for each in found]
    table(["TEMPLATE", "BUILT", "DESCRIPTION"], rows)


def _ends(pid: int, timeout_s: float) -> bool:
    """Wait for a process that is not our child (pidfd_open(2)); whether it ended in time."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        readable, _, _ = select.select([descriptor], [], [], timeout_s)
        return bool(readable)
    finally:
        os.close(descriptor)


def version(*, in_json: InJson = False) -> None:
    """Print Sandlot's version."""
    from sandlot import __version__

    typer.echo(as_json({"version": __version__}) if in_json else f"sandlot {__version__}")
