"""``sandlot volume``: files that outlive sandboxes, as folders of theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.options import InJson, asking, live_ids
from sandlot.cli.output import age, as_json, note, size, table, visible

if TYPE_CHECKING:
    from sandlot.sdk import Mount

volumes = typer.Typer(help="Files that outlive sandboxes, as folders of theirs.", no_args_is_help=True)


@volumes.command("create")
def create(
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Up to 63 lower-case letters, digits, '_' and '-'; no two of yours have one name.")],
    most: Annotated[str | None, typer.Option("--size", metavar="SIZE", help="What may be written to it, such as 10G. (default: 1G)")] = None,
    in_json: InJson = False,
) -> None:
    """Make a volume, empty, and print its id."""
    with asking() as client:
        made = client.volumes.create(name, most)
    typer.echo(as_json(made) if in_json else made.id)


@volumes.command("ls")
def ls(
    *,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="The names only.")] = False,
    in_json: InJson = False,
) -> None:
    """List the volumes that there are, oldest first."""
    from sandlot.sdk import Client

    with Client() as client:
        found = client.volumes.list()
    if in_json:
        typer.echo(as_json(found))
    elif quiet:
        for each in found:
            typer.echo(each.name)
    elif found:
        rows = [[each.name, each.id, size(each.size_bytes), size(each.used_bytes), str(len(each.attached)), age(each.created_at)] for each in found]
        table(["NAME", "ID", "SIZE", "USED", "SANDBOXES", "AGE"], rows)
    else:
        note("There is no volume; `sandlot volume create NAME` makes one.")


@volumes.command("show")
def show(*, volume: Annotated[str, typer.Argument(metavar="VOLUME", help="By id or name.")], in_json: InJson = False) -> None:
    """Look at a volume: its size, what is in it, and who has it."""
    from sandlot.sdk import Client

    with Client() as client:
        found = client.volumes.get(volume)
    if in_json:
        typer.echo(as_json(found))
        return
    facts = {
        "id": found.id,
        "name": found.name,
        "size": size(found.size_bytes),
        "used": size(found.used_bytes),
        "age": age(found.created_at),
        "sandboxes": " ".join(found.attached),
    }
    table(["FACT", "VALUE"], [[name, value] for name, value in facts.items() if value])


@volumes.command("rm")
def rm(*, volumes: Annotated[list[str], typer.Argument(metavar="VOLUME...", help="By id or name.")]) -> None:
    """Delete volumes with all that is in them; not one that a sandbox has.

    Prints each as it was given.
    """
    from sandlot.model.errors import SandlotError
    from sandlot.sdk import Client

    failed = False
    with Client() as client:
        for each in volumes:
            try:
                client.volumes.delete(each)
            except SandlotError as error:
                note(f"sandlot: {each}: {error}")
                failed = True
            else:
                typer.echo(visible(each))
    raise typer.Exit(1 if failed else 0)


@volumes.command("attach")
def attach(
    *,
    sandbox: Annotated[str, typer.Argument(metavar="SANDBOX", help="Its id.", autocompletion=live_ids)],
    volume: Annotated[str, typer.Argument(metavar="NAME:/PATH[:ro]", help="The volume, and the folder that it is to be.")],
) -> None:
    """Give a sandbox that runs a volume; one that rests is resumed for it."""
    from sandlot.sdk import Sandbox

    ((path, mount),) = (mounts([volume]) or {}).items()
    with asking() as client:
        Sandbox.connect(sandbox, client=client).attach_volume(mount.volume, path, read_only=mount.read_only)


@volumes.command("detach")
def detach(
    *,
    sandbox: Annotated[str, typer.Argument(metavar="SANDBOX", help="Its id.", autocompletion=live_ids)],
    path: Annotated[str, typer.Argument(metavar="PATH", help="The folder that it is; or the volume's name or id.")],
) -> None:
    """Take a volume away from a sandbox, where nothing inside uses it; what is in it stays."""
    from sandlot.sdk import Sandbox

    with asking() as client:
        Sandbox.connect(sandbox, client=client).detach_volume(path)


def mounts(given: list[str] | None) -> dict[str, Mount] | None:
    """Return the volumes of ``--volume`` options by path.

    Raises:
        typer.BadParameter: An option has another form, or two volumes have the same path.
    """
    from sandlot.sdk import Mount

    found: dict[str, Mount] = {}
    for text in given or ():
        volume, _, path = text.partition(":")
        read_only = path.endswith(":ro")
        path = path.removesuffix(":ro").removesuffix(":rw")
        if not volume or not path.startswith("/"):
            raise typer.BadParameter(f"A volume is given as NAME:/path or NAME:/path:ro, not {text!r}.")
        if path in found:
            raise typer.BadParameter(f"Two volumes cannot be at {path}.")
        found[path] = Mount(volume, path, read_only=read_only)
    return found or None
