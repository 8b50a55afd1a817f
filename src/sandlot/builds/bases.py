"""Bases of builds: what a stage begins with. ``server/base_resolver.py`` finds them among templates, image registries and archives."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol

from sandlot.builds.plan import ArchiveBase, EmptyBase, ImageBase, TemplateBase
from sandlot.images.progress import Progress
from sandlot.model.access import Principal
from sandlot.model.images import ImageConfig
from sandlot.model.templates import BuildRecord, BuiltRoot


@dataclass(frozen=True, slots=True)
class BaseRoot:
    """A base that sandboxes can start from.

    Args:
        template: Name with which the principal of the build creates sandboxes from the base.
        root: Root file system, to which the build adds its layer.
        config: Configuration. That of a template has its settings.
        key: Digest of the content, with which cached steps are found again.
        digests: Digests that the root file system of such a sandbox can have. A sandbox with another digest is not used, because the template was
            updated after the build had begun. Empty: ``template`` always names the same root file system.
        user: Name of a user with the id 1000 that sandboxes of the build get before their first step; empty: none.
    """

    template: str
    root: BuiltRoot
    key: str
    config: ImageConfig = field(default_factory=ImageConfig)
    digests: Collection[str] = ()
    user: str = ""


class BaseResolver(Protocol):
    """Finds the bases with which builds begin, and keeps their files as long as builds need them."""

    async def resolve(self, principal: Principal, base: ImageBase | TemplateBase | ArchiveBase | EmptyBase, report: Progress) -> BaseRoot:
        """Find a base, and make it ready to start sandboxes of the principal from. An image is pulled first.

        Raises:
            NotFoundError: There is no such template or image.
            SandlotError: The image cannot be pulled, or has a forbidden layer.
        """
        ...

    async def prune(self, builds: Collection[BuildRecord]) -> None:
        """Release the bases that no build needs. Call this only while no build runs.

        Args:
            builds: All ready builds of the node.
        """
        ...
