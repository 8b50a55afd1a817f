"""The image store: from the name of a template to its root file system. Every part is built once and cached.

Parts and what they are built from::

    recipe ──────────────► images/KEY ──────┐
                                            ├──► roots/DIGEST ──► RootFs
    interpreters/KEY ────► guests/KEY ──────┘

Invariants:
- A KEY identifies the inputs of a build. A DIGEST identifies its content: two roots with the same digest are equal byte for byte, even if
  Debian's packages changed between two builds of a recipe.
- Calls block, for minutes if something must be built; call them in a thread. Existing builds are found in milliseconds.
- Returned folders are never written, because their files are shared by hard links.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from sandlot.images import build, interpreter
from sandlot.images import recipe as recipes
from sandlot.images.build_cache import BuildCache
from sandlot.images.command import CommandRunner
from sandlot.images.progress import Progress, ProgressReporter, discard_progress
from sandlot.images.recipe import Recipe
from sandlot.link import payload
from sandlot.model.errors import NotFoundError
from sandlot.model.specs import RootFs

DEFAULT_CACHE = Path("/var/cache/sandlot")
GUEST_GENERATION = 2
"""Part of the key. Raise this number when :func:`~sandlot.images.build.build_guest_layer` builds another layer from the same sources."""


def cache_from(env: Mapping[str, str]) -> Path:
    """Return the cache directory of an environment: ``SANDLOT_CACHE_DIR``, by default ``/var/cache/sandlot``."""
    return Path(env.get("SANDLOT_CACHE_DIR") or DEFAULT_CACHE)


@dataclass(frozen=True, slots=True)
class Image:
    """A built image.

    Args:
        name: Name of the recipe.
        key: Identifies the inputs of the build.
        digest: SHA-256 of the content in hexadecimal.
        path: Tree of the image, without ``/.sandlot``; never written.
        env: Environment of every process.
        size_bytes: Bytes of its files.
        files: Number of its entries.
    """

    name: str
    key: str
    digest: str
    path: Path
    env: Mapping[str, str]
    size_bytes: int
    files: int


@dataclass(frozen=True, slots=True)
class CachedBuild:
    """A build in the cache. ``kind`` is ``images``, ``interpreters``, ``guests`` or ``roots``."""

    kind: str
    key: str
    name: str
    size_bytes: int


class ImageStore:
    """Images, guest layers and roots in a cache directory that any number of services may share.

    Args:
        cache: The directory, on one file system; created by the first build.
        known: The recipes; by default those that come with Sandlot.
    """

    __slots__ = ("_cache", "_guests", "_images", "_interpreters", "_recipes", "_roots")

    def __init__(self, cache: Path, known: Mapping[str, Recipe] | None = None) -> None:
        self._cache = cache.absolute()
        self._recipes = recipes.builtin() if known is None else known
        self._images = BuildCache(self._cache, "images")
        self._interpreters = BuildCache(self._cache, "interpreters")
        self._guests = BuildCache(self._cache, "guests")
        self._roots = BuildCache(self._cache, "roots")

    def names(self) -> list[str]:
        """Return the names of all templates."""
        return sorted(self._recipes)

    def ensure(self, name: str, progress: Progress = discard_progress) -> Image:
        """Return an image. Build it and its ancestors if they do not exist.

        Args:
            name: Name of the template.
            progress: Called with a line for each step. If it raises, the build ends.

        Raises:
            NotFoundError: There is no such template; the hint lists the known ones.
            HostError: A program is missing on the host, or a step failed.
            LimitError: The disk is full.
        """
        line = recipes.lineage(self._recipes, name)
        architecture = build.architecture()
        keys = [recipes.image_key(line[:number], architecture) for number in range(1, len(line) + 1)]
        parent: Path | None = None
        if self._images.find(keys[-1]) is None:
            for key, recipe in zip(keys, line, strict=True):
                parent = self._build_image(key, recipe, parent, progress) / build.TREE
        return self._image(name, keys[-1], recipes.environment(line))

    def root(self, name: str, progress: Progress = discard_progress) -> RootFs:
        """Return the root file system of a template, with ``/.sandlot``. Arguments and errors are those of :meth:`ensure`."""
        image = self.ensure(name, progress)
        guest = self._guest(progress)
        digest = _root_digest(image.path.parent, guest)
        reporter = ProgressReporter(name, progress)

        def fill(folder: Path, _lock: int) -> None:
            reporter.step("adding the guest")
            build.build_root(folder, image.path, guest / build.TREE)
            (folder / build.MANIFEST).write_bytes((image.path.parent / build.MANIFEST).read_bytes())

        folder = self._roots.ensure(digest, fill, lambda: reporter.step("waiting for another process that adds the guest"))
        return RootFs(path=folder / build.TREE, digest=digest)

    def find_root(self, digest: str) -> RootFs | None:
        """Return the root file system with a digest, or None if it was removed. Its template may have been built again since."""
        folder = self._roots.find(digest)
        return None if folder is None else RootFs(path=folder / build.TREE, digest=digest)

    def environment(self, name: str) -> Mapping[str, str]:
        """Return the environment of every process of a template.

        Raises:
            NotFoundError: There is no such template.
        """
        return recipes.environment(recipes.lineage(self._recipes, name))

    def find(self, name: str) -> Image | None:
        """Return an image, or None if it is not built.

        Raises:
            NotFoundError: There is no such template.
        """
        line = recipes.lineage(self._recipes, name)
        key = recipes.image_key(line, build.architecture())
        return self._image(name, key, recipes.environment(line)) if self._images.find(key) is not None else None

    def list(self) -> list[CachedBuild]:
        """Return all builds in the cache."""
        found = []
        for builds in self._caches():
            for key in builds.keys():  # noqa: SIM118 - not a mapping
                folder = builds.find(key)
                if folder is not None:
                    manifest = build.read_manifest(folder)
                    found.append(CachedBuild(builds.kind, key, name=str(manifest["name"]), size_bytes=int(str(manifest["size_bytes"]))))
        return found

    def remove(self, key: str) -> None:
        """Remove a build by its key. Builds that share its files by hard links stay complete.

        The caller ensures that no sandbox uses a root that is removed.

        Raises:
            NotFoundError: There is no such build.
        """
        if not sum(builds.remove(key) for builds in self._caches()):
            raise NotFoundError(f"Nothing in {self._cache} has the key {key}.", hint="`python -m sandlot.images list` lists all keys.")

    def prune(self, keep: Collection[str] = ()) -> int:
        """Remove builds that neither the known recipes nor this version's guest need, and incomplete builds of dead processes.

        Args:
            keep: Digests of roots that must stay, because sandboxes or snapshots use them.

        Returns:
            Number of removed builds.
        """
        architecture = build.architecture()
        lineages = [recipes.lineage(self._recipes, name) for name in self._recipes]
        wanted = {*keep, interpreter.key(architecture), self._guest_key(architecture)}
        wanted.update(recipes.image_key(line, architecture) for line in lineages)
        guest = self._guests.find(self._guest_key(architecture))
        if guest is not None:
            for line in lineages:
                folder = self._images.find(recipes.image_key(line, architecture))
                if folder is not None:
                    wanted.add(_root_digest(folder, guest))
        removed = sum(builds.remove(key) for builds in self._caches() for key in builds.keys() if key not in wanted)  # noqa: SIM118
        return removed + self._roots.sweep()

    def _caches(self) -> tuple[BuildCache, ...]:
        return (self._roots, self._guests, self._interpreters, self._images)

    def _image(self, name: str, key: str, env: Mapping[str, str]) -> Image:
        folder = self._images.find(key)
        if folder is None:
            raise NotFoundError(f"The image of {name} was removed during this call.", hint="Try again.")
        manifest = build.read_manifest(folder)
        return Image(
            name=name,
            key=key,
            digest=str(manifest["digest"]),
            path=folder / build.TREE,
            env=env,
            size_bytes=int(str(manifest["size_bytes"])),
            files=int(str(manifest["files"])),
        )

    def _build_image(self, key: str, recipe: Recipe, parent: Path | None, progress: Progress) -> Path:
        reporter = ProgressReporter(recipe.name, progress)

        def fill(folder: Path, lock: int) -> None:
            build.build_image(folder, recipe, parent, self._runner(f"{recipe.name}-{key[:12]}", lock), reporter)

        return self._images.ensure(key, fill, lambda: reporter.step("waiting for another process that builds it"))

    def _guest(self, progress: Progress) -> Path:
        architecture = build.architecture()
        key = self._guest_key(architecture)
        reporter = ProgressReporter("guest", progress)

        def fill_interpreter(folder: Path, lock: int) -> None:
            build.build_interpreter(folder, self._runner(f"interpreter-{own[:12]}", lock), reporter)

        def fill_guest(folder: Path, lock: int) -> None:
            build.build_guest_layer(folder, base / build.TREE, self._runner(f"guest-{key[:12]}", lock))

        found = self._guests.find(key)
        if found is not None:
            return found
        own = interpreter.key(architecture)
        base = self._interpreters.ensure(own, fill_interpreter, lambda: reporter.step("waiting for another process that builds its interpreter"))
        return self._guests.ensure(key, fill_guest, lambda: reporter.step("waiting for another process that builds it"))

    def _guest_key(self, architecture: str) -> str:
        return hashlib.sha256(f"{GUEST_GENERATION}\0{interpreter.key(architecture)}\0{payload.digest()}".encode()).hexdigest()

    def _runner(self, name: str, lock: int) -> CommandRunner:
        logs = self._cache / "logs"
        logs.mkdir(mode=0o700, exist_ok=True)
        log = logs / f"{name}.log"
        log.unlink(missing_ok=True)
        return CommandRunner(log, inherit=(lock,))


def _root_digest(image: Path, guest: Path) -> str:
    return hashlib.sha256(f"{build.read_manifest(image)['digest']}\0{build.read_manifest(guest)['digest']}".encode()).hexdigest()
