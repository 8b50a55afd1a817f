"""The image store: builds and caches the root file systems of templates.

A root is built from these parts, each of which is built once and cached::

    recipe ──────────────► images/KEY ──────┐
                                            ├──► roots/DIGEST ──► RootFs, a folder
    interpreters/KEY ────► guests/KEY ──────┘         │
                                                      └─────────► root-images/DIGEST ──► RootFs, an EROFS image

Invariants:
- A KEY is a hash of a build's inputs. A DIGEST is a hash of the built content: two roots with the same digest are equal byte for byte. Two builds
  of one recipe have different digests if Debian's packages changed in between.
- An EROFS image is a complete copy of a root, which is made again in seconds, so it is a cache and can be evicted.
- Calls block: some milliseconds if nothing has to be built, else minutes. Call them in a thread.
- Callers must not write into returned folders, because other builds share their files by hard links.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sandlot.host.free_space import FreeSpace
from sandlot.images import build, interpreter, packages, root_image
from sandlot.images import recipe as recipes
from sandlot.images.build_cache import BuildCache
from sandlot.images.command import CommandRunner
from sandlot.images.package_changes import PackageChange, changes
from sandlot.images.progress import Progress, ProgressReporter, discard_progress
from sandlot.images.recipe import Recipe
from sandlot.link import payload
from sandlot.model.errors import NotFoundError
from sandlot.model.specs import GIB, RootFs

BUILDER = "builder"
"""Name of the recipe whose image has mkfs.erofs."""
MAX_ROOT_IMAGE_BYTES = 10 * GIB
"""Size of all EROFS images together above which those are evicted that have not been used for the longest time."""
UNUSED_ROOT_IMAGE_S = 600.0
"""Seconds since its last use after which an EROFS image may be evicted. A caller starts a sandbox from it within this time."""
DEFAULT_CACHE = Path("/var/cache/sandlot")
GUEST_GENERATION = 2
"""Part of a guest layer's key. Raise this number when a change of ``build_guest_layer`` makes it build another layer from the same sources."""


def cache_from(env: Mapping[str, str]) -> Path:
    """Return the cache directory: the value of ``SANDLOT_CACHE_DIR`` in ``env``, or ``/var/cache/sandlot`` if the variable is unset or empty."""
    return Path(env.get("SANDLOT_CACHE_DIR") or DEFAULT_CACHE)


