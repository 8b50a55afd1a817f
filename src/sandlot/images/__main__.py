"""Command ``python -m sandlot.images``: build, list and remove images from a shell.

Progress is printed to standard error, results to standard output.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from sandlot.images import recipe
from sandlot.images.store import ImageStore, cache_from
from sandlot.model.errors import SandlotError


def main(argv: list[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: Arguments of the command line. None: the arguments of this process.

    Returns:
        The exit status: 0 for success, 1 for an error, 130 for an interruption by Ctrl+C. The reason is printed to standard error.
    """
    parser = argparse.ArgumentParser(prog="python -m sandlot.images", description="Build and manage the images that sandboxes start from.")
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--cache", type=Path, default=cache_from(os.environ), help="the cache directory (SANDLOT_CACHE_DIR, or /var/cache/sandlot)")
    shared.add_argument("--recipes", type=Path, help="a folder with further recipes, in addition to those that come with Sandlot")
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build", parents=[shared], help="build templates that are not built yet, and print their root folders")
    building.add_argument("names", nargs="+", metavar="NAME")
    commands.add_parser("list", parents=[shared], help="list the content of the cache")
    removing = commands.add_parser("remove", parents=[shared], help="remove builds by their keys")
    removing.add_argument("keys", nargs="+", metavar="KEY")
    commands.add_parser("prune", parents=[shared], help="remove builds that this version does not use; no sandbox may be running")
    arguments = parser.parse_args(argv)

    # On SIGTERM, raise SystemExit, so that a running build removes its incomplete files.
    signal.signal(signal.SIGTERM, _exit)
    try:
        own = recipe.load_folder(arguments.recipes) if arguments.recipes else {}
        store = ImageStore(arguments.cache, {**recipe.builtin(), **own})
        match arguments.command:
            case "build":
                progress = _TimedProgress()
                for name in arguments.names:
                    print(store.root(name, progress).tree)
            case "list":
                for stored in store.list():
                    print(f"{stored.kind:<13} {stored.key}  {stored.size_bytes / 1e6:8.1f} MB  {stored.name}")
            case "remove":
                for key in arguments.keys:
                    store.remove(key)
            case _:
                print(f"{store.prune()} removed", file=sys.stderr)
    except SandlotError as error:
        print(f"sandlot: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("sandlot: interrupted; incomplete builds were removed.", file=sys.stderr)
        return 130
    return 0


class _TimedProgress:
    """Prints each line of progress with the seconds since this object was created."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()

    def __call__(self, line: str) -> None:
        print(f"{time.monotonic() - self._started_s:7.1f} s  {line}", file=sys.stderr, flush=True)


def _exit(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
