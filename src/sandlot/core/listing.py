"""Sandboxes as they are listed: the live ones from memory, those that have ended from the store, as one order of time.

Law: A page goes on exactly where the one before ended, whatever was created or has ended meanwhile: the order is by ``created_at`` and id,
which never change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sandlot.core.sandbox import Sandbox
from sandlot.model.access import Principal
from sandlot.model.errors import InvalidRequestError
from sandlot.model.records import SandboxRecord
from sandlot.model.states import State, is_terminal
from sandlot.model.storage import Position, SandboxTable

LIVE = frozenset(state for state in State if not is_terminal(state))
ENDED = frozenset(State) - LIVE


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which sandboxes.

    Args:
        states: In one of these.
        metadata: With all of these entries.
        name: Of that name; None is any.
    """

    states: frozenset[State] = LIVE
    metadata: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None

    def fits(self, sandbox: Sandbox) -> bool:
        """Whether a sandbox is one of them."""
        return (
            sandbox.state in self.states
            and self.name in {None, sandbox.name}
            and all(sandbox.metadata.get(name) == value for name, value in self.metadata.items())
        )


def states_of(names: Iterable[str]) -> frozenset[State]:
    """States by their names.

    Raises:
        InvalidRequestError: There is none of that name.
    """
    found = set()
    for name in names:
        if name not in State.__members__.values():
            raise InvalidRequestError(
                f"There is no state {name[:50]!r}.",
                hint=f"There are: {', '.join(State)}; several are separated by commas.",
                fields={"field": "state"},
            )
        found.add(State(name))
    return frozenset(found)


def place(sandbox: Sandbox) -> tuple[str, str]:
    """Where a sandbox stands in the order."""
    return sandbox.created_at.isoformat(timespec="microseconds"), sandbox.id


async def page(
    table: SandboxTable,
    live: Iterable[Sandbox],
    principal: Principal,
    wanted: Wanted,
    *,
    after: Position | None,
    limit: int,
    revive: Callable[[SandboxRecord], Sandbox],
) -> tuple[Sequence[Sandbox], bool]:
    """One page, oldest first.

    Args:
        table: Of those that have ended.
        live: Those that have not.
        principal: For whom.
        wanted: Which.
        after: The last one of the page before.
        limit: At most so many.
        revive: Makes a sandbox of the record of one that has ended.

    Returns:
        They, and whether more follow.
    """
    start = ("", "") if after is None else (after.at.isoformat(timespec="microseconds"), after.id)
    found = {sandbox.id: sandbox for sandbox in live if principal.sees(sandbox.owner) and wanted.fits(sandbox) and place(sandbox) > start}
    if ended := wanted.states & ENDED:
        owner = None if principal.operator else principal.owner
        for record in await table.ended(owner=owner, metadata=wanted.metadata, states=ended, name=wanted.name, after=after, limit=limit + 1):
            found.setdefault(record.id, revive(record))
    ordered = sorted(found.values(), key=place)
    return ordered[:limit], len(ordered) > limit
