"""``python -m sandlot.images``: build, list and remove images from a shell. Progress goes to stderr, results to stdout."""

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
    """Run a command line.

    Returns:
        The exit status: 0, or 1 with the reason on stderr.
    """
    parser = argparse.ArgumentParser(prog="python -m sandlot.images", description="What sandboxes start from.")
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--cache", type=Path, default=cache_from(os.environ), help="the cache directory (SANDLOT_CACHE_DIR, or /var/cache/sandlot)")
    shared.add_argument("--recipes", type=Path, help="a folder with recipes of your own, beside those that come with Sandlot")
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build", parents=[shared], help="build templates that are not there yet, and print their root folders")
    building.add_argument("names", nargs="+", metavar="NAME")
    commands.add_parser("list", parents=[shared], help="what is in the cache")
    removing = commands.add_parser("remove", parents=[shared], help="remove things by their keys")
    removing.add_argument("keys", nargs="+", metavar="KEY")
    commands.add_parser("prune", parents=[shared], help="remove what this version does not use; no sandbox may be running")
    words = parser.parse_args(argv)

    # An end asked for politely goes the way of an error: the build cleans up behind itself.
    signal.signal(signal.SIGTERM, _leave)
    try:
        own = recipe.load_folder(words.recipes) if words.recipes else {}
        store = ImageStore(words.cache, {**recipe.builtin(), **own})
        match words.command:
            case "build":
                clock = _Clock()
                for name in words.names:
                    print(store.root(name, clock).path)
            case "list":
                for stored in store.list():
                    print(f"{stored.kind:<13} {stored.key}  {stored.size_bytes / 1e6:8.1f} MB  {stored.name}")
            case "remove":
                for key in words.keys:
                    store.remove(key)
            case _:
                print(f"{store.prune()} removed", file=sys.stderr)
    except SandlotError as error:
        print(f"sandlot: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("sandlot: interrupted; nothing half built is left.", file=sys.stderr)
        return 130
    return 0


class _Clock:
    """Prints progress with the seconds since the first line."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()

    def __call__(self, line: str) -> None:
        print(f"{time.monotonic() - self._began_s:7.1f} s  {line}", file=sys.stderr, flush=True)


def _leave(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
