"""``sandlot template``: build, list, show, tag and delete templates."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.bulk import run_for_each
from sandlot.cli.options import JsonOutput, Quiet, complete_templates, query_client
from sandlot.cli.output import age, as_json, note, print_ids, size, table, visible

if TYPE_CHECKING:
    from sandlot.sdk import BuildLine

templates = typer.Typer(help="Build, list, tag and delete templates.", no_args_is_help=True)

Templates = Annotated[list[str], typer.Argument(metavar="TEMPLATE", help="Names or ids of the templates.", autocompletion=complete_templates)]
Template = Annotated[str, typer.Argument(metavar="TEMPLATE", help="Name or id of the template.", autocompletion=complete_templates)]


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
        "languages": ", ".join(f"{name} {version}" if version else name for name, version in found.languages.items()),
        "cpus": f"{found.limits.cpus:g}",
        "memory": size(found.limits.memory_bytes),
        "disk": size(found.limits.disk_bytes),
        "pids": str(found.limits.pids),
    }
    table(["FIELD", "VALUE"], [[field, value] for field, value in details.items() if value])


@templates.command("build")
def build(  # noqa: PLR0913 - each is an option
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the template.")],
    context: Annotated[Path | None, typer.Argument(metavar="FOLDER", help="Folder with the files that COPY reads. Default: no files.")] = None,
    *,
    dockerfile: Annotated[Path | None, typer.Option("--dockerfile", metavar="FILE", help="The Dockerfile. Default: Dockerfile in FOLDER.")] = None,
    arg: Annotated[list[str] | None, typer.Option("--build-arg", metavar="NAME=VALUE", help="Value of an ARG; repeatable.")] = None,
    target: Annotated[str | None, typer.Option("--target", metavar="STAGE", help="Last stage to build.")] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", metavar="TAG", help="Tag of the build; repeatable. Default: default.")] = None,
    cpus: Annotated[float | None, typer.Option("--cpus", metavar="N", help="CPU cores of sandboxes of the template.")] = None,
    memory: Annotated[str | None, typer.Option("--memory", metavar="SIZE", help="Memory of these sandboxes, such as 2G.")] = None,
    disk: Annotated[str | None, typer.Option("--disk", metavar="SIZE", help="Disk space of these sandboxes.")] = None,
    start: Annotated[str | None, typer.Option("--start", metavar="COMMAND", help="Command that runs in every sandbox.")] = None,
    ready: Annotated[str | None, typer.Option("--ready", metavar="COMMAND", help="Command that succeeds once the start command is ready.")] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Run all steps again.")] = False,
    json_output: JsonOutput = False,
) -> None:
    """Build a template from a Dockerfile, and show the log.

    Prints the id of the build when it is ready. Ctrl-C leaves the build running.
    """
    from sandlot.sdk import Client

    if context is None and dockerfile is None:
        raise typer.BadParameter("Pass a FOLDER with a Dockerfile, or --dockerfile.")
    args = dict(_pair(each) for each in arg or ())
    with Client() as client:
        built = client.templates.build(
            name,
            dockerfile=dockerfile,
            context=context,
            args=args,
            target=target,
            tags=tag or (),
            cpus=cpus,
            memory=memory,
            disk=disk,
            start_command=start,
            ready_command=ready,
            no_cache=no_cache,
            on_line=print_line,
        )
    typer.echo(as_json(built) if json_output else built.id)


@templates.command("builds")
def builds(*, template: Template, quiet: Quiet = False, json_output: JsonOutput = False) -> None:
    """List the builds of a template, newest first."""
    with query_client() as client:
        found = client.templates.builds(template)
    if json_output:
        typer.echo(as_json(found))
    elif quiet:
        print_ids(found)
    elif found:
        rows = [[each.id, each.status, each.step, ",".join(each.tags), age(each.created_at)] for each in found]
        table(["ID", "STATUS", "STEP", "TAGS", "CREATED"], rows)
    else:
        note("No builds. Build the template with `sandlot template build NAME FOLDER`.")


@templates.command("logs")
def logs(*, build_id: Annotated[str, typer.Argument(metavar="BUILD", help="Id of the build.")]) -> None:
    """Show the log of a build, and follow it until the build has ended."""
    with query_client() as client:
        for line in client.templates.follow_log(build_id):
            print_line(line)


@templates.command("cancel")
def cancel(*, ids: Annotated[list[str], typer.Argument(metavar="BUILD", help="Ids of the builds.")]) -> None:
    """Cancel builds.

    Prints each build that has ended. Exits with status 1 if any was not found.
    """
    with query_client() as client:

        def end(build_id: str) -> None:
            client.templates.cancel_build(build_id)

        run_for_each(ids, end)


@templates.command("tag")
def tag(
    *,
    template: Template,
    name: Annotated[str, typer.Argument(metavar="TAG", help="The tag.")],
    build_id: Annotated[str | None, typer.Argument(metavar="BUILD", help="Id of a ready build. (default: remove the tag)")] = None,
) -> None:
    """Point a tag at a build, so that sandboxes can start from TEMPLATE:TAG. Without BUILD, remove the tag."""
    with query_client() as client:
        if build_id is None:
            client.templates.remove_tag(template, name)
        else:
            client.templates.set_tag(template, name, build_id)


@templates.command("sbom")
def sbom(
    *,
    template: Template,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="File to write. Default: standard output.")] = None,
) -> None:
    """Print a software bill of materials of a template: packages of Debian, Python and npm, as CycloneDX 1.6 in JSON.

    Starts a sandbox of the template, without network, to list the packages.
    """
    from sandlot.cli import sbom as bills

    text = json.dumps(bills.document(template, bills.find_packages(template), at=datetime.now(UTC)), indent=2)
    if output is None:
        typer.echo(text)
    else:
        output.write_text(f"{text}\n", encoding="utf-8")


@templates.command("rm")
def rm(*, ids: Templates) -> None:
    """Delete templates that were built, with their builds. Their sandboxes and snapshots stay.

    Prints each template that was deleted. Exits with status 1 if a template could not be deleted.
    """
    with query_client() as client:
        run_for_each(ids, client.templates.delete)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE.")
    return name, value


def print_line(line: BuildLine) -> None:
    """Print a line of the log of a build to standard error."""
    prefix = "" if line.level == "info" else f"{line.level}: "
    note(f"{prefix}{line.text}")
