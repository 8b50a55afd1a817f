"""Values that describe pools: specs, ids, sizes and configuration; the setting for pools; and the keys of template snapshots. Pure.

Invariants:
- A request is served only by a pool whose memory, cores and disk equal those of the request, because programs inside a sandbox can see these limits.
  A claim can lower the process limit, so the process limit of the request may be lower than that of the pool.
- The owner, network and environment of a sandbox are not part of a pool's spec. They are set when a warm sandbox is claimed.
- The id of a pool depends only on its owner and its spec. The id is the same on every node and after every restart.
- The key of a template snapshot covers everything on which a restore depends, and everything that a program in the sandbox can see:

=============  ========================================================================================================================
format         :data:`FORMAT`
version        version of Sandlot, which decides the layout of a sandbox around its root file system
isolation      name of the driver
fingerprint    ``Driver.fingerprint``: content of the runtime's executable, and its command line
root           digest of the root file system: recipe, packages, and sources of the guest and its interpreter
env            environment of the template, which the spare kernel has while it imports modules
memory, cpus   limits that programs in the sandbox can see
disk           the smallest disk that a restored sandbox may have
cwd            working directory, which the guest creates; missing if it is that of the built-in templates
user           user that code runs as, which a spare kernel has; missing if it is ``user``
start          start command of the template with its ready command, user and folder, and the owner; missing if the template has none
=============  ========================================================================================================================

The network and the process limit are not part of the key: the host and the guest set them when the sandbox is claimed.

- The *content* of a snapshot of a user's build is the digest of all parts of the key from the root file system on. Builds with the same content share
  a snapshot, and a new snapshot replaces only those of the same content, isolation and use: that of a build and that of a pool with other limits.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from sandlot.core.ports import ResolvedTemplate
from sandlot.model.access import LOCAL, OwnerId
from sandlot.model.errors import InvalidRequestError
from sandlot.model.paths import WORKSPACE
from sandlot.model.pools import DEFAULT_MAX, PoolSizes
from sandlot.model.specs import DEFAULT_TEMPLATE, GIB, Limits, TemplateRef, User
from sandlot.model.templates import TemplateDefaults, TemplateStart

FORMAT: Final = 6
"""Version of template snapshots. Raise it in each commit that changes the manifest or the steps before a template snapshot is written."""
SNAPSHOT_DISK_BYTES: Final = 1 * GIB
"""Disk limit of the sandbox whose template snapshot is taken. If the disk limit of the pool is smaller, the smaller limit applies. Restored sandboxes
may have a larger disk."""

_ID_CHARS: Final = 12
_SETTING: Final = re.compile(r"(?P<template>[^=:+,\s]+)=(?P<warm>\d{1,4})(?::(?P<max>\d{1,4}))?(?:\+(?P<prepared>\d{1,4}))?")
_NO_POOLS: Final = "none"
_MEMORY_PER_WARM: Final = 2 * GIB


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """Template, isolation and limits of the sandboxes of a pool.

    Args:
        template: Template, without digest and build: the sandboxes start from the build that the template or its tag names now.
        isolation: Name of the driver.
    """

    template: TemplateRef
    isolation: str
    limits: Limits

    def serves(self, request: PoolSpec) -> bool:
        """Return True if a warm sandbox of this spec can serve a request.

        The specs must be equal, except that the process limit of the request may be lower.
        """
        equal = replace(request, limits=replace(request.limits, pids=self.limits.pids)) == self
        return equal and request.limits.pids <= self.limits.pids


@dataclass(frozen=True, slots=True)
class PoolId:
    """Identity of a pool: its owner and its spec. An owner never has two pools of the same spec.

    Args:
        owner: Owner of the pool; ``LOCAL`` for a shared pool.
    """

    owner: OwnerId
    spec: PoolSpec

    def __str__(self) -> str:
        """Return the pool id in the API: ``pool-`` and 12 characters of a digest over the spec and, for a private pool, the owner."""
        # JSON writes 2 and 2.0 differently, but both are the same limit.
        limits = asdict(self.spec.limits) | {"cpus": float(self.spec.limits.cpus)}
        template = self.spec.template
        parts: list[Any] = [template.owner, template.full_name, self.spec.isolation, limits]
        text = json.dumps(parts if self.owner == LOCAL else [self.owner, *parts], sort_keys=True)
        digest = base64.b32encode(hashlib.sha256(text.encode()).digest()).decode("ascii").lower()
        return f"pool-{digest[:_ID_CHARS]}"


@dataclass(frozen=True, slots=True)
class PoolSetting:
    """A shared pool of the settings. Its sandboxes have the default isolation of the service and the default limits of their template.

    Args:
        template: Name of the template.
        sizes: Sizes of the pool.
        is_implied: True for a pool of :func:`default_pools`.
    """

    template: str
    sizes: PoolSizes
    is_implied: bool = False


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """Configuration of a pool, from the settings or from a request.

    Args:
        sizes: Sizes of the pool. None: a request has deleted the pool. It stays deleted, even if the settings name it.
        owner: Owner of the pool; ``LOCAL`` for a shared pool.
        is_implied: True for a pool of :func:`default_pools`. These pools exist if no setting names pools, and are filled only if the image of
            their template is built already.
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


