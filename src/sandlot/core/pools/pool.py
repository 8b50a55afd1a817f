"""One pool: what waits in it, what of it is in the making, and how it has fared.

Laws:
- What is taken out is out before anything is said to it, and never comes back: whatever becomes of it, nobody else gets it.
- What dies while it waits is out at once.
- Everything in it has a promise of its own in the ledger, until the last trace of it is gone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import structlog

from sandlot.core.node.disposer import Disposer
from sandlot.core.node.reservations import Reservations
from sandlot.core.pools import policy
from sandlot.core.pools.models import PoolId, PoolSizes, PoolSpec
from sandlot.core.pools.warm import StartedWarmSandbox
from sandlot.core.ports import ResolvedTemplate
from sandlot.model.access import LOCAL, OwnerId
from sandlot.model.ids import SandboxId
from sandlot.model.ports import PreparedSandbox

_log = structlog.get_logger("sandlot.core")


@dataclass(eq=False, slots=True)
class WarmSandbox:
    """A sandbox that waits, frozen, and is nobody's.

    Args:
        id: Its id, and the id of the sandbox that it becomes: it says nothing of anybody.
        kind: What it is.
        asleep: It.
        base: What it was made from.
        made_at_s: When, monotonic.
        key: Of the snapshot that it was restored from; empty where it was booted.
    """

    id: SandboxId
    kind: PoolSpec
    asleep: StartedWarmSandbox
    base: ResolvedTemplate
    made_at_s: float
    key: str

    @property
    def holder(self) -> str:
        """Who has its promise."""
        return holder_of(self.id)


@dataclass(eq=False, slots=True)
class PreparedPoolEntry:
    """A blank that waits.

    Args:
        kind: What it can become.
        prepared: It.
        base: What it was prepared for.
        key: Of the snapshot for which it was prepared; empty where there was none.
        holder: Who has its promise.
        made_at_s: When, monotonic.
    """

    kind: PoolSpec
    prepared: PreparedSandbox
    base: ResolvedTemplate
    key: str
    holder: str
    made_at_s: float


@dataclass(eq=False, slots=True)
class Pool:
    """One of them.

    Args:
        kind: What it holds.
        sizes: How much of it.
        owner: Whose it is; ``LOCAL`` is the node's.
        implied: Whether nobody asked for it: then no image is built for it.
        metadata: Its owner's own words.
        ready: What waits, oldest first.
        blanks: Blanks that wait, oldest first.
        filling: What is in the making.
        filling_blanks: Likewise.
        grown: By how much it has grown.
        asked_s: When it last grew, shrank or was asked, monotonic.
        hungry_s: When it was first asked since anything was begun to be made for it; None where it was not.
        claims: How requests of its kind were answered: path -> how many.
        failures: In a row, of making.
        not_before_s: Nothing is made before that, monotonic.
        error: Why making failed last; empty where it did not.
    """

    kind: PoolSpec
    sizes: PoolSizes
    owner: OwnerId = LOCAL
    implied: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict)
    ready: deque[WarmSandbox] = field(default_factory=deque)
    blanks: deque[PreparedPoolEntry] = field(default_factory=deque)
    filling: set[asyncio.Task[None]] = field(default_factory=set)
    filling_blanks: set[asyncio.Task[None]] = field(default_factory=set)
    grown: int = 0
    asked_s: float = float("-inf")
    hungry_s: float | None = None
    claims: dict[str, int] = field(default_factory=dict)
    failures: int = 0
    not_before_s: float = float("-inf")
    error: str = ""

    @property
    def identity(self) -> PoolId:
        """Which it is."""
        return PoolId(self.owner, self.kind)

    @property
    def id(self) -> str:
        """Its id."""
        return self.identity.id

    @property
    def making(self) -> int:
        """Sandboxes in the making: one that waits already is none, whether or not its task has been taken out yet."""
        return sum(1 for task in self.filling if not task.done())

    @property
    def held(self) -> int:
        """Sandboxes that wait, and those in the making."""
        return len(self.ready) + self.making

    def take(self, now_s: float) -> WarmSandbox | None:
        """One that waits, out of the pool for good: the youngest that lives, because what it touched last is likely still in the caches."""
        self._asked(now_s)
        member = next(self._living(), None)
        if member is not None:
            self.ready.remove(member)
        return member

    def has(self) -> bool:
        """Whether one waits."""
        return next(self._living(), None) is not None

    def _living(self) -> Iterator[WarmSandbox]:
        """Those that wait, the youngest first; the death of the others is about to be noticed."""
        return (each for each in reversed(self.ready) if not each.asleep.exits.done() and not each.asleep.link.closed)

    def missed(self, now_s: float) -> None:
        """Somebody asked, and there was none."""
        self._asked(now_s)
        self.grown = policy.grown_by_miss(self.sizes, self.grown)

    def lend(self, blank: PreparedPoolEntry, now_s: float) -> bool:
        """Take a blank out of the pool for good; whether it was there still."""
        self._asked(now_s)
        return self.drop(blank)

    def _asked(self, now_s: float) -> None:
        self.asked_s = now_s
        if self.hungry_s is None:
            self.hungry_s = now_s

    def cool(self, now_s: float) -> None:
        """Shrink by what nobody asked for lately."""
        shrunk = policy.shrunk(self.grown, now_s - self.asked_s) if self.grown else 0
        if shrunk != self.grown:
            self.grown, self.asked_s = shrunk, now_s

    def stock(self, now_s: float) -> policy.Stock:
        """What it has."""
        return policy.Stock(
            ready=[now_s - member.made_at_s for member in self.ready],
            filling=len(self.filling),
            blank=len(self.blanks),
            blank_filling=len(self.filling_blanks),
            grown=self.grown,
        )

    def everything(self) -> Iterator[WarmSandbox | PreparedPoolEntry]:
        """All that waits."""
        yield from self.blanks
        yield from self.ready

    def drop(self, what: WarmSandbox | PreparedPoolEntry) -> bool:
        """Take something out for good; whether it was in."""
        there = self.ready if isinstance(what, WarmSandbox) else self.blanks
        try:
            there.remove(what)  # type: ignore[arg-type] # each is in its own
        except ValueError:
            return False
        return True


class Removals:
    """What is out of its pool, until nothing of it is left.

    Args:
        reservations: Where the node's promises are.
        disposer: Destroys what is removed.
    """

    def __init__(self, reservations: Reservations, disposer: Disposer) -> None:
        self._reservations = reservations
        self._disposer = disposer
        self.tasks: dict[asyncio.Task[None], str] = {}
        """Those that are under way, and who has the promise of what is removed."""

    def begin(self, *out: WarmSandbox | PreparedPoolEntry) -> None:
        """Remove some; a promise is given up once nothing of what had it is left."""
        for what in out:
            task = asyncio.create_task(self._removed(what))
            self.tasks[task] = what.holder
            task.add_done_callback(self.tasks.pop)

    async def _removed(self, what: WarmSandbox | PreparedPoolEntry) -> None:
        await self._disposer.destroy(what.asleep if isinstance(what, WarmSandbox) else what.prepared, reservation=what.holder)
        self._reservations.release(what.holder)


def holder_of(id_: SandboxId) -> str:
    """Who has the promise of what is made under that id, and waits."""
    return f"pool-{id_}"


def all_sizes(pools: Iterable[Pool]) -> Mapping[tuple[str, str, str], int]:
    """How many of what there are: (template, isolation, what) -> number. For metrics."""
    found: dict[tuple[str, str, str], int] = {}
    for pool in pools:
        for what, number in (
            ("ready", len(pool.ready)),
            ("filling", len(pool.filling)),
            ("blank", len(pool.blanks)),
            ("wanted", policy.target(pool.sizes, pool.grown)),
        ):
            place = (pool.kind.template, pool.kind.isolation, what)
            found[place] = found.get(place, 0) + number
    return found
