"""Makes the results of builds, from which sandboxes start: root images and snapshots."""

from __future__ import annotations

from collections.abc import Collection

from sandlot.builds.layers import LayerStore
from sandlot.builds.merged_root_images import MergedRootImages
from sandlot.core.execution.start_command import OnOutput
from sandlot.core.pools.build_snapshots import BuildSnapshots
from sandlot.images.progress import Progress
from sandlot.model.access import Principal
from sandlot.model.specs import TemplateRef
from sandlot.model.templates import BuildRecord, BuiltRoot
from sandlot.server.user_templates import UserTemplates


class ServiceBuildResults:
    """Makes the root images and the snapshots of builds from the layers of the service, and removes the snapshots that no build needs."""

    def __init__(self, templates: UserTemplates, roots: MergedRootImages, layers: LayerStore, snapshots: BuildSnapshots) -> None:
        self._templates = templates
        self._roots = roots
        self._layers = layers
        self._snapshots = snapshots

    async def make_root_image(self, root: BuiltRoot, report: Progress) -> None:
        """Make the root image of a build, so that sandboxes can start from it at once.

        Raises:
            SandlotError: A layer has a forbidden entry, or the root file system is too large.
        """
        await self._roots.ensure(root, self._layers.open, report)

    async def save_snapshot(self, principal: Principal, build: BuildRecord, on_output: OnOutput) -> int:
        """Make the snapshot of a build, in which its start command runs, and return its size in bytes; 0 if the host cannot make it now.

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
        await self._snapshots.prune(await self._templates.snapshot_contents(builds))
