"""``sandlot cp`` and ``sandlot fs``: files of a sandbox."""

from __future__ import annotations

import json
import posixpath
import stat as modes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.options import JsonOutput, Raw, User
from sandlot.cli.output import ControlCharacterFilter, as_json, note, plain, size, table, visible
from sandlot.cli.progress import ByteProgressBar

if TYPE_CHECKING:
    from sandlot.sdk import FileEntry, FileEvent, Sandbox

fs = typer.Typer(help="List, read, move, delete and watch files of a sandbox.", no_args_is_help=True)

GuestPath = Annotated[str, typer.Argument(metavar="SANDBOX:PATH", help="Path in a sandbox, relative to its working directory.")]


@dataclass(frozen=True, slots=True)
class CopyLocation:
    """Source or target of a copy.

    Args:
        path: Path; in a sandbox absolute or relative to its working directory.
        sandbox: Id or name of the sandbox; None for this machine.
        is_directory: The path was given with a slash at its end, or as a directory itself.
    """

    path: str
    sandbox: str | None = None
    is_directory: bool = False


def parse_location(text: str) -> CopyLocation:
    """Parse ``SANDBOX:PATH``, or a local path.

    As in ``docker cp``, a text with a colon before its first slash is a path in a sandbox; a local file ``a:b`` is ``./a:b``.
    """
    sandbox, colon, path = text.partition(":")
    if not colon or not sandbox or "/" in sandbox:
        return CopyLocation(text, is_directory=text.endswith("/"))
    return CopyLocation(str(PurePosixPath(path)), sandbox, is_directory=path.endswith("/") or path in {"", "."})


def cp(
    *,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="File or directory: PATH, or SANDBOX:PATH relative to its working directory.")],
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="Path of the copy, in the same forms; an existing directory, or a path that ends with '/', gets the copy."
        ),
    ],
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Write into existing files of the sandbox instead of replacing them, for programs that watch them.")
    ] = False,
    user: User = None,
    json_output: JsonOutput = False,
) -> None:
    """Copy files between this machine and a sandbox.

    Symbolic links inside a directory are kept; links that lead out of it are skipped.
    """
    from sandlot.sdk import Sandbox

    here, there = parse_location(source), parse_location(target)
    if (here.sandbox is None) == (there.sandbox is None):
        raise typer.BadParameter("Exactly one of SOURCE and TARGET must be SANDBOX:PATH.")
    if in_place and there.sandbox is None:
        raise typer.BadParameter("--in-place needs a TARGET in a sandbox.")
    sandbox = Sandbox.connect(here.sandbox or there.sandbox or "", resume=False)
    try:
        with ByteProgressBar(Path(here.path).name) as bar:
            if there.sandbox is not None:
                to = _guest_target(sandbox, here, there, user)
                files = sandbox.files.upload(here.path, to, user=user, in_place=in_place, on_progress=bar.update, on_skip=note)
            else:
                files = sandbox.files.download(
                    here.path, local_target(here, there, sandbox.info().cwd), user=user, on_progress=bar.update, on_skip=note
                )
    finally:
        sandbox.close()
    copied_bytes = 0 if bar.last is None else bar.last.done_bytes
    if json_output:
        typer.echo(json.dumps({"files": files, "bytes": copied_bytes}))
    elif sys.stderr.isatty():
        note(f"{files} {'file' if files == 1 else 'files'}, {size(copied_bytes)}")


def _guest_target(sandbox: Sandbox, source: CopyLocation, target: CopyLocation, user: str | None) -> str:
    from sandlot.sdk import ErrorCode, SandlotError

    is_directory = target.is_directory
    if not is_directory:
        try:
            is_directory = sandbox.files.stat(target.path, user=user).is_dir
        except SandlotError as error:
            if error.code not in {ErrorCode.PATH_NOT_FOUND, ErrorCode.PATH_NOT_DIRECTORY}:
                raise
    name = last_name(str(Path(source.path).absolute()))
    return str(PurePosixPath(target.path, name)) if is_directory else target.path


def local_target(source: CopyLocation, target: CopyLocation, cwd: str) -> Path:
    """Return the local path of a copy out of a sandbox with the working directory ``cwd``."""
    path = Path(target.path)
    return path / last_name(str(PurePosixPath(cwd, source.path))) if target.is_directory or path.is_dir() else path


def last_name(path: str) -> str:
    """Return the name of a copy of an absolute path in another directory: never ``..``, which is outside of it; empty for the root."""
    return posixpath.basename(posixpath.normpath(path))


@fs.command("ls")
def ls(
    *,
    at: GuestPath,
    user: User = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print names only.")] = False,
    json_output: JsonOutput = False,
) -> None:
    """List a directory in a sandbox."""
    with _opened(at) as (sandbox, path):
        found = sandbox.files.list(path, user=user)
    if json_output:
        typer.echo(as_json(found))
    elif quiet:
        for entry in found:
            typer.echo(visible(entry.name))
    elif found:
        table(["MODE", "UID", "SIZE", "MODIFIED", "NAME"], [_row(entry) for entry in found])


