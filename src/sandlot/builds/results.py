"""Results of builds, from which sandboxes start: root images and snapshots. ``server/build_results.py`` makes them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Protocol

from sandlot.builds.log import BuildLog, OutputLines
from sandlot.images.progress import Progress
from sandlot.model.access import Principal
from sandlot.model.errors import SandlotError
from sandlot.model.templates import BuildRecord, BuiltRoot


class BuildResults(Protocol):
    """Makes the root images and the snapshots of builds, and removes the snapshots that no build needs."""

    async def make_root_image(self, root: BuiltRoot, report: Progress) -> None:
        """Make the root image of a build, so that sandboxes can start from it at once.

        Raises:
            SandlotError: A layer has a forbidden entry, or the root file system is too large.
        """
        ...

    async def save_snapshot(self, principal: Principal, build: BuildRecord, on_output: Callable[[int, bytes], None]) -> int:
        """Make the snapshot of a build, in which its start command runs, and return its size in bytes; 0 if the host cannot make it now.

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


async def make_results(results: BuildResults, principal: Principal, build: BuildRecord, build_log: BuildLog) -> BuildRecord:
    """Make the root image of a build, run its start command once, and save the sandbox in which it runs.

    Returns the build with the size of its snapshot.

    Args:
        results: Makes the root image and the snapshot.
        principal: Owner of the build. The snapshot needs the part of the quota that the sandboxes of the build had, so these are removed before.
        build: Build with its root file system and settings.
        build_log: Log of the build.

    Raises:
        SandlotError: A layer has a forbidden entry, the root file system is too large, or the start command failed or did not become ready.
    """
    assert build.root is not None  # noqa: S101 - the plan has run
    await results.make_root_image(build.root, build_log.add)
    settings, lines = build.settings, OutputLines(build_log)
    if settings.start_command:
        build_log.add(f"Start command: {settings.start_command}")
    if settings.ready_command:
        build_log.add(f"Ready command: {settings.ready_command}")
    try:
        snapshot_bytes = await results.save_snapshot(principal, build, lines.feed)
    except SandlotError as error:
        lines.finish()
        tail = lines.tail_text()
        message = f"{error.message}{f' The last lines of its output:{chr(10)}{tail}' if tail else ''}"
        raise type(error)(message, code=error.code, hint=error.hint, fields=error.fields, fault=error.fault) from error
    lines.finish()
    if settings.start_command and not snapshot_bytes:
        build_log.warn("The host has saved no snapshot, so sandboxes run the start command themselves.")
    return replace(build, snapshot_bytes=snapshot_bytes)
