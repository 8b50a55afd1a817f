"""Finds the bases of builds among templates, image registries and archives.

Invariants:
- The layers of an image are stored before a build uses them, because a registry or an upload may be gone later.
- The image of a built-in template with which a build begins is held as long as the build is kept, so that its root image can be made again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from sandlot.builds.bases import BaseRoot
from sandlot.builds.layers import LayerStore
from sandlot.builds.merged_root_images import MergedRootImages
from sandlot.builds.plan import ArchiveBase, EmptyBase, ImageBase, TemplateBase
from sandlot.core.ports import ImageRegistry
from sandlot.host.blocking import run_blocking, run_in_own_thread
from sandlot.images.oci_archive import open_archive
from sandlot.images.progress import Progress
from sandlot.images.store import ImageStore
from sandlot.model.access import Principal
from sandlot.model.errors import ErrorCode, NotFoundError
from sandlot.model.ids import NodeId
from sandlot.model.image_aliases import ImageAliases
from sandlot.model.images import ImageConfig, ImageReference, parse_reference
from sandlot.model.paths import WORKSPACE
from sandlot.model.specs import GIB, TemplateRef
from sandlot.model.templates import BuildRecord, BuiltRoot
from sandlot.server.user_templates import UserTemplates

MAX_ARCHIVE_BYTES: Final = 10 * GIB
"""Largest size of an uploaded archive with an image, without compression."""


class ServiceBaseResolver:
    """Finds the bases of builds among the templates of the service, image registries and archives.

    Args:
        templates: Templates of the service.
        images: Images of the built-in templates.
        roots: Makes root images.
        layers: Stored layers.
        registry: Image registries.
        aliases: Images that other images or templates stand for.
        node: Id of the node, whose service holds images of built-in templates.
    """

    def __init__(
        self,
        *,
        templates: UserTemplates,
        images: ImageStore,
        roots: MergedRootImages,
        layers: LayerStore,
        registry: ImageRegistry,
        aliases: ImageAliases,
        node: NodeId,
    ) -> None:
        self._templates = templates
        self._images = images
        self._roots = roots
        self._layers = layers
        self._registry = registry
        self._aliases = aliases
        self._node = node
        self._held: set[str] = set()
        """Digests of the images of built-in templates that this service holds."""
        self._holding = asyncio.Lock()
        """Held while the stored list of held images is changed."""

    async def resolve(self, principal: Principal, base: ImageBase | TemplateBase | ArchiveBase | EmptyBase, report: Progress) -> BaseRoot:
        """Find a base, and make it ready to start sandboxes of the principal from. An image is pulled first.

        The name of a template, as in ``FROM base``, means the template also where an image is expected.

        Raises:
            NotFoundError: There is no such template or image.
            ForbiddenError: The operator does not allow the registry of the image.
            SandlotError: The image cannot be pulled, or has a forbidden layer.
        """
        match base:
            case TemplateBase(name):
                found = await self._template(principal, name, report)
                if found is None:
                    raise NotFoundError(
                        f"There is no template {name[:64]!r} to build from.",
                        code=ErrorCode.TEMPLATE_NOT_FOUND,
                        hint="List the templates to find their names.",
                        fields={"template": name[:64]},
                    )
                return found
            case ImageBase(reference):
                return await self._template(principal, reference, report) or await self._aliased(principal, reference, report)
            case ArchiveBase(path, image):
                return await self._archived(principal, path, image, report)
            case EmptyBase():
                return await self._layered(principal, BuiltRoot((), 0), ImageConfig(), report)

    async def prune(self, builds: Collection[BuildRecord]) -> None:
        """Release the images of built-in templates with which no build begins. Call this only while no build runs."""
        async with self._holding:
            await self._write_held({build.root.base for build in builds if build.root is not None and build.root.base})
        await run_in_own_thread(self._images.remove_unheld)

    async def _template(self, principal: Principal, name: str, report: Progress) -> BaseRoot | None:
        """Return a template as a base. A built-in template is built first if it has no build."""
        ref = await self._templates.find(principal, name)
        if ref is None:
            return None
        build = await self._templates.current_build(ref)
        if build is None:
            return await self._builtin(ref)
        if build.root is None:
            return None
        settings = build.settings
        config = ImageConfig(env=settings.env, user=settings.user, working_dir=settings.working_dir)
        # Lent: the name of the template can mean another build soon, and its sandboxes run the start command.
        return await self._layered(principal, build.root, config, report)

    async def _builtin(self, ref: TemplateRef) -> BaseRoot:
        resolved = await self._templates.build(ref, images=False)
        image = self._images.find(ref.name)
        if image is not None and image.digest not in self._held:
            await self._hold(image.digest)
            image = self._images.find(ref.name)  # again: from now on, an update keeps it
        if image is None or image.digest not in self._held:
            raise NotFoundError(f"The image of the template {ref.name} was removed or updated during the build.", hint="Try again.")
        config = ImageConfig(env=resolved.env, working_dir=WORKSPACE)
        root = BuiltRoot((), image.size_bytes, base=image.digest, base_name=ref.name)
        return BaseRoot(ref.name, root, image.digest, config, await run_blocking(self._images.root_digests, image))

    async def _hold(self, digest: str) -> None:
        """Add an image to the stored list, which an earlier process of the service may have written."""
        async with self._holding:
            if digest not in self._held:
                await self._write_held({*await run_in_own_thread(self._images.held_images, self._node), digest})

    async def _write_held(self, digests: set[str]) -> None:
        self._held = self._held & digests  # until the file is known to be written: the caller may be cancelled
        await run_in_own_thread(self._images.hold_images, self._node, digests)
        self._held = digests

    async def _aliased(self, principal: Principal, reference: str, report: Progress) -> BaseRoot:
        parsed = parse_reference(reference)
        alias = self._aliases.resolve(parsed)
        if alias is None:
            return await self._image(principal, parsed, report)
        report(alias.notice)
        if alias.image is not None:
            return await self._image(principal, alias.image, report)
        base = await self.resolve(principal, TemplateBase(alias.template), report)
        return replace(base, user=alias.user, key=f"{base.key} {alias.user}") if alias.user else base

    async def _image(self, principal: Principal, parsed: ImageReference, report: Progress) -> BaseRoot:
        image = await self._registry.resolve(parsed)
        for number, layer in enumerate(image.layers, 1):
            report(f"pulling layer {number} of {len(image.layers)} of {parsed} ({layer.size_bytes} bytes)")
            await self._layers.put(layer, self._registry.read_layer(parsed, layer))
        return await self._layered(principal, BuiltRoot(image.layers, image.size_bytes), image.config, report)

    async def _archived(self, principal: Principal, path: Path, name: str, report: Progress) -> BaseRoot:
        opening = open_archive(path, max_bytes=MAX_ARCHIVE_BYTES, check_space=self._layers.check_space)
        archive = await run_in_own_thread(opening.__enter__)
        try:
            image = await run_in_own_thread(archive.image, name or None)
            for number, layer in enumerate(image.layers, 1):
                report(f"reading layer {number} of {len(image.layers)} ({layer.size_bytes} bytes)")
                await self._layers.put(layer, _pieces(archive.read_layer(layer)))
        finally:
            await run_in_own_thread(opening.__exit__, None, None, None)
        return await self._layered(principal, BuiltRoot(image.layers, image.size_bytes), image.config, report)

    async def _layered(self, principal: Principal, root: BuiltRoot, config: ImageConfig, report: Progress) -> BaseRoot:
        await self._roots.ensure(root, self._layers.open, report)
        digest = await self._roots.digest(root)
        name = self._templates.lend(principal, digest, config.env)
        return BaseRoot(name, root, digest, config)


async def _pieces(blocking: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the pieces of an iterator that blocks."""
    while (piece := await run_blocking(next, blocking, None)) is not None:
        yield piece
