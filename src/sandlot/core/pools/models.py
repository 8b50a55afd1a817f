"""What a pool holds, how much of it, and the words for both. Pure.

Laws:
- What the inside can see of a limit is part of what a pooled sandbox is: memory, cores and disk must be what was asked for. The limit of
  processes is the guest's and the host's to move, so less of it may be asked for.
- Whose it will be, its network and its environment are none of it: they come with the claim.
- A pool is one owner's and of one kind, and its id says both and nothing else: it is the same on every node and after every restart.

What a template snapshot is made of, and the key that stands for it. Pure.

Everything that a restore depends on, or that those inside could tell by, is in the key; where anything of it changes, the key does, and what lies
under the old one is never used again:

=============  ========================================================================================================================
isolation      the driver's name
fingerprint    what its snapshots depend on: the content of the runtime's program, and how it is told to run
root           the image and the guest in it: the digest covers the recipe, every package, the guest's sources and its interpreter
env            what the template gives every process: what was imported ahead was imported with it
memory, cpus   what those inside see of their limits
disk           the least that a sandbox restored from it may have
version        Sandlot's: how a sandbox is laid out around the root
=============  ========================================================================================================================

Not in it: the network and the limit of processes, which the host and the guest set when a sandbox becomes somebody's.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from sandlot.core.ports import ResolvedTemplate
from sandlot.model.access import LOCAL, OwnerId
from sandlot.model.errors import InvalidRequestError
from sandlot.model.specs import DEFAULT_TEMPLATE, GIB, Limits

MOST = 1000
"""Of each number of a pool: more than a host of today holds of sandboxes."""
GROWS_TO = 4
"""Where only ``warm`` is given, ``max`` is what is larger: that, or this many."""
POOL_ID = re.compile(r"pool-[a-z2-7]{12}")
_ID_CHARS = 12
_WORD = re.compile(r"(?P<template>[^=:+,\s]+)=(?P<warm>\d{1,4})(?::(?P<max>\d{1,4}))?(?:\+(?P<blank>\d{1,4}))?")
_NONE = "none"


HOT: Final = "hot"
BLANK: Final = "blank"
DIRECT: Final = "direct"
BOOT: Final = "boot"
PATHS: Final = (HOT, BLANK, DIRECT, BOOT)
"""Paths by which a sandbox starts: a claimed warm sandbox, a prepared sandbox of a pool, a restored template snapshot, a boot."""


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """What a pool holds: everything that must be known of a sandbox before it is anybody's.

    Args:
        template: What they are made from.
        isolation: The driver's name.
        limits: What each may use.
    """

    template: str
    isolation: str
    limits: Limits

    def gives(self, wanted: PoolSpec) -> bool:
        """Whether one of them can become one of the other kind."""
        same = replace(wanted, limits=replace(wanted.limits, pids=self.limits.pids)) == self
        return same and wanted.limits.pids <= self.limits.pids


@dataclass(frozen=True, slots=True)
class PoolId:
    """Which pool it is; no two have the same.

    Args:
        owner: Whose; ``LOCAL`` is the node's.
        kind: What it holds.
    """

    owner: OwnerId
    kind: PoolSpec

    @property
    def id(self) -> str:
        """The pool's id: ``pool-`` and 12 characters that stand for what it holds, and for whose it is where it is not the node's."""
        kind = [self.kind.template, self.kind.isolation, asdict(self.kind.limits)]
        words = json.dumps(kind if self.owner == LOCAL else [self.owner, *kind], sort_keys=True)
        digest = base64.b32encode(hashlib.sha256(words.encode()).digest()).decode("ascii").lower()
        return f"pool-{digest[:_ID_CHARS]}"


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """How much a pool holds; 0 to 1,000 each.

    Args:
        warm: Sandboxes that are always kept ready.
        max: The most that there are, those in the making included: it grows towards that while requests find it empty, and shrinks again.
        blank: Prepared ones with nothing in them, which take any snapshot of this kind.
    """

    warm: int = 1
    max: int = GROWS_TO
    blank: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers that make no sense."""
        for name in ("warm", "max", "blank"):
            value = getattr(self, name)
            if not 0 <= value <= MOST:
                raise InvalidRequestError(f"{name} is {value}; it must be from 0 to {MOST}.", fields={"field": name})
        if self.max < self.warm:
            raise InvalidRequestError(
                f"max is {self.max}, and {self.warm} are to be kept warm.", hint="Raise max, or lower warm.", fields={"field": "max"}
            )

    def changed(self, *, warm: int | None = None, most: int | None = None, blank: int | None = None) -> PoolSizes:
        """Other sizes; what is None stays, but ``max`` follows where ``warm`` alone is raised beyond it."""
        now = self.warm if warm is None else warm
        return PoolSizes(warm=now, max=max(self.max, now) if most is None else most, blank=self.blank if blank is None else blank)


def sizes(warm: int, most: int | None = None, blank: int = 0) -> PoolSizes:
    """Sizes of a new pool, of which only ``warm`` must be said."""
    return PoolSizes(warm=warm, max=max(warm, GROWS_TO) if most is None and warm else warm if most is None else most, blank=blank)


