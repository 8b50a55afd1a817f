"""``sandlot cp``: files and folders between this machine and a sandbox."""

from __future__ import annotations

import json
import posixpath
import sys
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.bar import Bar
from sandlot.cli.output import note, size

if TYPE_CHECKING:
    from sandlot.sdk import Sandbox

WORKSPACE = "/workspace"


@dataclass(frozen=True, slots=True)
class Place:
    """One side of a copy.

    Args:
        path: As it was written, relative paths of a sandbox put below ``/workspace``.
        sandbox: The sandbox's id; None is this machine.
        into: Whether it was written as a folder, with a slash at its end.
    """

    path: str
    sandbox: str | None = None
    into: bool = False


def place(word: str) -> Place:
    """``ID:PATH`` is in a sandbox, everything else is here."""
    from sandlot.model.ids import SANDBOX_ID

    sandbox, colon, path = word.partition(":")
    if not colon or SANDBOX_ID.fullmatch(sandbox) is None:
        return Place(word, into=word.endswith("/"))
    return Place(str(PurePosixPath(WORKSPACE, path)), sandbox=sandbox, into=path.endswith("/") or path in {"", "."})


def cp(
    *,
    source: Annotated[str, typer.Argument(metavar="SRC", help="A file or folder: PATH, or ID:PATH in a sandbox (relative to /workspace).")],
    target: Annotated[str, typer.Argument(metavar="DST", help="Where to, likewise. An existing folder, or one written with '/', takes it in.")],
    user: Annotated[str | None, typer.Option("--user", "-u", metavar="USER", help="Act in the sandbox as 'user' or 'root'. (default: user)")] = None,
    in_json: Annotated[bool, typer.Option("--json", help="Print what was copied, as JSON.")] = False,
) -> None:
    """Copy files and folders into a sandbox, or out of one."""
    from sandlot.sdk import Sandbox

    here, there = place(source), place(target)
    if (here.sandbox is None) == (there.sandbox is None):
        raise typer.BadParameter("One of SRC and DST has to be ID:PATH in a sandbox, the other a path here.")
    sandbox = Sandbox.connect(here.sandbox or there.sandbox or "", resume=False)
    try:
        with Bar(Path(here.path).name) as bar:
            if there.sandbox is not None:
                files = sandbox.files.upload(here.path, _in_sandbox(sandbox, here, there, user), user=user, on_progress=bar.tell)
            else:
                files = sandbox.files.download(here.path, on_this_machine(here, there), user=user, on_progress=bar.tell)
    finally:
        sandbox.close()
    copied = 0 if bar.last is None else bar.last.done_bytes
    if in_json:
        typer.echo(json.dumps({"files": files, "bytes": copied}))
    elif sys.stderr.isatty():
        note(f"{files} {'file' if files == 1 else 'files'}, {size(copied)}")


def _in_sandbox(sandbox: Sandbox, source: Place, target: Place, user: str | None) -> str:
    from sandlot.model.errors import ErrorCode, SandlotError

    into = target.into
    if not into:
        try:
            into = sandbox.files.stat(target.path, user=user).is_dir
        except SandlotError as error:
            if error.code not in {ErrorCode.PATH_NOT_FOUND, ErrorCode.PATH_NOT_DIRECTORY}:
                raise
    return inside(source, target.path) if into else target.path


def inside(source: Place, folder: str) -> str:
    """Where a folder of a sandbox takes in what is here."""
    return str(PurePosixPath(folder, last_name(str(Path(source.path).absolute()))))


def on_this_machine(source: Place, target: Place) -> Path:
    """Where what is copied out of a sandbox will be."""
    path = Path(target.path)
    return path / last_name(source.path) if target.into or path.is_dir() else path


def last_name(path: str) -> str:
    """What a folder that takes an absolute path in has it under: never ``..``, which lies beside it; empty for the root. Pure."""
    return posixpath.basename(posixpath.normpath(path))
