"""``sandlot image``: build, list, update and delete the images of recipes on this machine, and make templates of other images at a service.

Progress goes to standard error, results to standard output.
"""

from __future__ import annotations

import re
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from sandlot.cli.bulk import run_for_each
from sandlot.cli.options import JsonOutput, complete_templates
from sandlot.cli.output import age, as_json, note, size, table, visible
from sandlot.model.templates import DEFAULT_TEMPLATE_TAG

if TYPE_CHECKING:
    from types import FrameType

    from sandlot.images.progress import Progress
    from sandlot.images.store import ImageStore, ImageUpdate

images = typer.Typer(help="Build, pull, import, list, update and delete root filesystem images.", no_args_is_help=True)

Cache = Annotated[Path | None, typer.Option("--cache", metavar="DIRECTORY", help="Image cache. (default: that of the settings)")]
Name = Annotated[str | None, typer.Option("--name", metavar="TEMPLATE", help="Name of the template. Default: the last part of the image's name.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", metavar="TAG", help="Tag of the build; repeatable.")]
Recipes = Annotated[Path | None, typer.Option("--recipes", metavar="DIRECTORY", help="Directory with recipes besides those of the settings.")]


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
    store, progress = _store(cache, recipes), _TimedProgress()
    for name in names:
        typer.echo(store.root(name, progress).tree)
        _make_root_image(store, name, progress)


@images.command("pull")
def pull(
    *,
    reference: Annotated[str, typer.Argument(metavar="IMAGE", help="Reference of an image, such as registry.example/team/app:1.2.")],
    name: Name = None,
    tag: Tags = None,
    json_output: JsonOutput = False,
) -> None:
    """Make a template of an image of a registry, and show the log.

    The service pulls the image; its settings name the registries that are allowed. Prints the id of the build. Pulling again makes a new build, and
    sandboxes start from it once it is ready. Default tags: that of the image, and default.
    """
    from sandlot.model.images import parse_reference

    parsed = parse_reference(reference)
    # The whole reference: a short one could name a template, even this one.
    source = f"{parsed.registry}/{parsed.repository}" + (f"@{parsed.digest}" if parsed.digest else f":{parsed.tag}")
    tags = tag or [DEFAULT_TEMPLATE_TAG, *([parsed.tag] if parsed.tag else [])]
    _make_template(name or parsed.repository, json_output=json_output, dockerfile=f"FROM {source}\n", tags=tags)


@images.command("import")
def import_(
    *,
    archive: Annotated[Path, typer.Argument(metavar="PATH", help="Archive of `docker save`, of an OCI layout or of a root filesystem; or a layout.")],
    image: Annotated[str | None, typer.Option("--image", metavar="IMAGE", help="Name of the image in the archive. Default: the only one.")] = None,
    name: Name = None,
    tag: Tags = None,
    json_output: JsonOutput = False,
) -> None:
    """Make a template of an image in a file or folder, and show the log.

    Prints the id of the build. Without --name, the template has the name of the file.
    """
    _make_template(name or archive.name.partition(".")[0], json_output=json_output, archive=archive, image=image, tags=tag or ())


@images.command("ls")
def ls(
    *,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print keys only.")] = False,
    cache: Cache = None,
    recipes: Recipes = None,
    json_output: JsonOutput = False,
) -> None:
    """List the content of the image cache.

    USE shows the images with which templates of users begin. `sandlot image update` and `sandlot image prune` keep them.
    """
    found = _store(cache, recipes).list()
    if json_output:
        typer.echo(as_json(found))
    elif quiet:
        for each in found:
            typer.echo(each.key)
    else:
        rows = [
            [each.kind, each.key, size(each.size_bytes), age(each.built_at), each.name, each.origin, "templates" if each.held else ""]
            for each in found
        ]
        table(["KIND", "KEY", "SIZE", "BUILT", "NAME", "FROM", "USE"], rows)


@images.command("update")
def update(
    *,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="TEMPLATE", help="Names of templates. Default: all built ones.", autocompletion=complete_templates)
    ] = None,
    cache: Cache = None,
    recipes: Recipes = None,
    json_output: JsonOutput = False,
) -> None:
    """Build images again from the present packages, and show which packages have changed.

    A recipe that others begin with is updated first. New sandboxes start from the new image once it is complete. Sandboxes and snapshots keep theirs.
    """
    store, progress = _store(cache, recipes), _TimedProgress()
    updated = []
    for each in store.update(names or [name for name in store.all_recipes if store.find(name) is not None], progress):
        updated.append(each)
        if not json_output:
            typer.echo(_update_line(each))
            for change in each.changes:
                typer.echo(f"  {change.kind}:{visible(change.name)} {visible(change.old) or '-'} -> {visible(change.new) or '-'}")
    for each in updated:
        store.root(each.new.name, progress)
        _make_root_image(store, each.new.name, progress)
    if json_output:
        rows = [
            {"name": each.new.name, "old": each.old and each.old.digest, "new": each.new.digest, "changes": list(each.changes)} for each in updated
        ]
        typer.echo(as_json(rows))


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
    """Delete builds that neither this version nor a template of a user needs; no sandbox may be running.

    Prints the number of deleted builds.
    """
    typer.echo(_store(cache, recipes).prune())


def _make_root_image(store: ImageStore, name: str, progress: Progress) -> None:
    """Make the EROFS image of a template, if the image that it is made with is built."""
    from sandlot.images.store import BUILDER

    if name != BUILDER and BUILDER in store.all_recipes and store.find(BUILDER) is not None:
        store.root_image(name, progress)


def _update_line(update: ImageUpdate) -> str:
    if update.old is None:
        return f"{update.new.name}: built, digest {update.new.digest[:12]}"
    if update.old.digest == update.new.digest:
        return f"{update.new.name}: unchanged, digest {update.new.digest[:12]}"
    return f"{update.new.name}: digest {update.old.digest[:12]} -> {update.new.digest[:12]}"


def _make_template(name: str, *, json_output: bool, **source: Any) -> None:  # noqa: ANN401 - arguments of `build`
    from sandlot.cli.templates import print_line
    from sandlot.sdk import Client

    with Client() as client:
        built = client.templates.build(_template_name(name), on_line=print_line, **source)
    typer.echo(as_json(built) if json_output else built.id)


def _template_name(text: str) -> str:
    """Return the name of the template for the name of an image or a file."""
    return re.sub(r"[^a-z0-9_-]+", "-", text.rpartition("/")[2].lower()).strip("-_")


def _store(cache: Path | None, recipes: Path | None) -> ImageStore:
    from sandlot.images import recipe_files
    from sandlot.images.store import ImageStore
    from sandlot.server.settings import Settings

    # On SIGTERM, raise SystemExit, so that a running build removes its incomplete files.
    signal.signal(signal.SIGTERM, _exit)
    settings, own = Settings.load(), recipe_files.load_folder(recipes) if recipes else {}
    return ImageStore(cache or settings.cache_dir, {**settings.recipes, **own}, reserve_bytes=settings.disk_reserve_bytes)


class _TimedProgress:
    """Prints each line of progress with the seconds since this object was created."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()

    def __call__(self, line: str) -> None:
        note(f"{time.monotonic() - self._started_s:7.1f} s  {line}")


def _exit(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)
