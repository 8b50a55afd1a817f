"""Values that describe pools: specs, ids, sizes and configuration, the setting of the pools, and keys of template snapshots. Pure.

Invariants:
- Everything that a program inside a sandbox can see of the limits is part of a pool's spec: memory, cores and disk must equal those of a request.
  The limit of processes is enforced by the guest and the host and can be lowered by a claim, so a request may have fewer processes.
- Owner, network and environment of a sandbox are not part of a pool's spec. They are set when a warm sandbox is claimed.
- The id of a pool depends on its owner and its spec only. The id is the same on every node and after every restart.
- The key of a template snapshot depends on everything that a restore depends on and on everything that a program inside can see:

=============  ========================================================================================================================
format         :data:`FORMAT`
version        version of Sandlot: the layout of a sandbox around its root file system
isolation      name of the driver
fingerprint    ``Driver.fingerprint``: content of the runtime's program and its command line
root           digest of the root file system: recipe, packages, sources of the guest and its interpreter
env            environment of the template: modules that are imported in advance are imported with this environment
memory, cpus   limits that programs inside can see
disk           the smallest disk that a restored sandbox may have
=============  ========================================================================================================================

Network and the limit of processes are not part of the key: host and guest set them when the sandbox is claimed.
"""

from __future__ import annotations

import base64
import builtins
import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from sandlot.core.admission import AUTO
from sandlot.core.ports import ResolvedTemplate
from sandlot.model.access import LOCAL, OwnerId
from sandlot.model.errors import InvalidRequestError
from sandlot.model.specs import DEFAULT_TEMPLATE, GIB, Limits

MAX_SIZE: Final = 1000
"""Largest number in :class:`PoolSizes`: more sandboxes than a host of today can run."""
DEFAULT_MAX: Final = 4
"""``PoolSizes.max`` of a new pool for which only ``warm`` is given, unless ``warm`` is larger."""
POOL_ID: Final = re.compile(r"pool-[a-z2-7]{12}")

FORMAT: Final = 3
"""Number to raise in each commit that changes what is done to a sandbox before its template snapshot is written, or the manifest."""
SNAPSHOT_DISK_BYTES: Final = 1 * GIB
"""Disk of the sandbox that a template snapshot is taken of, if the pool's disk is not smaller. A restored sandbox may have a larger disk."""

_ID_CHARS: Final = 12
_SETTING: Final = re.compile(r"(?P<template>[^=:+,\s]+)=(?P<warm>\d{1,4})(?::(?P<max>\d{1,4}))?(?:\+(?P<prepared>\d{1,4}))?")
_NO_POOLS: Final = "none"


class StartPath(StrEnum):
    """Path by which the sandbox of a create request was started."""

    WARM = "warm"
    """A warm sandbox was thawed and claimed."""
    PREPARED = "prepared"
    """The template snapshot was restored into a prepared sandbox of a pool."""
    RESTORED = "restored"
    """The template snapshot was restored into a sandbox that was prepared for this request."""
    BOOTED = "booted"
    """The sandbox was booted."""


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """Everything that must be known of a sandbox before it has an owner.

    Args:
        template: Name of the template.
        isolation: Name of the driver. In settings also ``auto``: the default of the service.
        limits: Limits of each sandbox.
    """

    template: str
    isolation: str
    limits: Limits

    def serves(self, request: PoolSpec) -> bool:
        """Return whether a sandbox of this spec can become a sandbox of the requested spec."""
        equal = replace(request, limits=replace(request.limits, pids=self.limits.pids)) == self
        return equal and request.limits.pids <= self.limits.pids


