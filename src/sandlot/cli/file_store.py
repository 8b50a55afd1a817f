"""``sandlot store``: upload, list, download and delete files of the file store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.bulk import run_for_each
from sandlot.cli.options import JsonOutput, Limit, Quiet
from sandlot.cli.output import age, as_json, note, print_ids, size, table, visible
from sandlot.cli.progress import ByteProgressBar

if TYPE_CHECKING:
    from sandlot.sdk import StoredFile

store = typer.Typer(help="Upload, list, download and delete files of the file store.", no_args_is_help=True)


@store.command("upload")
def upload(
    *,
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", help="Files on this machine.")],
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Name of the stored file. (default: the name of the file)")] = None,
    media_type: Annotated[
        str | None, typer.Option("--type", metavar="TYPE", help="Media type, such as text/csv. (default: by the file's extension)")
    ] = None,
    json_output: JsonOutput = False,
) -> None:
    """Upload files to the file store and print their ids.

    `sandlot create --file-id` copies them into new sandboxes.
    """
    from sandlot.sdk import Client

    if name is not None and len(paths) > 1:
        raise typer.BadParameter("It can be used with one file only.", param_hint="--name")
    stored: list[StoredFile] = []
    with Client() as client:
        for path in paths:
            with ByteProgressBar(path.name) as bar:
                stored.append(client.file_store.upload(path, filename=name, media_type=media_type, on_progress=bar.update))
            if not json_output:
                typer.echo(stored[-1].id)
    if json_output:
        typer.echo(as_json(stored))


@store.command("ls")
def ls(*, limit: Limit = None, quiet: Quiet = False, json_output: JsonOutput = False) -> None:
    """List stored files, newest first."""
    from sandlot.sdk import Client

    with Client() as client:
        found = client.file_store.list(limit=limit)
    if json_output:
        typer.echo(as_json(found))
    elif quiet:
        print_ids(found)
    elif found:
        rows = [[file.id, file.filename, size(file.size_bytes), file.media_type, age(file.created_at), file.sandbox or "-"] for file in found]
        table(["ID", "NAME", "SIZE", "TYPE", "AGE", "SANDBOX"], rows)
    else:
        note("No stored files. Upload one with `sandlot store upload PATH`.")


@store.command("download")
def download(
    *,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Id of the stored file.")],
    target: Annotated[Path, typer.Argument(metavar="PATH", help="Path of the copy, or an existing directory. (default: this directory)")] = Path(),
    json_output: JsonOutput = False,
) -> None:
    """Download a stored file.

    Prints the path of the copy.
    """
    from sandlot.sdk import Client

    with Client() as client, ByteProgressBar(file) as bar:
        written = client.file_store.download(file, target, on_progress=bar.update)
    typer.echo(as_json({"path": str(written)}) if json_output else visible(str(written)))


@store.command("rm")
def rm(*, ids: Annotated[list[str], typer.Argument(metavar="FILE", help="Ids of stored files.")]) -> None:
    """Delete stored files; copies in sandboxes stay.

    Prints each deleted file. Exits with status 1 if any could not be deleted.
    """
    from sandlot.sdk import Client

    with Client() as client:
        run_for_each(ids, client.file_store.delete)
