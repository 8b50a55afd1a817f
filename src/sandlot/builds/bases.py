"""Bases of builds: what a stage begins with. The composition root connects registries, templates and root images to this interface."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol

from sandlot.builds.plan import ArchiveBase, EmptyBase, ImageBase, TemplateBase
from sandlot.model.access import Principal
from sandlot.model.images import ImageConfig
from sandlot.model.templates import BuildRecord, BuiltRoot

Report = Callable[[str], object]
"""Function that is called with one line of text about the progress, for the log of the build."""


@dataclass(frozen=True, slots=True)
class BaseRoot:
    """A base that sandboxes can start from.

    Args:
        template: Name with which the principal of the build creates sandboxes from the base.
        root: Root file system, to which the build adds its layer.
        config: Configuration. That of a template has its settings.
        key: Digest of the content, with which cached steps are found again.
    """

    template: str
    root: BuiltRoot
    key: str
    config: ImageConfig = field(default_factory=ImageConfig)


class BuildBases(Protocol):
    """Finds bases, and makes root images."""

    async def open(self, principal: Principal, base: ImageBase | TemplateBase | ArchiveBase | EmptyBase, report: Report) -> BaseRoot:
        """Find a base, and make it ready to start sandboxes of the principal from. An image is pulled first.

        Raises:
            NotFoundError: There is no such template or image.
            SandlotError: The image cannot be pulled, or has a forbidden layer.
        """
        ...

    async def prepare(self, root: BuiltRoot, report: Report) -> None:
        """Make the root image of a finished build, so that sandboxes can start from it at once.

        Raises:
            SandlotError: A layer has a forbidden entry, or the root file system is too large.
        """
        ...

    async def save_snapshot(self, principal: Principal, build: BuildRecord, on_output: Callable[[int, bytes], None]) -> int:
        """Make the snapshot of a finished build, in which its start command runs, and return its size in bytes; 0 if the host cannot make it now.

        Args:
            principal: Owner of the build.
            build: Build with its root file system and settings.
            on_output: Function that is called with the channel and the bytes of output of the start command, until it is ready.

        Raises:
            SandlotError: The start command failed or did not become ready.
        """
        ...

    async def prune(self, builds: Collection[BuildRecord]) -> None:
        """Remove the snapshots that no build needs. Call this only while no build runs.

        Args:
            builds: All ready builds of the node.
        """
        ...