def default_pools(memory_bytes: int) -> tuple[PoolSetting, ...]:
    """Return the pools of a service whose settings name no pools: one warm sandbox of each template that clients create by default.

    A warm sandbox takes 35 to 90 MiB of memory and no processor time, and is evicted when another sandbox needs its room. A prepared sandbox takes
    about 20 MiB and shortens each wake, fork and restore by a tenth of a second.

    Args:
        memory_bytes: Memory that all sandboxes of the node together can reserve. For each :data:`_MEMORY_PER_WARM` of it, each pool may grow to one
            warm sandbox, at least to one and at most to ``DEFAULT_MAX``. A node on which the pools cannot grow has no prepared sandbox.
    """
    most = min(DEFAULT_MAX, max(1, memory_bytes // _MEMORY_PER_WARM))
    sizes = {DEFAULT_TEMPLATE: PoolSizes(warm=1, max=most, prepared=min(1, most - 1)), "base": PoolSizes(warm=1, max=most)}
    return tuple(PoolSetting(name, each, is_implied=True) for name, each in sizes.items())


def parse_pools(text: str, templates: Collection[str] | None = None) -> tuple[PoolSetting, ...]:
    """Parse the setting for pools: entries ``TEMPLATE=WARM[:MAX][+PREPARED]``, separated by commas, or ``none``.

    Args:
        text: Text of the setting, such as ``code-interpreter=2:4,base=1+2``.
        templates: Names of all templates. None: the names are not checked.

    Raises:
        InvalidRequestError: An entry cannot be parsed, names an unknown template, or repeats a template.
    """
    if text.strip() in {"", _NO_POOLS}:
        return ()
    pools: dict[str, PoolSetting] = {}
    for entry in map(str.strip, text.split(",")):
        parts = _SETTING.fullmatch(entry)
        if parts is None:
            raise InvalidRequestError(
                f"{entry[:80]!r} does not describe a pool.", hint="Write TEMPLATE=WARM, TEMPLATE=WARM:MAX or TEMPLATE=WARM:MAX+PREPARED; or 'none'."
            )
        template = parts["template"]
        if template in pools:
            raise InvalidRequestError(f"The setting names the template {template[:64]!r} twice.", hint="Name each template once.")
        if templates is not None and template not in templates:
            raise InvalidRequestError(f"The template {template[:64]!r} does not exist.", hint=f"Use one of: {', '.join(sorted(templates))}.")
        sizes = PoolSizes.with_defaults(int(parts["warm"]), None if parts["max"] is None else int(parts["max"]), int(parts["prepared"] or 0))
        pools[template] = PoolSetting(template, sizes)
    return tuple(pools.values())


@dataclass(frozen=True, slots=True)
class TemplateSnapshotSpec:
    """Spec of a template snapshot.

    Pools share a snapshot if they have the same template, isolation, cores and memory, and if their disk limits, capped at ``SNAPSHOT_DISK_BYTES``,
    are equal.
    """

    template: TemplateRef
    isolation: str
    limits: Limits

    @classmethod
    def of(cls, pool: PoolSpec) -> TemplateSnapshotSpec:
        """Return the spec of the template snapshot from which the sandboxes of a pool are restored."""
        return cls(pool.template, pool.isolation, _snapshot_limits(pool.limits))

    def manifest(self) -> dict[str, Any]:
        """Return the part of the spec that is stored with the snapshot. A new snapshot replaces all older snapshots with an equal manifest."""
        limits = {"memory_bytes": self.limits.memory_bytes, "cpus": float(self.limits.cpus), "disk_bytes": self.limits.disk_bytes}
        return {"template": asdict(self.template), "isolation": self.isolation, **limits}


@dataclass(frozen=True, slots=True)
class SnapshotRecipe:
    """Everything from which a template snapshot is made, besides the versions of Sandlot and of the runtime.

    Args:
        spec: Spec of the snapshot.
        template: Root file system and environment of the template.
        start: Programs that run in the snapshot; None if there are none.
        cwd: Working directory, which exists in the snapshot.
        user: User that code runs as.
        is_built: True for a template that a user has built.
        is_of_build: True for the snapshot of a build, whose limits are those of the template. False for a snapshot that only pools use.
    """

    spec: TemplateSnapshotSpec
    template: ResolvedTemplate
    start: TemplateStart | None = None
    cwd: str = WORKSPACE
    user: User = User.USER
    is_built: bool = False
    is_of_build: bool = False

    @classmethod
    def of(cls, spec: TemplateSnapshotSpec, template: ResolvedTemplate, defaults: TemplateDefaults) -> SnapshotRecipe:
        """Return the recipe of the snapshot of a build.

        Args:
            spec: Spec of the snapshot.
            template: The build.
            defaults: Defaults of the sandboxes of the build.
        """
        is_built = bool(defaults.digest)
        is_of_build = is_built and _shown(spec.limits) == _shown(_build_limits(defaults))
        return cls(spec, template, defaults.start, defaults.cwd, defaults.user, is_built, is_of_build)

    def parts(self) -> Mapping[str, Any]:
        """Return everything that the snapshot depends on, besides the host and the versions of Sandlot and of the runtime, as JSON values."""
        template = self.template
        return _parts(self.spec.template.owner, template.root.digest, template.env, self.spec.limits, self.cwd, self.user, self.start)

    def manifest(self) -> Mapping[str, Any]:
        """Return the part of the recipe that is stored with the snapshot; see :meth:`TemplateSnapshotSpec.manifest`."""
        return {"content": snapshot_key(self.parts()), "isolation": self.spec.isolation} if self.is_of_build else self.spec.manifest()


def content_of(owner: OwnerId, env: Mapping[str, str], defaults: TemplateDefaults) -> str:
    """Return the content of the snapshot of a build: a digest of :meth:`SnapshotRecipe.parts`.

    Args:
        owner: Owner of the template.
        env: Environment of the build.
        defaults: Defaults of the sandboxes of the build.
    """
    return snapshot_key(_parts(owner, defaults.digest, env, _build_limits(defaults), defaults.cwd, defaults.user, defaults.start))


def _parts(
    owner: OwnerId, digest: str, env: Mapping[str, str], limits: Limits, cwd: str, user: User, start: TemplateStart | None
) -> Mapping[str, Any]:
    parts: dict[str, Any] = {"root": digest, "env": dict(sorted(env.items())), **_shown(limits)}
    if cwd != WORKSPACE:
        parts["cwd"] = cwd
    if user != User.USER:
        parts["user"] = user.value
    if start is not None:
        parts["start"] = {"owner": owner, **asdict(start)}
    return parts


def _shown(limits: Limits) -> dict[str, Any]:
    """Return the limits that programs in a sandbox can see, as JSON values."""
    return {"memory_bytes": limits.memory_bytes, "cpus": float(limits.cpus), "disk_bytes": limits.disk_bytes}


def build_snapshot_spec(template: TemplateRef, isolation: str, defaults: TemplateDefaults) -> TemplateSnapshotSpec:
    """Return the spec of the snapshot of a template that a user has built."""
    return TemplateSnapshotSpec(template, isolation, _build_limits(defaults))


def _build_limits(defaults: TemplateDefaults) -> Limits:
    """Return the limits of the snapshot of a build. With a start command, the snapshot has the whole disk of the template."""
    return _snapshot_limits(defaults.limits) if defaults.start is None else defaults.limits


def _snapshot_limits(limits: Limits) -> Limits:
    disk_bytes = min(limits.disk_bytes, SNAPSHOT_DISK_BYTES)
    return Limits(cpus=limits.cpus, memory_bytes=limits.memory_bytes, disk_bytes=disk_bytes)


def snapshot_inputs(recipe: SnapshotRecipe, fingerprint: str, version: str) -> Mapping[str, Any]:
    """Return the JSON values from which the key of a template snapshot is computed: everything that the snapshot depends on.

    Args:
        recipe: Recipe of the snapshot.
        fingerprint: Result of ``Driver.fingerprint``.
        version: Version of Sandlot.
    """
    return {"format": FORMAT, "version": version, "isolation": recipe.spec.isolation, "fingerprint": fingerprint, **recipe.parts()}


def snapshot_key(inputs: Mapping[str, Any]) -> str:
    """Return the key of a template snapshot: the hexadecimal SHA-256 digest of the result of :func:`snapshot_inputs`."""
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
