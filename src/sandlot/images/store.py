"""The image store: builds and caches the root file systems of templates.

A root is built from these parts, each of which is built once and cached::

    recipe ──────────────► images/KEY ──────┐
                                            ├──► roots/DIGEST ──► RootFs, a folder
    interpreters/KEY ────► guests/KEY ──────┘         │
                                                      └─────────► root-images/DIGEST ──► RootFs, an EROFS image

Invariants:
- A KEY is a hash of a build's inputs. A DIGEST is a hash of the built content: two roots with the same digest are equal byte for byte. Two builds
  of one recipe have different digests if Debian's packages changed in between.
- An EROFS image is a complete copy of a root, which is made again in seconds, so it is a cache and can be evicted. Those that only builds use never
  evict those of templates. An update keeps the image with mkfs.erofs that it replaces, because memory is restored only on an image with the same
  layout.
- An image with which builds of users begin stays as long as a service lists it (:meth:`ImageStore.hold_images`). If it is updated, the old one is
  kept under its digest as a key before it is replaced. No service changes its list between both steps.
- An update can replace an image at any time. What is made of an image is discarded and made again if the image was replaced meanwhile.
- Calls block: some milliseconds if nothing has to be built, else minutes. Call them in a thread.
- Callers must not write into returned folders, because other builds share their files by hard links.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar, cast

from sandlot.host import durable, locked_folder
from sandlot.host.free_space import FreeSpace
from sandlot.host.locked_folder import LockedFolder
from sandlot.images import build, erofs_image, interpreter, packages, recipe_files, tree
from sandlot.images import recipe as recipes
from sandlot.images.artifact_cache import ArtifactCache, translated_errors
from sandlot.images.build_stop import BuildStop
from sandlot.images.command import CommandRunner
from sandlot.images.package_changes import PackageChange, changes
from sandlot.images.progress import Progress, ProgressReporter, discard_progress
from sandlot.images.recipe import Recipe
from sandlot.link import payload
from sandlot.model.errors import ConflictError, NotFoundError
from sandlot.model.specs import GIB, RootFs

T = TypeVar("T")

BUILDER = "builder"
"""Name of the recipe whose image has mkfs.erofs."""
WITH_BASE = f"{BUILDER}+"
"""Beginning of the name of an EROFS image of the builder that has the EROFS image of another image as a file. The digest of this image follows."""
MAX_ROOT_IMAGE_BYTES = 10 * GIB
"""Size of all EROFS images together above which those are evicted that have not been used for the longest time, those of builds first."""
_ATTEMPTS = 10
"""Attempts to make something of an image that other processes replace or remove."""
UNUSED_ROOT_IMAGE_S = 600.0
"""Seconds since its last use after which an EROFS image may be evicted. A caller starts a sandbox from it within this time."""
HELD = "held"
"""Name of the folder with a file for each service: digests of images, one on a line."""
HOLD_S = 30 * 24 * 3600.0
"""Seconds after which the list of a service is ignored that has not written it again, because the service was removed."""
GUEST_GENERATION = 2
"""Part of a guest layer's key. Raise this number when a change of ``build_guest_layer`` makes it build another layer from the same sources."""


@dataclass(frozen=True, slots=True)
class Image:
    """A built image in the cache.

    Args:
        name: Name of the recipe.
        key: SHA-256 of the inputs of the build, in hexadecimal.
        digest: SHA-256 of the content of the image, in hexadecimal.
        path: Folder with the tree of the image, without ``/.sandlot``. It must not be written to.
        size_bytes: Total size of the files in the image.
        files: Number of files, folders and other entries in the image.
        languages: Versions of the compilers and interpreters in the image, by the names of their languages.
    """

    name: str
    key: str
    digest: str
    path: Path
    size_bytes: int
    files: int
    languages: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CachedArtifact:
    """A cached artifact.

    Args:
        kind: ``images``, ``interpreters``, ``guests``, ``roots`` or ``root-images``.
        key: Key of the artifact. For roots and EROFS images it is the digest.
        name: Name of the recipe, for images, roots and EROFS images. For the other kinds: ``interpreter`` or ``guest``.
        size_bytes: Total size of the files in the artifact.
        digest: SHA-256 of the content, in hexadecimal.
        built_at: Time of the build.
        origin: Base of an image: ``Debian SUITE`` or the name of another recipe. Empty for other kinds and unknown recipes.
        held: True for an image with which a build of a user begins.
    """

    kind: str
    key: str
    name: str
    size_bytes: int
    digest: str
    built_at: datetime
    origin: str = ""
    held: bool = False


