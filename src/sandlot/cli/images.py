"""``sandlot image``: build, list and delete root filesystem images of templates on this machine.

Progress goes to standard error, results to standard output.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from sandlot.cli.bulk import run_for_each
from sandlot.cli.options import JsonOutput, complete_templates
from sandlot.cli.output import as_json, note, size, table

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

    from sandlot.images.store import ImageStore

images = typer.Typer(help="Build, list and delete root filesystem images on this machine.", no_args_is_help=True)

Cache = Annotated[Path | None, typer.Option("--cache", metavar="DIRECTORY", help="Image cache. (default: SANDLOT_CACHE_DIR, or /var/cache/sandlot)")]
Recipes = Annotated[Path | None, typer.Option("--recipes", metavar="DIRECTORY", help="Directory with recipes besides those that come with Sandlot.")]


@images.command("build")
def build(
    *,
    names: Annotated[list[str], typer.Argument(metavar="TEMPLATE", help="Names of templates.", autocompletion=complete_templates)],
    cache: Cache = None,
    recipes: Recipes = None,
) -> None:
    """Build root filesystem images and print their directories.

    An image that is built already is not built again. A build leaves the disk space free that SANDLOT_DISK_RESERVE_BYTES keeps for the host. If the
    image `builder` is built, EROFS images are made as well, from which sandboxes of gVisor start faster.
    """
    from sandlot.images.store import BUILDER
    from sandlot.server.settings import Settings

    settings = Settings.load()
    store, progress = _store(cache, recipes, settings.template_aliases, settings.disk_reserve_bytes), _TimedProgress()
    for name in names:
        typer.echo(store.root(name, progress).tree)
        if name != BUILDER and BUILDER in store.all_recipes and store.find(BUILDER) is not None:
            store.root_image(name, progress)


@images.command("ls")
def ls(
    *,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print keys only.")] = False,
    cache: Cache = None,
    recipes: Recipes = None,
    json_output: JsonOutput = False,
) -> None:
    """List the content of the image cache."""
    found = _store(cache, recipes).list()
    if json_output:
        typer.echo(as_json(found))
    elif quiet:
        for each in found:
            typer.echo(each.key)
    else:
        table(["KIND", "KEY", "SIZE", "NAME"], [[each.kind, each.key, size(each.size_bytes), each.name] for each in found])


@images.command("rm")
def rm(
    *,
    keys: Annotated[list[str], typer.Argument(metavar="KEY", help="Keys of builds, as `sandlot image ls` shows them.")],
    cache: Cache = None,
    recipes: Recipes = None,
) -> None:
    """Delete builds by their keys.

    Prints each deleted key. Exits with status 1 if any could not be deleted.
    """
    run_for_each(keys, _store(cache, recipes).remove)


@images.command("prune")
def prune(*, cache: Cache = None, recipes: Recipes = None) -> None:
    """Delete builds that this version does not use; no sandbox may be running.

    Prints the number of deleted builds.
    """
    typer.echo(_store(cache, recipes).prune())


def _store(cache: Path | None, recipes: Path | None, aliases: Iterable[tuple[str, str]] = (), reserve_bytes: int | None = None) -> ImageStore:
    from sandlot.images import recipe
    from sandlot.images.store import ImageStore, cache_from

    # On SIGTERM, raise SystemExit, so that a running build removes its incomplete files.
    signal.signal(signal.SIGTERM, _exit)
    own = recipe.load_folder(recipes) if recipes else {}
    known = recipe.with_aliases({**recipe.shipped(), **own}, dict(aliases))
    return ImageStore(cache or cache_from(os.environ), known, reserve_bytes=reserve_bytes)


class _TimedProgress:
    """Prints each line of progress with the seconds since this object was created."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()

    def __call__(self, line: str) -> None:
        note(f"{time.monotonic() - self._started_s:7.1f} s  {line}")


def _exit(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)