@dataclass(frozen=True, slots=True)
class PoolId:
    """Identity of a pool: two pools of one owner never have the same spec.

    Args:
        owner: Owner of the pool; ``LOCAL`` for a shared pool.
        spec: Spec of the pool.
    """

    owner: OwnerId
    spec: PoolSpec

    def __str__(self) -> str:
        """Return the id of the API: ``pool-`` and 12 characters of a digest over the spec and, for a private pool, the owner."""
        # A whole number of cores is the same limit whether the client wrote 2 or 2.0.
        limits = asdict(self.spec.limits) | {"cpus": float(self.spec.limits.cpus)}
        parts: list[Any] = [self.spec.template, self.spec.isolation, limits]
        text = json.dumps(parts if self.owner == LOCAL else [self.owner, *parts], sort_keys=True)
        digest = base64.b32encode(hashlib.sha256(text.encode()).digest()).decode("ascii").lower()
        return f"pool-{digest[:_ID_CHARS]}"


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """Numbers of sandboxes in a pool, 0 to ``MAX_SIZE`` each.

    Args:
        warm: Warm sandboxes that are always kept ready.
        max: Largest number of warm sandboxes, unfinished ones included. The pool grows up to it while requests find no warm sandbox.
        prepared: Prepared sandboxes that are kept ready. Any snapshot of the pool's template, isolation and limits can be restored into one.
    """

    warm: int = 1
    max: int = DEFAULT_MAX
    prepared: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers that are out of range.

        Raises:
            InvalidRequestError: A number is not in 0 to ``MAX_SIZE``, or ``max`` is less than ``warm``.
        """
        for name in ("warm", "max", "prepared"):
            value = getattr(self, name)
            if not 0 <= value <= MAX_SIZE:
                raise InvalidRequestError(
                    f"`{name}` is {value}; 0 to {MAX_SIZE} are allowed.", hint=f"Set `{name}` within these bounds.", fields={"field": name}
                )
        if self.max < self.warm:
            raise InvalidRequestError(
                f"`max` is {self.max}, less than `warm`, which is {self.warm}.", hint="Raise `max`, or lower `warm`.", fields={"field": "max"}
            )

    @classmethod
    def with_defaults(cls, warm: int, max: int | None = None, prepared: int = 0) -> PoolSizes:  # noqa: A002 - the name of the API
        """Return the sizes of a new pool.

        Args:
            warm: See :class:`PoolSizes`.
            max: See :class:`PoolSizes`. None: the larger of ``warm`` and ``DEFAULT_MAX``, or 0 if ``warm`` is 0.
            prepared: See :class:`PoolSizes`.

        Raises:
            InvalidRequestError: A number is out of range.
        """
        if max is None:
            max = builtins.max(warm, DEFAULT_MAX) if warm else 0  # noqa: A001 - the name of the API
        return cls(warm=warm, max=max, prepared=prepared)

    def updated(self, *, warm: int | None = None, max: int | None = None, prepared: int | None = None) -> PoolSizes:  # noqa: A002
        """Return changed sizes. None keeps a number, but ``max`` follows if ``warm`` alone is raised above it.

        Raises:
            InvalidRequestError: A number is out of range.
        """
        new_warm = self.warm if warm is None else warm
        return PoolSizes(
            warm=new_warm,
            max=builtins.max(self.max, new_warm) if max is None else max,
            prepared=self.prepared if prepared is None else prepared,
        )


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """Configuration of a pool, from the settings or from a request.

    Args:
        spec: Spec of the pool.
        sizes: Sizes of the pool. None: the pool was deleted and does not exist, whatever the settings say.
        owner: Owner of the pool; ``LOCAL`` for a shared pool.
        metadata: Metadata of the owner.
        is_implied: True for the pool of ``DEFAULT_POOLS``: no image is built for it.
    """

    spec: PoolSpec
    sizes: PoolSizes | None
    owner: OwnerId = LOCAL
    metadata: Mapping[str, str] = field(default_factory=dict)
    is_implied: bool = False

    @property
    def pool_id(self) -> PoolId:
        """Identity of the pool."""
        return PoolId(self.owner, self.spec)


DEFAULT_POOLS: Final = (PoolConfig(PoolSpec(DEFAULT_TEMPLATE, AUTO, Limits()), PoolSizes(warm=1, max=DEFAULT_MAX, prepared=1), is_implied=True),)
"""Pools of a service without the setting. A warm sandbox takes about 100 MiB of memory and no processor time, and serves an agent's first request.
A machine with 2 cores and 4 GiB has room for four, and evicts them for other sandboxes. A prepared sandbox takes about 20 MiB and shortens every
wake, fork and restore by a tenth of a second."""


def parse_pools(text: str, templates: Collection[str] | None = None) -> tuple[PoolConfig, ...]:
    """Parse the setting of the pools: ``TEMPLATE=WARM[:MAX][+PREPARED]``, separated by commas, or ``none``.

    Args:
        text: Text of the setting, such as ``code-interpreter=2:4,base=1+2``.
        templates: Names of all templates. None: the names are not checked.

    Returns:
        Shared pools of the service's default isolation and the default limits.

    Raises:
        InvalidRequestError: An entry cannot be parsed, names an unknown template, or repeats a template.
    """
    if text.strip() in {"", _NO_POOLS}:
        return ()
    configs: dict[str, PoolConfig] = {}
    for entry in map(str.strip, text.split(",")):
        parts = _SETTING.fullmatch(entry)
        if parts is None:
            raise InvalidRequestError(
                f"{entry[:80]!r} does not describe a pool.", hint="Write TEMPLATE=WARM, TEMPLATE=WARM:MAX or TEMPLATE=WARM:MAX+BLANK; or 'none'."
            )
        template = parts["template"]
        if template in configs:
            raise InvalidRequestError(f"The template {template[:64]!r} has two pools.", hint="Name each template once.")
        if templates is not None and template not in templates:
            raise InvalidRequestError(f"The template {template[:64]!r} does not exist.", hint=f"Use one of: {', '.join(sorted(templates))}.")
        sizes = PoolSizes.with_defaults(int(parts["warm"]), None if parts["max"] is None else int(parts["max"]), int(parts["prepared"] or 0))
        configs[template] = PoolConfig(PoolSpec(template, AUTO, Limits()), sizes)
    return tuple(configs.values())


@dataclass(frozen=True, slots=True)
class TemplateSnapshotSpec:
    """Spec of a template snapshot. Pools whose sandboxes look the same from inside share a snapshot.

    Args:
        template: Name of the template.
        isolation: Name of the driver.
        limits: Limits of the sandbox that the snapshot is taken of.
    """

    template: str
    isolation: str
    limits: Limits

    @classmethod
    def of(cls, pool: PoolSpec) -> TemplateSnapshotSpec:
        """Return the spec of the snapshot from which sandboxes of a pool are restored."""
        limits = Limits(cpus=pool.limits.cpus, memory_bytes=pool.limits.memory_bytes, disk_bytes=min(pool.limits.disk_bytes, SNAPSHOT_DISK_BYTES))
        return cls(pool.template, pool.isolation, limits)

    def manifest(self) -> dict[str, Any]:
        """Return the part of the spec for which the cache keeps one snapshot: a new snapshot replaces older ones with an equal manifest."""
        return {"template": self.template, "isolation": self.isolation, "memory_bytes": self.limits.memory_bytes, "cpus": self.limits.cpus}


def snapshot_inputs(spec: TemplateSnapshotSpec, template: ResolvedTemplate, fingerprint: str, version: str) -> Mapping[str, Any]:
    """Return everything that a template snapshot depends on, as JSON values.

    Args:
        spec: Spec of the snapshot.
        template: Root file system and environment of the template.
        fingerprint: Fingerprint of the driver.
        version: Version of Sandlot.
    """
    return {
        "format": FORMAT,
        "version": version,
        "isolation": spec.isolation,
        "fingerprint": fingerprint,
        "root": template.root.digest,
        "env": dict(sorted(template.env.items())),
        "memory_bytes": spec.limits.memory_bytes,
        "cpus": float(spec.limits.cpus),
        "disk_bytes": spec.limits.disk_bytes,
    }


def snapshot_key(inputs: Mapping[str, Any]) -> str:
    """Return the key of a template snapshot: the hexadecimal SHA-256 of :func:`snapshot_inputs`."""
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