@dataclass(frozen=True, slots=True)
class Image:
    """A built image in the cache.

    Args:
        name: Name of the recipe.
        key: SHA-256 of the inputs of the build, in hexadecimal.
        digest: SHA-256 of the content of the image, in hexadecimal.
        path: Folder with the tree of the image, without ``/.sandlot``. It must not be written to.
        env: Environment variables of every process in sandboxes of the image.
        size_bytes: Total size of the files in the image.
        files: Number of files, folders and other entries in the image.
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
    """A build result in the cache.

    Args:
        kind: ``images``, ``interpreters``, ``guests``, ``roots`` or ``root-images``.
        key: Key of the result. For roots and EROFS images it is the digest.
        name: Name of the recipe, for images, roots and EROFS images. For the other kinds: ``interpreter`` or ``guest``.
        size_bytes: Total size of the files in the result.
        digest: SHA-256 of the content, in hexadecimal.
        built_at: Time of the build.
        origin: Base of an image: ``Debian SUITE`` or the name of another recipe. Empty for other kinds and unknown recipes.
    """

    kind: str
    key: str
    name: str
    size_bytes: int
    digest: str
    built_at: datetime
    origin: str = ""


@dataclass(frozen=True, slots=True)
class ImageUpdate:
    """An image that was built again.

    Args:
        old: The replaced image, whose path is no longer valid. None: there was none.
        new: The new image. It has the same digest if no file has changed.
        changes: Packages that differ.
    """

    old: Image | None
    new: Image
    changes: Sequence[PackageChange]


class ImageStore:
    """Builds and finds images, guest layers and root file systems in a cache directory, which any number of services may share.

    Args:
        cache: The cache directory. All its folders must be on one file system. The first build creates it if it does not exist.
        known: The recipes by name. None: all recipes that come with Sandlot.
        reserve_bytes: Bytes of the disk that builds leave free. None: 5 %, 1 to 4 GiB.
    """

    __slots__ = ("_cache", "_guests", "_images", "_interpreters", "_recipes", "_root_images", "_roots", "_space")

    def __init__(self, cache: Path, known: Mapping[str, Recipe] | None = None, *, reserve_bytes: int | None = None) -> None:
        self._cache = cache.absolute()
        self._space = FreeSpace(self._cache, reserve_bytes)
        self._recipes = recipes.shipped() if known is None else known
        self._images = BuildCache(self._cache, "images", self._space)
        self._interpreters = BuildCache(self._cache, "interpreters", self._space)
        self._guests = BuildCache(self._cache, "guests", self._space)
        self._roots = BuildCache(self._cache, "roots", self._space)
        self._root_images = BuildCache(self._cache, "root-images", self._space)

    @property
    def recipes(self) -> Mapping[str, Recipe]:
        """The recipes of templates by their names, without internal ones."""
        return {name: recipe for name, recipe in self._recipes.items() if not recipe.internal}

    @property
    def all_recipes(self) -> Mapping[str, Recipe]:
        """All recipes by their names, internal ones included."""
        return self._recipes

    def names(self) -> list[str]:
        """Return the names of all templates that have a recipe, sorted."""
        return sorted(self.recipes)

    def ensure(self, name: str, progress: Progress = discard_progress) -> Image:
        """Return the image of a template. If the image does not exist, build it and its missing ancestors first.

        Args:
            name: Name of the template.
            progress: Function that is called with a line of text for each step of a build. If this function raises, the build ends.

        Raises:
            NotFoundError: There is no such template. The hint lists the known templates.
            HostError: A program is not installed on the host, or a step of the build failed.
            LimitError: The disk is full, or no more than its reserve is free.
        """
        line = recipes.lineage(self._recipes, name)
        architecture = build.architecture()
        keys = [recipes.image_key(line[:number], architecture) for number in range(1, len(line) + 1)]
        parent: Path | None = None
        if self._images.find(keys[-1]) is None:
            for key, recipe in zip(keys, line, strict=True):
                parent = self._build_image(key, recipe, parent, progress) / build.TREE
        return self._image(name, keys[-1], recipes.environment(line))

    def update(self, names: Sequence[str], progress: Progress = discard_progress) -> Iterator[ImageUpdate]:
        """Build images again from the present packages, ancestors first. Yield each image once it has replaced the old one.

        Sandboxes and snapshots keep the root file systems that they use. A build that fails leaves the old image.

        Args:
            names: Names of templates, whose ancestors are updated as well.
            progress: Function that is called with a line of text for each step of a build. If this function raises, the update ends.

        Raises:
            NotFoundError: There is no such template.
            HostError: A program is not installed on the host, or a step of a build failed.
            LimitError: The disk is full, or no more than its reserve is free.
        """
        lines = [recipes.lineage(self._recipes, name) for name in names]
        architecture = build.architecture()
        trees: dict[str, Path] = {}
        for line in lines:
            parent: Path | None = None
            for recipe in line:
                key = recipes.image_key(recipes.lineage(self._recipes, recipe.name), architecture)
                if key not in trees:
                    old = self.find(recipe.name)
                    had = [] if old is None else packages.installed(str(old.path))
                    trees[key] = self._build_image(key, recipe, parent, progress, anew=True) / build.TREE
                    new = self._image(recipe.name, key, {})
                    yield ImageUpdate(old, new, changes(had, packages.installed(str(new.path))))
                parent = trees[key]

    def root(self, name: str, progress: Progress = discard_progress) -> RootFs:
        """Return the root file system of a template, including ``/.sandlot``. Build missing parts first.

        Args:
            name: Name of the template.
            progress: Function that is called with a line of text for each step of a build. If this function raises, the build ends.

        Raises:
            NotFoundError: There is no such template. The hint lists the known templates.
            HostError: A program is not installed on the host, or a step of the build failed.
            LimitError: The disk is full, or no more than its reserve is free.
        """
        image = self.ensure(name, progress)
        guest = self._guest(progress)
        digest = _root_digest(image.path.parent, guest)
        reporter = ProgressReporter(name, progress)

        def fill(folder: Path, _lock: int) -> None:
            reporter.step("adding the guest layer")
            build.build_root(folder, image.path, guest / build.TREE)
            (folder / build.MANIFEST).write_bytes((image.path.parent / build.MANIFEST).read_bytes())

        folder = self._roots.ensure(digest, fill, lambda: reporter.step("waiting for another process that is adding the guest layer"))
        return RootFs(digest=digest, tree=folder / build.TREE)

    def root_image(self, name: str, progress: Progress = discard_progress) -> RootFs:
        """Return the EROFS image of the root file system of a template. Make the image and build missing parts first.

        Args:
            name: Name of the template.
            progress: Function that is called with a line of text for each step of a build. If this function raises, the build ends.

        Raises:
            NotFoundError: There is no such template. The hint lists the known templates.
            HostError: A program is not installed on the host, or a step of the build failed.
            LimitError: The disk is full, or no more than its reserve is free.
        """
        return self._make_root_image(name, self.root(name, progress), self.ensure(BUILDER, progress), progress)

    def restore_root_image(self, digest: str, progress: Progress = discard_progress) -> RootFs | None:
        """Make an evicted EROFS image again. Return None if the folder that it was made from, or the image with mkfs.erofs, was removed.

        Raises:
            HostError: A step of the build failed.
            LimitError: The disk is full, or no more than its reserve is free.
        """
        builder = self.find(BUILDER) if BUILDER in self._recipes else None
        for key in () if builder is None else self._roots.keys():
            root = self.find_root(key)
            if builder is not None and root is not None and root_image.image_digest(key, builder.digest) == digest:
                name = str(build.read_manifest(root.require_tree().parent)["name"])
                return self._make_root_image(name, root, builder, progress)
        return None

    def find_root(self, digest: str) -> RootFs | None:
        """Return the root file system with this digest, a folder or an EROFS image, or None if it was removed. Counts as a use of an image.

        A new build of a template does not remove the folders of earlier builds.
        """
        folder, image = self._roots.find(digest), self._root_images.find(digest)
        if folder is not None:
            return RootFs(digest=digest, tree=folder / build.TREE)
        if image is not None:
            with contextlib.suppress(FileNotFoundError):  # it is being removed
                os.utime(image / build.MANIFEST)
                return RootFs(digest, image=image / root_image.IMAGE, index=image / root_image.INDEX)
        return None

    def find_current_root(self, name: str) -> RootFs | None:
        """Return the root file system that :meth:`root` returns, or None if a part of it has not been built. Builds nothing.

        Raises:
            NotFoundError: There is no such template.
        """
        image, guest = self.find(name), self._guests.find(self._guest_key(build.architecture()))
        return None if image is None or guest is None else self.find_root(_root_digest(image.path.parent, guest))

    def find_current_root_image(self, name: str) -> RootFs | None:
        """Return the EROFS image that :meth:`root_image` returns, or None if a part of it has not been built. Builds nothing.

        Raises:
            NotFoundError: There is no such template.
        """
        root, builder = self.find_current_root(name), self.find(BUILDER) if BUILDER in self._recipes else None
        return None if root is None or builder is None else self.find_root(root_image.image_digest(root.digest, builder.digest))

    def environment(self, name: str) -> Mapping[str, str]:
        """Return the environment variables of every process in sandboxes of a template.

        Raises:
            NotFoundError: There is no such template.
        """
        return recipes.environment(recipes.lineage(self._recipes, name))

    def languages(self, name: str) -> frozenset[str] | None:
        """Return the names of the languages whose compilers and interpreters a template has; None if its recipes name none.

        Raises:
            NotFoundError: There is no such template.
        """
        return frozenset(language for recipe in recipes.lineage(self._recipes, name) for language in recipe.languages) or None

    def find(self, name: str) -> Image | None:
        """Return the image of a template, or None if the image has not been built.

        Raises:
            NotFoundError: There is no such template.
        """
        line = recipes.lineage(self._recipes, name)
        key = recipes.image_key(line, build.architecture())
        return self._image(name, key, recipes.environment(line)) if self._images.find(key) is not None else None

    def find_image(self, digest: str) -> Image | None:
        """Return the image of a template with this digest, or None if no recipe has built it or if it was removed.

        Args:
            digest: Digest of the image, which earlier packages of its recipe may have had.
        """
        for key in self._images.keys():  # noqa: SIM118 - not a mapping
            folder = self._images.find(key)
            if folder is not None and (manifest := build.read_manifest(folder))["digest"] == digest:
                return self._image(str(manifest["name"]), key, {})
        return None

    def ensure_guest(self, progress: Progress = discard_progress) -> str:
        """Return the digest of this version's guest layer. Build the layer first if it does not exist."""
        return str(build.read_manifest(self._guest(progress))["digest"])

    def list(self) -> list[CachedBuild]:
        """Return all build results in the cache."""
        found = []
        for builds in self._caches():
            for key in builds.keys():  # noqa: SIM118 - not a mapping
                folder = builds.find(key)
                if folder is not None:
                    manifest = build.read_manifest(folder)
                    name = str(manifest["name"])
                    found.append(
                        CachedBuild(
                            builds.kind,
                            key,
                            name=name,
                            size_bytes=int(str(manifest["size_bytes"])),
                            digest=str(manifest["digest"]),
                            built_at=datetime.fromtimestamp(int(folder.stat().st_mtime), UTC),
                            origin=self._origin(name) if builds is self._images else "",
                        )
                    )
        return found

    def _origin(self, name: str) -> str:
        recipe = self._recipes.get(name)
        if recipe is None:
            return ""
        return recipe.parent or (f"Debian {recipe.debian.suite}" if recipe.debian else "")

    def remove(self, key: str) -> None:
        """Remove all build results with the given key. Other results that share files with these results by hard links stay complete.

        The caller must make sure that no sandbox uses a root file system that is removed.

        Raises:
            NotFoundError: No build result has this key.
        """
        if not sum(builds.remove(key) for builds in self._caches()):
            raise NotFoundError(f"No build result in {self._cache} has the key {key}.", hint="Run `sandlot image ls` to list all keys.")

    def prune(self, keep: Collection[str] = ()) -> int:
        """Remove all build results that neither the known recipes nor this version's guest need, and incomplete builds of dead processes.

        Args:
            keep: Digests of further roots that must not be removed, because sandboxes or snapshots use them.

        Returns:
            Number of removed build results and incomplete builds.
        """
        architecture = build.architecture()
        lineages = [recipes.lineage(self._recipes, name) for name in self._recipes]
        wanted = {*keep, interpreter.key(architecture), self._guest_key(architecture)}
        wanted.update(recipes.image_key(line, architecture) for line in lineages)
        for name in self._recipes:
            wanted.update(root.digest for root in (self.find_current_root(name), self.find_current_root_image(name)) if root is not None)
        removed = sum(builds.remove(key) for builds in self._caches() for key in builds.keys() if key not in wanted)  # noqa: SIM118
        return removed + self._roots.sweep()

    def _caches(self) -> tuple[BuildCache, ...]:
        return (self._root_images, self._roots, self._guests, self._interpreters, self._images)

    def _image(self, name: str, key: str, env: Mapping[str, str]) -> Image:
        folder = self._images.find(key)
        if folder is None:
            raise NotFoundError(f"The image of {name!r} was removed by another process during this call.", hint="Try again.")
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

    def _build_image(self, key: str, recipe: Recipe, parent: Path | None, progress: Progress, *, anew: bool = False) -> Path:
        reporter = ProgressReporter(recipe.name, progress)

        def fill(folder: Path, lock: int) -> None:
            build.build_image(folder, recipe, parent, self._runner(f"{recipe.name}-{key[:12]}", lock), reporter)

        make = self._images.rebuild if anew else self._images.ensure
        return make(key, fill, lambda: reporter.step("waiting for another process that is building this image"))

    def _make_root_image(self, name: str, root: RootFs, builder: Image, progress: Progress) -> RootFs:
        digest, reporter = root_image.image_digest(root.digest, builder.digest), ProgressReporter(name, progress)

        def fill(folder: Path, lock: int) -> None:
            reporter.step("making the EROFS image")
            runner = self._runner(f"root-image-{digest[:12]}", lock)
            root_image.build_root_image(root.require_tree(), digest, folder, builder.path, runner)
            size_bytes = sum(file.stat().st_size for file in folder.iterdir())
            (folder / build.MANIFEST).write_text(json.dumps({"name": name, "digest": digest, "size_bytes": size_bytes}) + "\n", encoding="utf-8")

        self._root_images.ensure(digest, fill, lambda: reporter.step("waiting for another process that is making the EROFS image"))
        self._evict_root_images()
        made = self.find_root(digest)
        if made is None:
            raise NotFoundError(f"The EROFS image of {name!r} was removed by another process during this call.", hint="Try again.")
        return made

    def _evict_root_images(self) -> None:
        """Remove the EROFS images that have not been used for the longest time, until the rest is not larger than ``MAX_ROOT_IMAGE_BYTES``.

        Sandboxes that run from a removed image have it open.
        """
        found = []
        for key in self._root_images.keys():  # noqa: SIM118 - not a mapping
            with contextlib.suppress(FileNotFoundError):
                manifest = self._cache / self._root_images.kind / key / build.MANIFEST
                found.append((manifest.stat().st_mtime, int(str(build.read_manifest(manifest.parent)["size_bytes"])), key))
        total_bytes = sum(size_bytes for _, size_bytes, _ in found)
        for used_s, size_bytes, key in sorted(found):
            if total_bytes > MAX_ROOT_IMAGE_BYTES and used_s < time.time() - UNUSED_ROOT_IMAGE_S:
                self._root_images.remove(key)
                total_bytes -= size_bytes

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
        base = self._interpreters.ensure(own, fill_interpreter, lambda: reporter.step("waiting for another process that is building the interpreter"))
        return self._guests.ensure(key, fill_guest, lambda: reporter.step("waiting for another process that is building the guest layer"))

    def _guest_key(self, architecture: str) -> str:
        return hashlib.sha256(f"{GUEST_GENERATION}\0{interpreter.key(architecture)}\0{payload.digest()}".encode()).hexdigest()

    def _runner(self, name: str, lock: int) -> CommandRunner:
        logs = self._cache / "logs"
        logs.mkdir(mode=0o700, exist_ok=True)
        log = logs / f"{name}.log"
        log.unlink(missing_ok=True)
        return CommandRunner(log, self._space, inherit=(lock,))


def _root_digest(image: Path, guest: Path) -> str:
    return hashlib.sha256(f"{build.read_manifest(image)['digest']}\0{build.read_manifest(guest)['digest']}".encode()).hexdigest()
