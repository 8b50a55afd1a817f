"""``sandlot fs``: look at, read, move and remove files of a sandbox, and watch them."""

from __future__ import annotations

import json
import stat as modes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.copy import last_name, place
from sandlot.cli.options import InJson, Raw
from sandlot.cli.output import Legible, as_json, plain, size, table, visible

if TYPE_CHECKING:
    from sandlot.sdk import FileEntry, FileEvent, Sandbox

fs = typer.Typer(name="fs", help="Files of a sandbox.", no_args_is_help=True)

At = Annotated[str, typer.Argument(metavar="ID:PATH", help="Where: a path in a sandbox, relative to /workspace.")]
User = Annotated[str | None, typer.Option("--user", "-u", metavar="USER", help="Act as 'user' or 'root'. (default: user)")]


@fs.command("ls")
def ls(*, at: At, user: User = None, in_json: InJson = False) -> None:
    """List a folder."""
    with _opened(at) as (sandbox, path):
        found = sandbox.files.list(path, user=user)
    if in_json:
        typer.echo(as_json(found))
    elif found:
        table(["MODE", "UID", "SIZE", "MODIFIED", "NAME"], [_row(entry) for entry in found])


@fs.command("stat")
def stat(*, at: At, user: User = None, in_json: InJson = False) -> None:
    """Look at one file, folder or link."""
    with _opened(at) as (sandbox, path):
        found = sandbox.files.stat(path, user=user)
    if in_json:
        typer.echo(as_json(found))
    else:
        table(["MODE", "UID", "SIZE", "MODIFIED", "NAME"], [_row(found)])


@fs.command("cat")
def cat(*, at: At, user: User = None, raw: Raw = False) -> None:
    """Write a file's bytes to standard output. On a terminal, control characters are spelled out."""
    shown = Legible() if sys.stdout.isatty() and not raw else None
    with _opened(at) as (sandbox, path), sandbox.files.read(path, "stream", user=user) as pieces:
        for piece in pieces:
            sys.stdout.buffer.write(piece if shown is None else shown.feed(piece))
        if shown is not None:
            sys.stdout.buffer.write(shown.feed(b"", last=True))
        sys.stdout.buffer.flush()


@fs.command("mkdir")
def mkdir(*, at: At, user: User = None) -> None:
    """Make a folder, and those above it."""
    with _opened(at) as (sandbox, path):
        sandbox.files.make_dir(path, user=user)


@fs.command("mv")
def mv(
    *,
    at: At,
    to: Annotated[str, typer.Argument(metavar="PATH", help="Its new path in the same sandbox; an existing folder takes it in.")],
    overwrite: Annotated[bool, typer.Option("--force", "-f", help="Replace a file that is there.")] = False,
    user: User = None,
) -> None:
    """Move or rename."""
    with _opened(at) as (sandbox, path):
        there = place(to)
        if there.sandbox not in {None, sandbox.id}:
            raise typer.BadParameter("It can be moved within one sandbox only; sandlot cp copies.")
        target = str(PurePosixPath("/workspace", there.path))
        if there.into or (sandbox.files.exists(target, user=user) and sandbox.files.stat(target, user=user).is_dir):
            target = str(PurePosixPath(target, last_name(path)))
        sandbox.files.move(path, target, overwrite=overwrite, user=user)


@fs.command("rm")
def rm(
    *,
    at: At,
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Also a folder with everything in it.")] = False,
    user: User = None,
) -> None:
    """Remove a file, a link or a folder."""
    with _opened(at) as (sandbox, path):
        sandbox.files.remove(path, recursive=recursive, user=user)


@fs.command("url")
def url(
    *,
    at: At,
    put: Annotated[bool, typer.Option("--put", help="For writing the file, by PUT; otherwise for reading it.")] = False,
    expires: Annotated[float, typer.Option("--expires", metavar="SECONDS", help="How long it holds.")] = 3600.0,
    user: User = None,
) -> None:
    """Print a URL by which anybody can read, or write, one file for a while."""
    with _opened(at) as (sandbox, path):
        typer.echo(sandbox.files.sign_url(path, method="PUT" if put else "GET", expires_in=expires, user=user))


@fs.command("watch")
def watch(
    *,
    at: At,
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="The folders in it too.")] = False,
    user: User = None,
    in_json: Annotated[bool, typer.Option("--json", help="One JSON object on each line.")] = False,
) -> None:
    """Tell what happens in a folder, until it is gone or you interrupt."""
    with _opened(at) as (sandbox, path), sandbox.files.watch(path, recursive=recursive, user=user) as events:
        for event in events:
            typer.echo(json.dumps(plain(event)) if in_json else visible(_line(event)))
            sys.stdout.flush()


@contextmanager
def _opened(word: str) -> Iterator[tuple[Sandbox, str]]:
    """A sandbox, and the path in it.

    Raises:
        typer.BadParameter: The word names no sandbox.
    """
    from sandlot.sdk import Sandbox

    at = place(word)
    if at.sandbox is None:
        raise typer.BadParameter(f"{word!r}: it takes ID:PATH; 'sandlot ls' shows the IDs.")
    sandbox = Sandbox.connect(at.sandbox, resume=False)
    try:
        yield sandbox, at.path
    finally:
        sandbox.close()


def _row(entry: FileEntry) -> list[str]:
    kinds = {"directory": modes.S_IFDIR, "symlink": modes.S_IFLNK, "file": modes.S_IFREG}
    moment = "-" if entry.modified_at is None else entry.modified_at.strftime("%Y-%m-%d %H:%M:%S")
    name = entry.name + (f" -> {entry.target}" if entry.target is not None else "/" if entry.is_dir else "")
    return [modes.filemode(kinds.get(entry.kind, 0) | entry.mode), str(entry.uid), size(entry.size_bytes), moment, name]


def _line(event: FileEvent) -> str:
    if event.kind == "overflow":
        return "overflow  (more happened than could be told)"
    return f"{event.kind:<8}  {event.source + ' -> ' if event.source else ''}{event.path}{'/' if event.is_dir else ''}"
