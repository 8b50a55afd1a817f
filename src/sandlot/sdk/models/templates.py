"""Templates of sandboxes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TemplateInfo:
    """A template that sandboxes can start from.

    Args:
        name: Value of ``template`` in ``Sandbox.create``.
        description: Content in one line.
        digest: Digest of the root file system image; None before the image was built.
        built: True if the image is ready on this host.
        building: Step of the build that is in progress; None if there is none.
    """

    name: str
    description: str = ""
    digest: str | None = None
    built: bool = False
    building: str | None = None
