"""``sandlot template``: list and show templates."""

from __future__ import annotations

from typing import Annotated

import typer

from sandlot.cli.options import JsonOutput, complete_templates
from sandlot.cli.output import as_json, table, visible

templates = typer.Typer(help="List and show templates.", no_args_is_help=True)


@templates.command("ls")
def ls(*, quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print names only.")] = False, json_output: JsonOutput = False) -> None:
    """List templates that sandboxes can start from.

    A template that is not built is built by the first sandbox that starts from it.
    """
    from sandlot.sdk import Client

    with Client() as client:
        found = client.templates.list()
    if json_output:
        typer.echo(as_json(found))
    elif quiet:
        for each in found:
            typer.echo(visible(each.name))
    else:
        rows = [[each.name, each.building or ("yes" if each.built else "no"), each.description] for each in found]
        table(["NAME", "BUILT", "DESCRIPTION"], rows)


@templates.command("info")
def info(
    *,
    template: Annotated[str, typer.Argument(metavar="TEMPLATE", help="Name of the template.", autocompletion=complete_templates)],
    json_output: JsonOutput = False,
) -> None:
    """Show one template."""
    from sandlot.sdk import Client

    with Client() as client:
        found = client.templates.get(template)
    if json_output:
        typer.echo(as_json(found))
        return
    details = {
        "name": found.name,
        "description": found.description,
        "built": "yes" if found.built else "no",
        "building": found.building,
        "digest": found.digest,
    }
    table(["FIELD", "VALUE"], [[field, value] for field, value in details.items() if value])
