"""``sandlot files``: files that outlive sandboxes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.options import InJson
from sandlot.cli.output import age, as_json, note, size, table, visible

if TYPE_CHECKING:
    from sandlot.sdk import StoredFile, TransferProgress

files = typer.Typer(help="Files that outlive sandboxes: uploaded once, put into any number of them.", no_args_is_help=True)


@files.command("upload")
def upload(
    *,
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Files of this machine.")],
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="What it is called. (default: its own name)")] = None,
    media_type: Annotated[str | None, typer.Option("--type", metavar="TYPE", help="Such as text/csv. (default: by its name)")] = None,
    in_json: InJson = False,
) -> None:
    """Keep files; prints their ids, for 'sandlot create --file-id' and the API."""
    from sandlot.sdk import Client

    if name is not None and len(paths) > 1:
        raise typer.BadParameter("--name is for one file.")
    kept: list[StoredFile] = []
    with Client() as client:
        for path in paths:
            with _bar(path.name) as moved:
                kept.append(client.file_store.upload(path, filename=name, media_type=media_type, on_progress=moved))
            if not in_json:
                typer.echo(kept[-1].id)
    if in_json:
        typer.echo(as_json(kept))


@files.command("ls")
def ls(
    *,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="Maximum number of files. (default: 100)")] = 100,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="The ids only.")] = False,
    in_json: InJson = False,
) -> None:
    """List the files that are kept, newest first."""
    from sandlot.sdk import Client

    with Client() as client:
        found = client.file_store.list(limit=limit)
    if in_json:
        typer.echo(as_json(found))
    elif quiet:
        for file in found:
            typer.echo(file.id)
    elif found:
        rows = [[file.id, file.filename, size(file.size_bytes), file.media_type, age(file.created_at), file.sandbox or "-"] for file in found]
        table(["ID", "NAME", "SIZE", "TYPE", "AGE", "FROM"], rows)
        if len(found) == limit:
            note(f"Only the newest {limit} files are shown; use --limit to see more.")
    else:
        note("There are no stored files.")


@files.command("download")
def download(
    *,
    file: Annotated[str, typer.Argument(metavar="ID", help="The file.")],
    target: Annotated[Path, typer.Argument(metavar="PATH", help="Where to; into a folder that is there, under its own name.")] = Path(),
    in_json: InJson = False,
) -> None:
    """Copy a kept file to this machine; prints where it is."""
    from sandlot.sdk import Client

    with Client() as client, _bar(file) as moved:
        written = client.file_store.download(file, target, on_progress=moved)
    typer.echo(as_json({"path": str(written)}) if in_json else visible(str(written)))


@files.command("rm")
def rm(*, ids: Annotated[list[str], typer.Argument(metavar="ID...", help="The files.")]) -> None:
    """Remove kept files; copies of them in sandboxes stay."""
    from sandlot.model.errors import SandlotError
    from sandlot.sdk import Client

    failed = False
    with Client() as client:
        for id_ in ids:
            try:
                client.file_store.delete(id_)
            except SandlotError as error:
                note(f"sandlot: {id_}: {error}")
                failed = True
            else:
                typer.echo(visible(id_))
    raise typer.Exit(1 if failed else 0)


@contextmanager
def _bar(name: str) -> Iterator[Callable[[TransferProgress], object] | None]:
    """How far a transfer is, on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich import progress as bars
    from rich.console import Console
    from rich.markup import escape

    columns = (bars.TextColumn("{task.description}"), bars.BarColumn(), bars.DownloadColumn(), bars.TransferSpeedColumn())
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(escape(visible(name)), total=None)
        yield lambda moved: shown.update(task, completed=moved.done_bytes, total=moved.total_bytes)