@dataclass(frozen=True, slots=True)
class ImageUpdate:
    """An image that was built again.

    Args:
        old: The replaced image, whose path names the new one. None: there was none.
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

    Attributes:
        stop: Ends all builds of this store when the service stops.
    """

    __slots__ = ("_cache", "_guests", "_images", "_interpreters", "_recipes", "_root_images", "_roots", "_space", "stop")

    def __init__(self, cache: Path, known: Mapping[str, Recipe] | None = None, *, reserve_bytes: int | None = None) -> None:
        self._cache = cache.absolute()
        self._space = FreeSpace(self._cache, reserve_bytes)
        self.stop = BuildStop()
        self._recipes = recipe_files.shipped() if known is None else known
        self._images = ArtifactCache(self._cache, "images", self._space, self.stop)
        self._interpreters = ArtifactCache(self._cache, "interpreters", self._space, self.stop)
        self._guests = ArtifactCache(self._cache, "guests", self._space, self.stop)
        self._roots = ArtifactCache(self._cache, "roots", self._space, self.stop)
        self._root_images = ArtifactCache(self._cache, "root-images", self._space, self.stop)

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
            for number, key in enumerate(keys, 1):
                parent = self._build_image(key, line[:number], parent, progress) / build.TREE
        return self._image(name, keys[-1])

    def update(self, names: Sequence[str], progress: Progress = discard_progress) -> Iterator[ImageUpdate]:
        """Build images again from the present packages, ancestors first. Yield each image once it has replaced the old one.

        Sandboxes and snapshots keep the root file systems that they use, and builds of users the images with which they begin. A build that fails
        leaves the old image.

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
            for number, recipe in enumerate(line, 1):
                key = recipes.image_key(recipes.lineage(self._recipes, recipe.name), architecture)
                if key not in trees:
                    old = self.find(recipe.name)
                    had = [] if old is None else packages.installed(str(old.path))
                    trees[key] = self._build_image(key, line[:number], parent, progress, anew=True) / build.TREE
                    new = self._image(recipe.name, key)
                    self.remove_unheld()  # also that of an update that has changed nothing
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
        return _repeat(lambda: self._add_guest(self.ensure(name, progress), progress))

    def _add_guest(self, image: Image, progress: Progress) -> RootFs:
        """Return the root file system of an image, and make it first if it does not exist."""
        guest = self._guest(progress)
        digest, reporter = _root_digest(image.digest, guest), ProgressReporter(image.name, progress)

        def fill(folder: Path, _lock: int) -> None:
            reporter.step("adding the guest layer")
            with _unchanged(image):
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
        return _repeat(lambda: self._make_root_image(name, self.root(name, progress), self.ensure(BUILDER, progress), progress))

    def base_image(self, base: str, progress: Progress = discard_progress) -> RootFs:
        """Return the EROFS image of the root file system of an image, with which root images of builds begin. Make it first.

        Args:
            base: Digest of the image, which an update may have replaced meanwhile.
            progress: Function that is called with a line of text for each step. If this function raises, the call ends.

        Raises:
            NotFoundError: The image was removed.
            HostError: A program is not installed on the host, or a step failed.
            LimitError: The disk is full, or no more than its reserve is free.
        """

        def make() -> RootFs:
            image = self.find_image(base)
            if image is None:
                raise NotFoundError(f"The image {base[:12]} was removed.", hint="Build it again.")
            return self._make_root_image(image.name, self._add_guest(image, progress), self.ensure(BUILDER, progress), progress)

        return _repeat(make)

    def builder_image(self, base: str, progress: Progress = discard_progress) -> RootFs:
        """Return the EROFS image of the builder with :meth:`base_image` as a file, which it need not be sent then. Make it first.

        Args:
            base: Digest of the other image.
            progress: Function that is called with a line of text for each step. If this function raises, the call ends.

        Raises:
            NotFoundError: The other image was removed.
            HostError: A program is not installed on the host, or a step failed.
            LimitError: The disk is full, or no more than its reserve is free.
        """
        with self.hold_base_image(base, progress) as below:
            return _repeat(
                lambda: self._make_root_image(f"{WITH_BASE}{base}", self.root(BUILDER, progress), self.ensure(BUILDER, progress), progress, below)
            )

    @contextlib.contextmanager
    def hold_base_image(self, base: str, progress: Progress = discard_progress) -> Iterator[Path]:
        """Return the file of :meth:`base_image`. The file stays until the context ends, also if the image is evicted or removed meanwhile.

        Arguments and errors are those of :meth:`base_image`.
        """

        def link(file: Path) -> Path:
            try:
                file.hardlink_to(self.base_image(base, progress).require_image())
            except FileNotFoundError as error:
                raise _ReplacedError from error
            return file

        with translated_errors(self._cache), LockedFolder(self._cache / "tmp", prefix="base-") as held:
            yield _repeat(lambda: link(held.path / erofs_image.IMAGE))

    def restore_root_image(self, digest: str, progress: Progress = discard_progress) -> RootFs | None:
        """Make an evicted EROFS image again. Return None if the folder that it was made from, or the image with mkfs.erofs, was removed.

        Raises:
            HostError: A step of the build failed.
            LimitError: The disk is full, or no more than its reserve is free.
        """
        return _repeat(lambda: self._restore_root_image(digest, progress))

    def _restore_root_image(self, digest: str, progress: Progress) -> RootFs | None:
        for builder in self._builders():
            for key in self._roots.keys():  # noqa: SIM118 - not a mapping
                root = self.find_root(key)
                if root is not None and erofs_image.image_digest(key, builder.digest) == digest:
                    name = str(build.read_manifest(root.require_tree().parent)["name"])
                    return self._make_root_image(name, root, builder, progress)
        return None

    def _builders(self) -> Iterator[Image]:
        """Yield the present image with mkfs.erofs and those that updates have replaced."""
        for key, _, name in self._list_images():
            if name == BUILDER:
                with contextlib.suppress(NotFoundError):
                    yield self._image(name, key)

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
                return RootFs(digest, image=image / erofs_image.IMAGE, index=image / erofs_image.INDEX)
        return None

    def find_current_root(self, name: str) -> RootFs | None:
        """Return the root file system that :meth:`root` returns, or None if a part of it has not been built. Builds nothing.

        Raises:
            NotFoundError: There is no such template.
        """
        image, guest = self.find(name), self._guests.find(self._guest_key(build.architecture()))
        return None if image is None or guest is None else self.find_root(_root_digest(image.digest, guest))

    def find_current_root_image(self, name: str) -> RootFs | None:
        """Return the EROFS image that :meth:`root_image` returns, or None if a part of it has not been built. Builds nothing.

        Raises:
            NotFoundError: There is no such template.
        """
        root, builder = self.find_current_root(name), self.find(BUILDER) if BUILDER in self._recipes else None
        return None if root is None or builder is None else self.find_root(erofs_image.image_digest(root.digest, builder.digest))

    def root_digests(self, image: Image) -> frozenset[str]:
        """Return the digests of the root file systems that are made of an image: of the folder, and of the EROFS image if it can be made."""
        guest, builder = self._guests.find(self._guest_key(build.architecture())), self.find(BUILDER) if BUILDER in self._recipes else None
        if guest is None:
            return frozenset()
        digest = _root_digest(image.digest, guest)
        return frozenset({digest} if builder is None else {digest, erofs_image.image_digest(digest, builder.digest)})

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
        return frozenset(language.name for language in recipes.languages_of(recipes.lineage(self._recipes, name))) or None

    def memory_bytes(self, name: str) -> int | None:
        """Return the memory limit of sandboxes of a template whose request names none; None: that of the service.

        Raises:
            NotFoundError: There is no such template.
        """
        return recipes.memory_bytes(recipes.lineage(self._recipes, name))

    def find(self, name: str) -> Image | None:
        """Return the image of a template, or None if the image has not been built.

        Raises:
            NotFoundError: There is no such template.
        """
        line = recipes.lineage(self._recipes, name)
        key = recipes.image_key(line, build.architecture())
        return self._image(name, key) if self._images.find(key) is not None else None

    def find_image(self, digest: str) -> Image | None:
        """Return the image of a template with this digest, or None if no recipe has built it or if it was removed.

        Args:
            digest: Digest of the image, which earlier packages of its recipe may have had.
        """
        key = next((key for key, found, _ in self._list_images() if found == digest), None)
        folder = None if key is None else self._images.find(key)
        return None if key is None or folder is None else self._image(str(build.read_manifest(folder)["name"]), key)

    def hold_images(self, node: str, digests: Collection[str]) -> None:
        """Keep images until the service of a node calls this again, with which builds of its users begin.

        Args:
            node: Id of the node.
            digests: Digests of the images.

        Raises:
            HostError: The cache directory is not writable.
            LimitError: The disk of the cache directory is full.
        """
        with translated_errors(self._cache), self._held_locked():
            durable.write_file(self._cache / HELD / node, "".join(f"{digest}\n" for digest in sorted(digests)).encode())

    def held_images(self, node: str) -> set[str]:
        """Return the digests of the images that the service of a node has listed last."""
        with contextlib.suppress(FileNotFoundError):
            return set((self._cache / HELD / node).read_text(encoding="ascii").split())
        return set()

    def remove_unheld(self) -> int:
        """Remove the images that updates have kept and that no service holds anymore, except images with mkfs.erofs. Return their number."""
        if not (self._cache / HELD).is_dir():
            return 0
        with self._held_locked():
            held, images = self._held(), self._list_images()
            current = {digest for key, digest, _ in images if key != digest}
            unheld = {key for key, digest, name in images if key == digest and key not in held and name != BUILDER}
            return sum(self._images.remove(key) for key, digest, _ in images if key == digest and (key in unheld or key in current))

    @contextlib.contextmanager
    def _held_locked(self) -> Iterator[None]:
        """Lock the lists of held images."""
        self._cache.mkdir(parents=True, exist_ok=True)
        (self._cache / HELD).mkdir(mode=0o700, exist_ok=True)
        descriptor = locked_folder.lock_folder(self._cache / HELD)
        try:
            yield
        finally:
            os.close(descriptor)

    def _held(self) -> set[str]:
        """Return the digests of the images that services hold."""
        held: set[str] = set()
        with contextlib.suppress(FileNotFoundError):
            for file in (self._cache / HELD).iterdir():
                with contextlib.suppress(FileNotFoundError):
                    if file.stat().st_mtime > time.time() - HOLD_S:
                        held.update(file.read_text(encoding="ascii").split())
        return held

    def _list_images(self) -> list[tuple[str, str, str]]:
        """Return the key, the digest and the name of each image."""
        found = []
        for key in self._images.keys():  # noqa: SIM118 - not a mapping
            folder = self._images.find(key)
            with contextlib.suppress(FileNotFoundError):  # another process has removed it meanwhile
                if folder is not None:
                    manifest = build.read_manifest(folder)
                    found.append((key, str(manifest["digest"]), str(manifest["name"])))
        return found

    @contextlib.contextmanager
    def _replacing(self, key: str) -> Iterator[None]:
        """Keep the image with a key if it is still needed, and let no service begin to hold it until the body has replaced it."""
        with self._held_locked():
            if (old := self._images.find(key)) is not None:
                self._keep_held(old)
            yield

    def _keep_held(self, old: Path) -> None:
        """Keep an image, if a service holds it or it has mkfs.erofs, under its digest as a key. Its files are hard links."""
        manifest = build.read_manifest(old)
        digest = str(manifest["digest"])
        if digest not in self._held() and manifest["name"] != BUILDER:
            return

        def fill(folder: Path, _lock: int) -> None:
            tree.link_tree(old / build.TREE, folder / build.TREE)
            (folder / build.MANIFEST).write_bytes((old / build.MANIFEST).read_bytes())

        self._images.ensure(digest, fill, lambda: None)

    def ensure_guest(self, progress: Progress = discard_progress) -> str:
        """Return the digest of this version's guest layer. Build the layer first if it does not exist."""
        return str(build.read_manifest(self._guest(progress))["digest"])

    def list(self) -> list[CachedArtifact]:
        """Return all artifacts in the cache."""
        found, held = [], self._held()
        for cache in self._caches():
            for key in cache.keys():  # noqa: SIM118 - not a mapping
                folder = cache.find(key)
                with contextlib.suppress(FileNotFoundError):  # another process has removed it meanwhile
                    if folder is None:
                        continue
                    manifest = build.read_manifest(folder)
                    name = str(manifest["name"])
                    found.append(
                        CachedArtifact(
                            cache.kind,
                            key,
                            name=name,
                            size_bytes=int(str(manifest["size_bytes"])),
                            digest=str(manifest["digest"]),
                            built_at=datetime.fromtimestamp(int(folder.stat().st_mtime), UTC),
                            origin=self._origin(name) if cache is self._images else "",
                            held=cache is self._images and manifest["digest"] in held,
                        )
                    )
        return found

    def _origin(self, name: str) -> str:
        recipe = self._recipes.get(name)
        if recipe is None:
            return ""
        return recipe.parent or (f"Debian {recipe.debian.suite}" if recipe.debian else "")

    def remove(self, key: str) -> None:
        """Remove all artifacts with the given key. Other artifacts that share files with them by hard links stay complete.

        The caller must make sure that no sandbox uses a root file system that is removed.

        Raises:
            NotFoundError: No artifact has this key.
        """
        if not sum(cache.remove(key) for cache in self._caches()):
            raise NotFoundError(f"No build result in {self._cache} has the key {key}.", hint="Run `sandlot image ls` to list all keys.")

    def prune(self, keep: Collection[str] = ()) -> int:
        """Remove all artifacts that neither the known recipes nor this version's guest need, and incomplete builds of dead processes.

        Images with which builds of users begin stay.

        Args:
            keep: Digests of further roots that must not be removed, because sandboxes or snapshots use them.

        Returns:
            Number of removed artifacts and incomplete builds.
        """
        architecture = build.architecture()
        lineages = [recipes.lineage(self._recipes, name) for name in self._recipes]
        wanted = {*keep, interpreter.key(architecture), self._guest_key(architecture)}
        wanted.update(recipes.image_key(line, architecture) for line in lineages)
        held = self._held()
        wanted.update(key for key, digest, _ in self._list_images() if digest in held)
        for name in self._recipes:
            wanted.update(root.digest for root in (self.find_current_root(name), self.find_current_root_image(name)) if root is not None)
        removed = sum(cache.remove(key) for cache in self._caches() for key in cache.keys() if key not in wanted)  # noqa: SIM118
        return removed + self._roots.sweep()

    def _caches(self) -> tuple[ArtifactCache, ...]:
        return (self._root_images, self._roots, self._guests, self._interpreters, self._images)

    def _image(self, name: str, key: str) -> Image:
        folder = self._images.find(key)
        if folder is None:
            raise NotFoundError(f"The image of {name!r} was removed by another process during this call.", hint="Try again.")
        manifest = build.read_manifest(folder)
        return Image(
            name=name,
            key=key,
            digest=str(manifest["digest"]),
            path=folder / build.TREE,
            size_bytes=int(str(manifest["size_bytes"])),
            files=int(str(manifest["files"])),
            languages=cast("Mapping[str, str]", manifest.get("languages", {})),
        )

    def _build_image(self, key: str, line: Sequence[Recipe], parent: Path | None, progress: Progress, *, anew: bool = False) -> Path:
        name = line[-1].name
        reporter = ProgressReporter(name, progress)

        def fill(folder: Path, lock: int) -> None:
            build.build_image(folder, line, parent, self._runner(f"{name}-{key[:12]}", lock), reporter)

        def wait() -> None:
            reporter.step("waiting for another process that is building this image")

        return self._images.rebuild(key, fill, wait, lambda: self._replacing(key)) if anew else self._images.ensure(key, fill, wait)

    def _make_root_image(self, name: str, root: RootFs, builder: Image, progress: Progress, base: Path | None = None) -> RootFs:
        content = root.digest if base is None else f"{root.digest}\0{erofs_image.read_uuid(base)}"
        digest, reporter = erofs_image.image_digest(content, builder.digest), ProgressReporter(name, progress)

        def fill(folder: Path, lock: int) -> None:
            reporter.step("making the EROFS image")
            runner = self._runner(f"root-image-{digest[:12]}", lock)
            with _unchanged(builder):
                erofs_image.build_erofs_image(root.require_tree(), digest, folder, builder.path, runner, base)
            size_bytes = sum(file.stat().st_size for file in folder.iterdir())
            (folder / build.MANIFEST).write_text(json.dumps({"name": name, "digest": digest, "size_bytes": size_bytes}) + "\n", encoding="utf-8")

        self._root_images.ensure(digest, fill, lambda: reporter.step("waiting for another process that is making the EROFS image"))
        self._evict_root_images()
        made = self.find_root(digest)
        if made is None:  # it was removed meanwhile
            raise _ReplacedError
        return made

    def _evict_root_images(self) -> None:
        """Remove the EROFS images that have not been used for the longest time, until the rest is not larger than ``MAX_ROOT_IMAGE_BYTES``.

        Only builds use the images of the builder with a base, so these are removed first. Images of templates are removed only if they alone are
        larger. Sandboxes that run from a removed image have it open.
        """
        builds, templates = list[tuple[float, int, str]](), list[tuple[float, int, str]]()
        for key in self._root_images.keys():  # noqa: SIM118 - not a mapping
            with contextlib.suppress(FileNotFoundError):
                folder = self._cache / self._root_images.kind / key
                manifest, used_s = build.read_manifest(folder), (folder / build.MANIFEST).stat().st_mtime
                of = builds if str(manifest["name"]).startswith(WITH_BASE) else templates
                of.append((used_s, int(str(manifest["size_bytes"])), key))
        for found, kept in ((builds, templates), (templates, [])):
            total_bytes = sum(size_bytes for _, size_bytes, _ in (*found, *kept))
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
        return CommandRunner(log, self._space, inherit=(lock,), stop=self.stop)


