"""``sandlot serve`` and ``sandlot service``: run, inspect and stop a service."""

from __future__ import annotations

import os
import select
from dataclasses import asdict, replace
from typing import Annotated

import typer

from sandlot.cli.options import JsonOutput
from sandlot.cli.output import as_json, note, size, table

DEFAULT_HOST = "127.0.0.1"
STOP_TIMEOUT_S = 60.0

service = typer.Typer(help="Inspect the service's node, and stop the local service.", no_args_is_help=True)


def serve(
    *,
    host: Annotated[str | None, typer.Option("--host", metavar="ADDRESS", help="Address to listen on. (default: 127.0.0.1)")] = None,
    port: Annotated[int | None, typer.Option("--port", metavar="PORT", help="Port to listen on. (default: 8080)")] = None,
    preview_port: Annotated[int | None, typer.Option("--preview-port", metavar="PORT", help="Port of preview URLs. (default: no previews)")] = None,
) -> None:
    """Serve the API over TCP; every request needs a key."""
    from sandlot.server import process as server
    from sandlot.server.settings import Settings

    settings = Settings.load(host=host, port=port, preview_port=preview_port)
    raise typer.Exit(server.main(settings if settings.host else replace(settings, host=DEFAULT_HOST), local=False))


@service.command("stop")
def stop(*, json_output: JsonOutput = False) -> None:
    """Stop the local service; sandboxes keep running.

    The next service takes them over.
    """
    from sandlot.sdk import Client, LocalService

    with Client(autostart=False) as client:
        if client.target.local is None:
            raise typer.BadParameter("SANDLOT_URL is set, and only the local service can be stopped. Unset it.")
        local = LocalService(client.target.local)
        if not local.is_running():
            note("The local service is not running.")
            if json_output:
                typer.echo(as_json({"stopped": False, "sandboxes": None}))
            return
        result = client.service.stop()
    if not _wait_for_exit(result.pid, STOP_TIMEOUT_S):
        note(f"sandlot: the service (process {result.pid}) is still stopping after {STOP_TIMEOUT_S:g} s; see {local.log_file}.")
        raise typer.Exit(1)
    note("The local service has stopped.")
    if result.sandboxes:
        running = "1 sandbox keeps" if result.sandboxes == 1 else f"{result.sandboxes} sandboxes keep"
        note(f"{running} running. List them with `sandlot ls`, end them with `sandlot rm --all`; both start the service again.")
    if json_output:
        typer.echo(as_json({"stopped": True, "sandboxes": result.sandboxes}))


@service.command("capacity")
def capacity(*, json_output: JsonOutput = False) -> None:
    """Show the node's allocatable, reserved and available resources."""
    from sandlot.sdk import Client

    with Client(autostart=False) as client:
        found = client.service.capacity()
    if json_output:
        typer.echo(as_json(found))
        return
    columns = [asdict(each) for each in (found.allocatable, found.reserved, found.available)]
    rows = [[name, *(size(column[f"{name}_bytes"]) for column in columns)] for name in ("memory", "disk")]
    rows.append(["tasks", *(str(column["pids"]) for column in columns)])
    rows.append(["sandboxes", *map(str, (found.max_sandboxes, found.sandboxes, found.max_sandboxes - found.sandboxes))])
    table(["RESOURCE", "ALLOCATABLE", "RESERVED", "AVAILABLE"], rows)


def _wait_for_exit(pid: int, timeout_s: float) -> bool:
    """Wait for the exit of a process that is not a child, pidfd_open(2); False if it did not exit in time."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        readable, _, _ = select.select([descriptor], [], [], timeout_s)
        return bool(readable)
    finally:
        os.close(descriptor)