@fs.command("stat")
def stat(*, at: GuestPath, user: User = None, json_output: JsonOutput = False) -> None:
    """Show type, size, mode and owner of a path."""
    with _opened(at) as (sandbox, path):
        found = sandbox.files.stat(path, user=user)
    if json_output:
        typer.echo(as_json(found))
    else:
        table(["MODE", "UID", "SIZE", "MODIFIED", "NAME"], [_row(found)])


@fs.command("realpath")
def realpath(*, at: GuestPath, user: User = None) -> None:
    """Print the path without symbolic links."""
    with _opened(at) as (sandbox, path):
        typer.echo(visible(sandbox.files.realpath(path, user=user)))


@fs.command("cat")
def cat(*, at: GuestPath, user: User = None, raw: Raw = False) -> None:
    """Print a file.

    On a terminal, control characters are escaped; elsewhere the bytes are unchanged.
    """
    escaped = ControlCharacterFilter() if sys.stdout.isatty() and not raw else None
    with _opened(at) as (sandbox, path), sandbox.files.read(path, "stream", user=user) as chunks:
        for chunk in chunks:
            sys.stdout.buffer.write(chunk if escaped is None else escaped.feed(chunk))
        if escaped is not None:
            sys.stdout.buffer.write(escaped.feed(b"", last=True))
        sys.stdout.buffer.flush()


@fs.command("mkdir")
def mkdir(*, at: GuestPath, user: User = None) -> None:
    """Create a directory and its parents."""
    with _opened(at) as (sandbox, path):
        sandbox.files.make_dir(path, user=user)


@fs.command("mv")
def mv(
    *,
    at: GuestPath,
    to: Annotated[str, typer.Argument(metavar="PATH", help="New path in the same sandbox; the file goes into an existing directory.")],
    overwrite: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    user: User = None,
) -> None:
    """Move or rename a file or directory."""
    with _opened(at) as (sandbox, path):
        there = parse_location(to)
        if there.sandbox is not None and there.sandbox != parse_location(at).sandbox:
            raise typer.BadParameter("The new path is in another sandbox. Copy the file with `sandlot cp`.", param_hint="PATH")
        target = there.path
        if there.is_directory or (sandbox.files.exists(target, user=user) and sandbox.files.stat(target, user=user).is_dir):
            target = str(PurePosixPath(target, last_name(str(PurePosixPath(sandbox.info().cwd, path)))))
        sandbox.files.move(path, target, overwrite=overwrite, user=user)


@fs.command("rm")
def rm(
    *,
    at: GuestPath,
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Delete a directory and its content.")] = False,
    user: User = None,
) -> None:
    """Delete a file, or a directory with `--recursive`."""
    with _opened(at) as (sandbox, path):
        sandbox.files.remove(path, recursive=recursive, user=user)


@fs.command("url")
def url(
    *,
    at: GuestPath,
    put: Annotated[bool, typer.Option("--put", help="Create a URL for writing the file with PUT instead of reading it with GET.")] = False,
    expires: Annotated[float, typer.Option("--expires-in", metavar="SECONDS", help="Seconds until the URL expires.")] = 3600.0,
    user: User = None,
) -> None:
    """Create a temporary URL for reading or writing one file without a key."""
    with _opened(at) as (sandbox, path):
        typer.echo(sandbox.files.sign_url(path, method="PUT" if put else "GET", expires_in=expires, user=user))


@fs.command("watch")
def watch(
    *,
    at: GuestPath,
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Include subdirectories.")] = False,
    user: User = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Print changes in a directory as they happen.

    Ends when the directory is deleted, or with Ctrl-C.
    """
    with _opened(at) as (sandbox, path), sandbox.files.watch(path, recursive=recursive, user=user) as events:
        for event in events:
            typer.echo(json.dumps(plain(event)) if json_output else visible(_line(event)))
            sys.stdout.flush()


@contextmanager
def _opened(text: str) -> Iterator[tuple[Sandbox, str]]:
    """Connect to the sandbox of a ``SANDBOX:PATH`` argument.

    Raises:
        typer.BadParameter: The argument names no sandbox.
    """
    from sandlot.sdk import Sandbox

    at = parse_location(text)
    if at.sandbox is None:
        raise typer.BadParameter(f"{text!r} is not SANDBOX:PATH.")
    sandbox = Sandbox.connect(at.sandbox, resume=False)
    try:
        yield sandbox, at.path
    finally:
        sandbox.close()


def _row(entry: FileEntry) -> list[str]:
    kinds = {"directory": modes.S_IFDIR, "symlink": modes.S_IFLNK, "file": modes.S_IFREG}
    modified = "-" if entry.modified_at is None else entry.modified_at.strftime("%Y-%m-%d %H:%M:%S")
    name = entry.name + (f" -> {entry.target}" if entry.target is not None else "/" if entry.is_dir else "")
    return [modes.filemode(kinds.get(entry.kind, 0) | entry.mode), str(entry.uid), size(entry.size_bytes), modified, name]


def _line(event: FileEvent) -> str:
    if event.kind == "overflow":
        return "overflow  (some changes were lost)"
    return f"{event.kind:<8}  {event.source + ' -> ' if event.source else ''}{event.path}{'/' if event.is_dir else ''}"