class _ReplacedError(Exception):
    """Another process has replaced or removed an image while its files were read."""


@contextlib.contextmanager
def _unchanged(image: Image) -> Iterator[None]:
    """Check after the body, which reads the files of an image, that no update has replaced the image.

    An update that has changed nothing counts as well: the body may have read a folder whose old copy was being removed.

    Raises:
        _ReplacedError: The image was replaced, so that the body has read files of both or has failed.
    """
    try:
        folder = os.open(image.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise _ReplacedError from error
    try:
        if _is_replaced(image, folder):
            raise _ReplacedError
        try:
            yield
        except Exception as error:
            if _is_replaced(image, folder):
                raise _ReplacedError from error
            raise
        if _is_replaced(image, folder):
            raise _ReplacedError
    finally:
        os.close(folder)


def _is_replaced(image: Image, folder: int) -> bool:
    """Return True if the path of an image names another folder than the open one, or one with another digest."""
    try:
        return not os.path.samestat(image.path.parent.stat(), os.fstat(folder)) or build.read_manifest(image.path.parent)["digest"] != image.digest
    except FileNotFoundError:
        return True


def _repeat(make: Callable[[], T]) -> T:
    """Call a function again as long as an image was replaced or removed while the function used its files.

    Raises:
        ConflictError: This has happened in each of several attempts.
    """
    for _ in range(_ATTEMPTS):
        with contextlib.suppress(_ReplacedError):
            return make()
    raise ConflictError("Another process has replaced or removed the same image again and again.", hint="Try again once that process has ended.")


def _root_digest(image: str, guest: Path) -> str:
    return hashlib.sha256(f"{image}\0{build.read_manifest(guest)['digest']}".encode()).hexdigest()
