"""Bases of builds: connects templates, image registries and root images to the runtime of builds.

Invariant: The layers of an image are stored before a build uses them, because a registry or an upload may be gone later.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator
from pathlib import Path
from typing import Final

from sandlot.builds.bases import BaseRoot, Report
from sandlot.builds.layers import LayerStore
from sandlot.builds.plan import ArchiveBase, EmptyBase, ImageBase, TemplateBase
from sandlot.builds.root_images import RootImageBuilder
from sandlot.core.execution.start_command import OnOutput
from sandlot.core.pools.build_snapshots import BuildSnapshots
from sandlot.core.pools.models import content_of
from sandlot.core.ports import ImageRegistry
from sandlot.host.blocking import run_blocking, run_in_own_thread
from sandlot.images.oci_archive import open_archive
from sandlot.images.store import ImageStore
from sandlot.model.access import Principal
from sandlot.model.errors import ErrorCode, NotFoundError
from sandlot.model.image_aliases import ImageAliases
from sandlot.model.images import ImageConfig, ImageReference, parse_reference
from sandlot.model.specs import GIB, WORKSPACE, TemplateRef
from sandlot.model.templates import BuildRecord, BuiltRoot
from sandlot.server.user_templates import UserTemplates

MAX_ARCHIVE_BYTES: Final = 10 * GIB
"""Largest size of an uploaded archive with an image, without compression."""


class ServiceBases:
    """Implements the bases of builds.

    Args:
        templates: Templates of the service.
        images: Images of the built-in templates.
        roots: Makes root images.
        layers: Stored layers.
        registry: Image registries.
        aliases: Images that other images or templates stand for.
        snapshots: Snapshots of builds.
    """

    def __init__(
        self,
        *,
        templates: UserTemplates,
        images: ImageStore,
        roots: RootImageBuilder,
        layers: LayerStore,
        registry: ImageRegistry,
        aliases: ImageAliases,
        snapshots: BuildSnapshots,
    ) -> None:
        self._templates = templates
        self._images = images
        self._roots = roots
        self._layers = layers
        self._registry = registry
        self._aliases = aliases
        self._snapshots = snapshots

    async def open(self, principal: Principal, base: ImageBase | TemplateBase | ArchiveBase | EmptyBase, report: Report) -> BaseRoot:
        """Find a base, and make it ready to start sandboxes of the principal from. An image is pulled first.

        The name of a template, as in ``FROM base``, means the template also where an image is expected.

        Raises:
            NotFoundError: There is no such template or image.
            ForbiddenError: The operator does not allow the registry of the image.
            SandlotError: The image cannot be pulled, or has a forbidden layer.
        """
        match base:
            case TemplateBase(name):
                found = await self._template(principal, name)
                if found is None:
                    raise NotFoundError(
                        f"There is no template {name[:64]!r} to build from.",
                        code=ErrorCode.TEMPLATE_NOT_FOUND,
                        hint="List the templates to find their names.",
                        fields={"template": name[:64]},
                    )
                return found
            case ImageBase(reference):
                return await self._template(principal, reference) or await self._aliased(principal, reference, report)
            case ArchiveBase(path, image):
                return await self._archived(principal, path, image, report)
            case EmptyBase():
                return await self._layered(principal, BuiltRoot((), 0), ImageConfig(), report)

    async def prepare(self, root: BuiltRoot, report: Report) -> None:
        """Make the root image of a finished build, so that sandboxes can start from it at once.

        Raises:
            SandlotError: A layer has a forbidden entry, or the root file system is too large.
        """
        await self._roots.ensure(root, self._layers.open, report)

    async def save_snapshot(self, principal: Principal, build: BuildRecord, on_output: OnOutput) -> int:
        """Make the snapshot of a finished build, in which its start command runs, and return its size in bytes; 0 if the host cannot make it now.

        Raises:
            SandlotError: The start command failed or did not become ready.
        """
        if build.root is None:
            return 0
        digest = await self._roots.digest(build.root)
        template = TemplateRef(principal.owner, self._templates.lend(principal, digest, build.settings.env), digest)
        return await self._snapshots.make(principal, template, build.defaults(build.limits, digest), on_output)

    async def prune(self, builds: Collection[BuildRecord]) -> None:
        """Remove the snapshots that no build needs. Call this only while no build runs."""
        needed = set()
        for build in builds:
            if build.root is not None:
                digest = await self._roots.digest(build.root)
                needed.add(content_of(build.owner, digest, build.settings.env, build.defaults(build.limits, digest).start))
        await self._snapshots.prune(needed)

    async def _template(self, principal: Principal, name: str) -> BaseRoot | None:
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
        return BaseRoot(name, build.root, await self._roots.digest(build.root), config)

    async def _builtin(self, ref: TemplateRef) -> BaseRoot:
        resolved = await self._templates.build(ref, images=False)
        image = self._images.find(ref.name)
        if image is None:
            raise NotFoundError(f"The image of the template {ref.name} was removed during the build.", hint="Try again.")
        config = ImageConfig(env=resolved.env, working_dir=WORKSPACE)
        return BaseRoot(ref.name, BuiltRoot((), image.size_bytes, base=image.digest, base_name=ref.name), image.digest, config)

    async def _aliased(self, principal: Principal, reference: str, report: Report) -> BaseRoot:
        parsed = parse_reference(reference)
        alias = self._aliases.resolve(parsed)
        if alias is None:
            return await self._image(principal, parsed, report)
        report(alias.notice)
        if alias.image is not None:
            return await self._image(principal, alias.image, report)
        return await self.open(principal, TemplateBase(alias.template), report)

    async def _image(self, principal: Principal, parsed: ImageReference, report: Report) -> BaseRoot:
        image = await self._registry.resolve(parsed)
        for number, layer in enumerate(image.layers, 1):
            report(f"pulling layer {number} of {len(image.layers)} of {parsed} ({layer.size_bytes} bytes)")
            await self._layers.put(layer, self._registry.read_layer(parsed, layer))
        return await self._layered(principal, BuiltRoot(image.layers, image.size_bytes), image.config, report)

    async def _archived(self, principal: Principal, path: Path, name: str, report: Report) -> BaseRoot:
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

    async def _layered(self, principal: Principal, root: BuiltRoot, config: ImageConfig, report: Report) -> BaseRoot:
        await self._roots.ensure(root, self._layers.open, report)
        digest = await self._roots.digest(root)
        name = self._templates.lend(principal, digest, config.env)
        return BaseRoot(name, root, digest, config)


async def _pieces(blocking: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the pieces of an iterator that blocks."""
    while (piece := await run_blocking(next, blocking, None)) is not None:
        yield piece
