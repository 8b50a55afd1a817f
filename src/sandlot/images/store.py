"""The image store: from a template's name to a root file system, everything on the way built once and kept.

What is built from what::

    recipe ──────────────► images/KEY ──────┐
                                            ├──► roots/DIGEST ──► RootFs
    interpreters/KEY ────► guests/KEY ──────┘

Laws:
- A KEY says what a thing is made from, and finds it again. A DIGEST says what it holds: two roots of one digest are the same,
  byte for byte, also when Debian's packages changed between two builds of one recipe.
- The calls block, for minutes where something has to be built: run them in a thread. What is there is found in milliseconds.
- Nobody writes to what they return, ever; its files are shared by hard links.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from sandlot.images import build, interpreter
from sandlot.images import recipe as recipes
from sandlot.images.process import Runner
from sandlot.images.progress import Progress, Reporter, quiet
from sandlot.images.recipe import Recipe
from sandlot.images.shelf import Shelf
from sandlot.link import payload
from sandlot.model.errors import NotFoundError
from sandlot.model.specs import RootFs

DEFAULT_CACHE = Path("/var/cache/sandlot")
GUEST_GENERATION = 2
"""Raise it when :func:`~sandlot.images.build.guest_layer` makes something else out of the same sources."""


def cache_from(env: Mapping[str, str]) -> Path:
    """The cache directory that an environment names: ``SANDLOT_CACHE_DIR``, by default ``/var/cache/sandlot``."""
    return Path(env.get("SANDLOT_CACHE_DIR") or DEFAULT_CACHE)


@dataclass(frozen=True, slots=True)
class Image:
    """A built image.

    Args:
        name: The recipe's name.
        key: What it was made from.
        digest: What it holds, SHA-256 in hexadecimal.
        path: Its tree, without ``/.sandlot``; never written.
        env: What every process in it starts with.
        size_bytes: Bytes of its files.
        files: How many entries it has.
    """

    name: str
    key: str
    digest: str
    path: Path
    env: Mapping[str, str]
    size_bytes: int
    files: int


@dataclass(frozen=True, slots=True)
class Stored:
    """Something in the cache: ``kind`` is images, interpreters, guests or roots."""

    kind: str
    key: str
    name: str
    size_bytes: int


class ImageStore:
    """Images, guest layers and roots in a cache directory, which any number of services share.

    Args:
        cache: The directory; made when something is built. One file system.
        known: The recipes; by default those that come with Sandlot.
    """

    __slots__ = ("_cache", "_guests", "_images", "_interpreters", "_recipes", "_roots")

    def __init__(self, cache: Path, known: Mapping[str, Recipe] | None = None) -> None:
        self._cache = cache.absolute()
        self._recipes = recipes.builtin() if known is None else known
        self._images = Shelf(self._cache, "images")
        self._interpreters = Shelf(self._cache, "interpreters")
        self._guests = Shelf(self._cache, "guests")
        self._roots = Shelf(self._cache, "roots")

    def names(self) -> list[str]:
        """The templates that can be asked for."""
        return sorted(self._recipes)

    def ensure(self, name: str, progress: Progress = quiet) -> Image:
        """An image, built if it is not there, and before it whatever it begins with.

        Args:
            name: The template's name.
            progress: Takes a line for every step; an exception that it raises ends the build.

        Raises:
            NotFoundError: There is no such template; the hint lists those that there are.
            HostError: The host lacks something, or a step failed.
            LimitError: The disk is full.
        """
        line = recipes.line_of(self._recipes, name)
        architecture = build.architecture()
        keys = [recipes.key(line[:number], architecture) for number in range(1, len(line) + 1)]
        parent: Path | None = None
        if self._images.find(keys[-1]) is None:
            for key, recipe in zip(keys, line, strict=True):
                parent = self._build_image(key, recipe, parent, progress) / build.TREE
        return self._image(name, keys[-1], recipes.environment(line))

    def root(self, name: str, progress: Progress = quiet) -> RootFs:
        """A template's root file system, complete with ``/.sandlot``; as :meth:`ensure` otherwise."""
        image = self.ensure(name, progress)
        guest = self._guest(progress)
        digest = _root_digest(image.path.parent, guest)
        reporter = Reporter(name, progress)

        def fill(folder: Path, _lock: int) -> None:
            reporter.step("putting the guest in")
            build.compose(folder, image.path, guest / build.TREE)
            (folder / build.MANIFEST).write_bytes((image.path.parent / build.MANIFEST).read_bytes())

        folder = self._roots.ensure(digest, fill, lambda: reporter.step("another process is putting the guest in; waiting"))
        return RootFs(path=folder / build.TREE, digest=digest)

    def kept(self, digest: str) -> RootFs | None:
        """The root file system of a digest, where it is still there, whatever its template would be built to by now."""
        folder = self._roots.find(digest)
        return None if folder is None else RootFs(path=folder / build.TREE, digest=digest)

    def environment(self, name: str) -> Mapping[str, str]:
        """What every process of a template starts with.

        Raises:
            NotFoundError: There is no such template.
        """
        return recipes.environment(recipes.line_of(self._recipes, name))

    def find(self, name: str) -> Image | None:
        """An image if it is there; nothing is built.

        Raises:
            NotFoundError: There is no such template.
        """
        line = recipes.line_of(self._recipes, name)
        key = recipes.key(line, build.architecture())
        return self._image(name, key, recipes.environment(line)) if self._images.find(key) is not None else None

    def list(self) -> list[Stored]:
        """Everything in the cache."""
        found = []
        for shelf in self._shelves():
            for key in shelf.held():
                folder = shelf.find(key)
                if folder is not None:
                    words = build.manifest(folder)
                    found.append(Stored(kind=shelf.kind, key=key, name=str(words["name"]), size_bytes=int(str(words["size_bytes"]))))
        return found

    def remove(self, key: str) -> None:
        """Remove one thing by its key. What was put together from it stays: files go with their last name.

        The caller sees to it that no sandbox lives on a root that it removes.

        Raises:
            NotFoundError: There is no such thing.
        """
        if not sum(shelf.remove(key) for shelf in self._shelves()):
            raise NotFoundError(f"Nothing in {self._cache} has the key {key}.", hint="`python -m sandlot.images list` shows what there is.")

    def prune(self, keep: Collection[str] = ()) -> int:
        """Remove what the known recipes and this version's guest do not lead to, and what dead builders left.

        Args:
            keep: Digests of roots that must stay: those that sandboxes and snapshots use.

        Returns:
            How many things were removed.
        """
        architecture = build.architecture()
        lines = [recipes.line_of(self._recipes, name) for name in self._recipes]
        wanted = {*keep, interpreter.key(architecture), self._guest_key(architecture)}
        wanted.update(recipes.key(line, architecture) for line in lines)
        guest = self._guests.find(self._guest_key(architecture))
        if guest is not None:
            for line in lines:
                folder = self._images.find(recipes.key(line, architecture))
                if folder is not None:
                    wanted.add(_root_digest(folder, guest))
        removed = sum(shelf.remove(key) for shelf in self._shelves() for key in shelf.held() if key not in wanted)
        return removed + self._roots.sweep()

    def _shelves(self) -> tuple[Shelf, ...]:
        return (self._roots, self._guests, self._interpreters, self._images)

    def _image(self, name: str, key: str, env: Mapping[str, str]) -> Image:
        folder = self._images.find(key)
        if folder is None:
            raise NotFoundError(f"The image of {name} was removed while it was being looked up.", hint="Ask again.")
        words = build.manifest(folder)
        return Image(
            name=name,
            key=key,
            digest=str(words["digest"]),
            path=folder / build.TREE,
            env=env,
            size_bytes=int(str(words["size_bytes"])),
            files=int(str(words["files"])),
        )

    def _build_image(self, key: str, recipe: Recipe, parent: Path | None, progress: Progress) -> Path:
        reporter = Reporter(recipe.name, progress)

        def fill(folder: Path, lock: int) -> None:
            build.image(folder, recipe, parent, self._runner(f"{recipe.name}-{key[:12]}", lock), reporter)

        return self._images.ensure(key, fill, lambda: reporter.step("another process is building it; waiting for that"))

    def _guest(self, progress: Progress) -> Path:
        architecture = build.architecture()
        key = self._guest_key(architecture)
        reporter = Reporter("guest", progress)

        def fill_interpreter(folder: Path, lock: int) -> None:
            build.guest_interpreter(folder, self._runner(f"interpreter-{own[:12]}", lock), reporter)

        def fill_guest(folder: Path, lock: int) -> None:
            build.guest_layer(folder, base / build.TREE, self._runner(f"guest-{key[:12]}", lock))

        found = self._guests.find(key)
        if found is not None:
            return found
        own = interpreter.key(architecture)
        base = self._interpreters.ensure(
            own, fill_interpreter, lambda: reporter.step("another process is building its interpreter; waiting for that")
        )
        return self._guests.ensure(key, fill_guest, lambda: reporter.step("another process is building it; waiting for that"))

    def _guest_key(self, architecture: str) -> str:
        return hashlib.sha256(f"{GUEST_GENERATION}\0{interpreter.key(architecture)}\0{payload.digest()}".encode()).hexdigest()

    def _runner(self, name: str, lock: int) -> Runner:
        logs = self._cache / "logs"
        logs.mkdir(mode=0o700, exist_ok=True)
        log = logs / f"{name}.log"
        log.unlink(missing_ok=True)
        return Runner(log, inherit=(lock,))


def _root_digest(image: Path, guest: Path) -> str:
    return hashlib.sha256(f"{build.manifest(image)['digest']}\0{build.manifest(guest)['digest']}".encode()).hexdigest()
