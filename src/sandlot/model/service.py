"""Facts about a node that its clients see: versions, capacity and templates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sandlot.model.access import LOCAL, OwnerId
from sandlot.model.ids import NodeId
from sandlot.model.ports import Resources
from sandlot.model.specs import Limits

METRICS_MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""Media type of the metrics in the text format of Prometheus."""


@dataclass(frozen=True, slots=True)
class ServiceInfo:
    """A running service.

    Args:
        version: Version of Sandlot.
        generation: Generation of the protocol between the service and its guests.
        node: Id of the node.
        pid: Process id of the service.
        max_sandboxes: Maximum number of live sandboxes of all owners together.
        sandboxes: Number of sandboxes that hold resources of the host.
    """

    version: str
    generation: int
    node: NodeId
    pid: int
    max_sandboxes: int
    sandboxes: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """Capacity of a node, and the part of it that is reserved.

    Args:
        allocatable: Maximum total of all reservations at present.
        available: ``allocatable - reserved``, never negative.
        sandboxes: Number of reservations of sandboxes, warm and prepared sandboxes included.
    """

    allocatable: Resources
    reserved: Resources
    available: Resources
    sandboxes: int


@dataclass(frozen=True, slots=True)
class TemplateInfo:
    """Template from which sandboxes start.

    Args:
        description: Description for users, in one line.
        digest: SHA-256 of the root filesystem image, in hexadecimal; None until the image is built.
        building: Current step of the build, as a text for users; None if no build is running.
        id: Id of a template of a user; empty for a built-in template.
        owner: Owner; ``LOCAL`` for a built-in template and for those of the operator.
        languages: Versions of the compilers and interpreters by the names of their languages, None until the image is built; empty if not known.
        limits: Limits of sandboxes and pools whose requests name none.
    """

    name: str
    description: str
    digest: str | None
    building: str | None = None
    id: str = ""
    owner: OwnerId = LOCAL
    languages: Mapping[str, str | None] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
