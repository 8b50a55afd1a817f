"""The trees that forks grow into: a sandbox, its forks, their forks. Pure.

Laws:
- Who is whose fork is in the spec of each sandbox and never changes, so a tree is found from any of its members.
- A link that nobody remembers any more ends the way up; what hangs below it stays together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from sandlot.core.sandbox import Sandbox
from sandlot.model.ids import SandboxId


def root_of(id_: SandboxId, parents: Mapping[SandboxId, SandboxId | None]) -> SandboxId:
    """The top of the tree that a sandbox is in: the first one on the way up that is nobody's fork, or that is not known.

    Args:
        id_: The sandbox.
        parents: Of all that are known: whose fork each is.
    """
    seen = {id_}
    while (above := parents.get(id_)) is not None and above not in seen:  # a record that makes a ring is damaged; it must not hold us up
        seen.add(above)
        id_ = above
    return id_


def below(roots: Collection[SandboxId], sandboxes: Iterable[Sandbox]) -> list[Sandbox]:
    """Some sandboxes and all that were forked from them, at any remove; in the order in which they are given.

    Args:
        roots: The ids of those at the top; they need not be among the sandboxes.
        sandboxes: All that are known.
    """
    known = list(sandboxes)
    children: dict[SandboxId, list[SandboxId]] = {}
    for sandbox in known:
        if sandbox.spec.parent is not None:
            children.setdefault(sandbox.spec.parent, []).append(sandbox.id)
    found: set[SandboxId] = set()
    waiting = list(roots)
    while waiting:
        id_ = waiting.pop()
        if id_ not in found:
            found.add(id_)
            waiting += children.get(id_, ())
    return [sandbox for sandbox in known if sandbox.id in found]


def siblings(sandbox: Sandbox, sandboxes: Iterable[Sandbox], among: Mapping[str, str]) -> Sequence[Sandbox]:
    """The other forks of a sandbox's parent.

    Args:
        sandbox: It.
        sandboxes: All that are known.
        among: Only those that have all of these entries in their metadata.
    """
    return [
        other
        for other in sandboxes
        if other.id != sandbox.id
        and other.spec.parent == sandbox.spec.parent
        and all(other.metadata.get(name) == value for name, value in among.items())
    ]
