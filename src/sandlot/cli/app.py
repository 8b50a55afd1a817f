"""The command tree. The order of the commands is the order in ``sandlot --help``."""

from __future__ import annotations

from typing import Annotated

import typer

from sandlot.cli import (
    agents,
    contexts,
    events,
    executions,
    file_store,
    files,
    images,
    keys,
    lifecycle,
    mcp,
    network,
    packages,
    pools,
    processes,
    programs,
    run,
    sandboxes,
    service,
    snapshots,
    templates,
    terminals,
    tunnels,
    volumes,
    webhooks,
)
from sandlot.cli.bench import command as bench
from sandlot.cli.demo import command as demo
from sandlot.cli.doctor import command as doctor
from sandlot.cli.options import JsonOutput
from sandlot.cli.repl import session as repl
from sandlot.cli.version import version_text

SERVICE = "Service"
"""Heading of the commands for operators in the help."""

app = typer.Typer(
    name="sandlot",
    help="Run code of AI agents in sandboxes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(*, enabled: bool) -> None:
    if enabled:
        typer.echo(version_text())
        raise typer.Exit


@app.callback()
def root(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=lambda value: _print_version(enabled=value), is_eager=True)
    ] = False,
) -> None:
    """Run code of AI agents in sandboxes."""


def version(*, json_output: JsonOutput = False) -> None:
    """Print the version."""
    typer.echo(version_text(json_output=json_output))


app.command("run")(run.run)
app.command("create")(sandboxes.create)
app.command("ls")(sandboxes.ls)
app.command("info")(sandboxes.info)
app.command("update")(sandboxes.update)
app.command("usage")(sandboxes.usage)
app.command("rm")(sandboxes.rm)
app.command("exec", context_settings=run.EXEC_SETTINGS)(run.execute)
app.command("shell")(terminals.shell)
app.command("repl")(repl.repl)
app.command("cp")(files.cp)
app.command("install")(packages.install)
app.command("ps")(processes.ps)
app.command("logs")(processes.logs)
app.add_typer(processes.process, name="process")
app.command("ports")(processes.ports)
app.command("url")(tunnels.url)
app.add_typer(network.network, name="network")
app.command("forward")(tunnels.forward)
app.command("pause")(lifecycle.pause)
app.command("resume")(lifecycle.resume)
app.command("hibernate")(lifecycle.hibernate)
app.command("fork")(lifecycle.fork)
app.command("fork-tree")(lifecycle.fork_tree)
app.command("promote")(lifecycle.promote)
app.command("grade")(programs.grade)
app.command("languages")(programs.languages)
app.add_typer(mcp.mcp, name="mcp")
app.add_typer(contexts.contexts, name="context")
app.add_typer(files.fs, name="fs")
app.add_typer(snapshots.snapshots, name="snapshot")
app.add_typer(volumes.volumes, name="volume")
app.add_typer(file_store.store, name="store")
app.add_typer(executions.executions, name="execution")
app.command("export")(executions.export)
app.command("events")(events.events)
app.add_typer(webhooks.webhooks, name="webhook")
app.add_typer(agents.agents, name="agent")
app.add_typer(pools.pools, name="pool", rich_help_panel=SERVICE)
app.add_typer(keys.keys, name="key", rich_help_panel=SERVICE)
app.command("serve", rich_help_panel=SERVICE)(service.serve)
app.add_typer(service.service, name="service", rich_help_panel=SERVICE)
app.add_typer(templates.templates, name="template", rich_help_panel=SERVICE)
app.add_typer(images.images, name="image", rich_help_panel=SERVICE)
app.command("doctor", rich_help_panel=SERVICE)(doctor.doctor)
app.command("bench", rich_help_panel=SERVICE)(bench.bench)
app.command("demo", rich_help_panel=SERVICE)(demo.demo)
app.command("version", rich_help_panel=SERVICE)(version)