@dataclass(frozen=True, slots=True)
class Wish:
    """A pool that should be: with default limits and isolation, as settings name it.

    Args:
        template: What it holds.
        sizes: How much of it.
        implied: Whether nobody said so: then no image is built for it.
    """

    template: str
    sizes: PoolSizes
    implied: bool = False


DEFAULT_WISHES = (Wish(DEFAULT_TEMPLATE, PoolSizes(warm=1, max=GROWS_TO, blank=1), implied=True),)
"""Where an operator says nothing. One that waits takes about 100 MiB of real memory and no processor time, and is what the first request of an agent
needs; a machine with 2 cores and 4 GiB bears four, and gives them up for sandboxes. A blank takes about 20 MiB, and a tenth of a second off
every wake, fork and restore."""


def wishes(text: str, templates: Collection[str] | None = None) -> tuple[Wish, ...]:
    """Pools by the words of a setting: ``TEMPLATE=WARM[:MAX][+BLANK]``, separated by commas; ``none`` is none.

    Args:
        text: The words: ``code-interpreter=2:4,base=1+2``.
        templates: Which there are; None does not look.

    Raises:
        InvalidRequestError: They are none; the message says which.
    """
    if text.strip() in {"", _NONE}:
        return ()
    found: dict[str, Wish] = {}
    for word in text.split(","):
        parts = _WORD.fullmatch(word.strip())
        if parts is None:
            raise InvalidRequestError(
                f"{word.strip()[:80]!r} is no pool.", hint="Write TEMPLATE=WARM, TEMPLATE=WARM:MAX or TEMPLATE=WARM:MAX+BLANK; or 'none'."
            )
        template = parts["template"]
        if template in found:
            raise InvalidRequestError(f"The pool of {template!r} is named twice.", hint="Name each template once.")
        if templates is not None and template not in templates:
            raise InvalidRequestError(f"There is no template {template[:64]!r}.", hint=f"There are: {', '.join(sorted(templates))}.")
        most = None if parts["max"] is None else int(parts["max"])
        found[template] = Wish(template, sizes(int(parts["warm"]), most, int(parts["blank"] or 0)))
    return tuple(found.values())


def kind_as_words(kind: PoolSpec) -> dict[str, Any]:
    """A kind as JSON has it; see :func:`kind_of_words`."""
    return {"template": kind.template, "isolation": kind.isolation, "limits": asdict(kind.limits)}


def kind_of_words(words: dict[str, Any]) -> PoolSpec:
    """A kind out of its words.

    Raises:
        KeyError: One is missing.
        TypeError: One is no number.
        InvalidRequestError: The limits are none.
    """
    return PoolSpec(template=str(words["template"]), isolation=str(words["isolation"]), limits=Limits(**words["limits"]))


FORMAT = 2
"""Raised when what is done to a sandbox before its snapshot is taken changes."""
DISK_BYTES = 1 * GIB
"""Of the sandbox that a snapshot is taken of, unless a sandbox of that kind has less: one restored from it may have as much or more."""


@dataclass(frozen=True, slots=True)
class TemplateSnapshotSpec:
    """What a template snapshot is of: kinds that look the same from inside share one.

    Args:
        template: What it is made from.
        isolation: The driver's name.
        limits: Of the sandbox that it is taken of.
    """

    template: str
    isolation: str
    limits: Limits

    def words(self) -> dict[str, Any]:
        """For the manifest: two of one look replace each other."""
        return {"template": self.template, "isolation": self.isolation, "memory_bytes": self.limits.memory_bytes, "cpus": self.limits.cpus}


def snapshot_spec(kind: PoolSpec) -> TemplateSnapshotSpec:
    """What a kind looks like from inside."""
    limits = Limits(
        cpus=kind.limits.cpus,
        memory_bytes=kind.limits.memory_bytes,
        disk_bytes=min(kind.limits.disk_bytes, DISK_BYTES),
    )
    return TemplateSnapshotSpec(kind.template, kind.isolation, limits)


def fits(of: TemplateSnapshotSpec, limits: Limits) -> bool:
    """Whether a sandbox of these limits can be restored from a snapshot of that look, and looks like it."""
    return replace(limits, disk_bytes=of.limits.disk_bytes, pids=of.limits.pids) == of.limits and limits.disk_bytes >= of.limits.disk_bytes


def made_of(of: TemplateSnapshotSpec, base: ResolvedTemplate, fingerprint: str, version: str) -> Mapping[str, Any]:
    """Everything that a snapshot depends on, as the manifest tells it.

    Args:
        of: What it is of.
        base: What the template gives.
        fingerprint: The driver's.
        version: Sandlot's.
    """
    return {
        "format": FORMAT,
        "version": version,
        "isolation": of.isolation,
        "fingerprint": fingerprint,
        "root": base.root.digest,
        "env": dict(sorted(base.env.items())),
        "memory_bytes": of.limits.memory_bytes,
        "cpus": of.limits.cpus,
        "disk_bytes": of.limits.disk_bytes,
    }


def key(parts: Mapping[str, Any]) -> str:
    """SHA-256 in hexadecimal of what :func:`made_of` gives."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
