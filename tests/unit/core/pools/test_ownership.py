"""Whose pools are: who sees which, what a quota leaves to them, and whose goes first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from sandlot.core.access.quotas import taken
from sandlot.core.pools import ownership
from sandlot.core.pools.models import PoolSizes, PoolSpec
from sandlot.core.pools.ownership import PoolOwners
from sandlot.core.pools.pool import Pool, PreparedPoolEntry, WarmSandbox
from sandlot.model.access import LOCAL, OPERATOR, OwnerId, Principal, Quota
from sandlot.model.errors import ForbiddenError, LimitError
from sandlot.model.ids import SandboxId
from sandlot.model.specs import GIB, Limits

ONE = Limits(cpus=0.5, memory_bytes=GIB, disk_bytes=GIB)
ANNE, BOB = OwnerId("aaaaaaaaaaaa"), OwnerId("bbbbbbbbbbbb")


def who(owner: OwnerId, **quota: Any) -> Principal:  # noqa: ANN401 - any of a quota's fields
    return Principal(owner, owner, quota=Quota(**quota))


def pool(owner: OwnerId = LOCAL, template: str = "base", limits: Limits = ONE, ages_s: tuple[float, ...] = ()) -> Pool:
    """One in which some wait, as old as that; nothing is asked of them but when they were made."""
    made = Pool(PoolSpec(template, "gvisor", limits), PoolSizes(1, 4), owner)
    nothing: Any = None
    for age_s in sorted(ages_s, reverse=True):
        made.ready.append(WarmSandbox(SandboxId(f"{owner}-{template}-{age_s}"), made.kind, nothing, nothing, -age_s, ""))
    return made


@hypothesis.given(
    sandboxes=st.none() | st.integers(0, 6),
    cpus=st.none() | st.integers(0, 12).map(lambda number: number / 2),
    live=st.integers(0, 5),
    making=st.integers(0, 2),
    ready=st.lists(st.sampled_from((ONE, replace(ONE, cpus=1.0))), max_size=6),
)
def test_what_goes_is_the_least_that_has_to(sandboxes: int | None, cpus: float | None, live: int, making: int, ready: list[Limits]) -> None:
    quota = Quota(sandboxes=sandboxes, cpus=cpus)

    def fits(gone: int) -> bool:
        held = taken([*[ONE] * (live + making), *ready[gone:]])
        return (sandboxes is None or held.sandboxes <= sandboxes) and (cpus is None or held.cpus <= cpus)

    gone = ownership.excess(quota, [ONE] * live, [ONE] * making, ready)
    assert fits(gone) or gone == len(ready)
    assert gone == 0 or not fits(gone - 1)
    if gone == 0 and fits(0) and (more := ownership.spare(quota, [ONE] * live, [*[ONE] * making, *ready], ONE)) is not None:
        # Filled to the full, nothing has to go; one more, and one has.
        full = [*ready, *[ONE] * more]
        assert ownership.excess(quota, [ONE] * live, [ONE] * making, full) == 0
        assert ownership.excess(quota, [ONE] * live, [ONE] * making, [*full, ONE]) > 0


def test_of_an_owner_the_oldest_of_all_his_pools_goes_where_live_ones_grow() -> None:
    quotas = {ANNE: who(ANNE, sandboxes=4), BOB: who(BOB, sandboxes=1)}
    live = {ANNE: [ONE] * 2, BOB: [ONE]}
    those = PoolOwners(quotas.get, lambda owner: live[owner])
    first, second = pool(ANNE, ages_s=(9.0, 2.0)), pool(ANNE, "other", ages_s=(8.0, 3.0))
    nodes, bobs = pool(ages_s=(99.0,)), pool(BOB, ages_s=(1.0,))
    over = [(each.owner, -member.made_at_s) for each, member in those.over([nodes, first, second, bobs])]
    assert over == [(ANNE, 9.0), (ANNE, 8.0), (BOB, 1.0)]
    assert those.spare(nodes, [nodes]) is None
    assert those.spare(first, [nodes, first, second]) == 0
    assert those.spare(first, [nodes, first]) == 0
    live[ANNE] = []
    assert those.spare(first, [nodes, first]) == 2


def test_a_pool_may_have_something_only_where_its_size_and_its_owners_quota_let_it() -> None:
    those = PoolOwners({ANNE: who(ANNE, sandboxes=2)}.get, lambda _: [ONE])
    mine, other = pool(ANNE), pool(ANNE, "other", ages_s=(1.0,))
    assert those.may_have(mine, [mine])
    assert not those.may_have(mine, [mine, other])  # one lives and one waits
    assert those.may_have(other, [mine, other])  # what waits has a snapshot that may become stale
    mine.sizes = PoolSizes(0, 4)
    assert not those.may_have(mine, [mine])
    mine.grown = 1
    assert those.may_have(mine, [mine])


def test_what_waits_for_owners_goes_before_the_nodes_and_the_largest_first() -> None:
    large = replace(ONE, memory_bytes=4 * GIB)
    nodes, annes = pool(ages_s=(9.0, 8.0, 7.0)), pool(ANNE, ages_s=(6.0, 5.0))
    bobs, others = pool(BOB, limits=large, ages_s=(4.0, 3.0)), pool(BOB, ages_s=(90.0,))
    nothing: Any = None
    blank = PreparedPoolEntry(nodes.kind, nothing, nothing, "", "x", 0.0)
    nodes.blanks.append(blank)
    there, gone = [nodes, annes, bobs, others], []
    while (chosen := ownership.first_to_go(there)) is not None:
        gone.append(chosen if isinstance(chosen, PreparedPoolEntry) else -chosen.made_at_s)
        assert [each.drop(chosen) for each in there].count(True) == 1
    # Bob has 9 GiB and Anne 2, until he has 1; the node's come last, its blank first.
    assert gone == [4.0, 3.0, 6.0, 5.0, 90.0, blank, 9.0, 8.0, 7.0]
    assert ownership.first_to_go([]) is None


def test_the_nodes_are_filled_first_then_whoever_has_least() -> None:
    nodes, annes, bobs = pool(ages_s=(1.0, 2.0, 3.0)), pool(ANNE, ages_s=(1.0,)), pool(BOB)
    more = pool(ANNE, "other")
    there = [annes, more, bobs, nodes]
    assert sorted(there, key=lambda each: ownership.turn(each, there)) == [nodes, bobs, annes, more]


def test_a_pool_is_refused_that_its_owner_may_not_have() -> None:
    annes = pool(ANNE)
    ownership.check(annes, PoolSizes(3, 3), who(ANNE, sandboxes=3, pools=2), 1)
    with pytest.raises(LimitError) as refused:
        ownership.check(annes, PoolSizes(3, 3), who(ANNE, sandboxes=3, pools=2), 2)
    assert refused.value.fields == {"quota": "pools", "limit": 2, "used": 2, "requested": 1}
    for quota, fields in (
        ({"sandboxes": 2}, {"quota": "sandboxes", "limit": 2, "used": 0, "requested": 3}),
        ({"cpus": 1.0}, {"quota": "cpus", "limit": 1.0, "used": 0, "requested": 1.5}),
        ({"memory_bytes": GIB}, {"quota": "memory_bytes", "limit": GIB, "used": 0, "requested": 3 * GIB}),
        ({"disk_bytes": GIB}, {"quota": "disk_bytes", "limit": GIB, "used": 0, "requested": 3 * GIB}),
    ):
        with pytest.raises(LimitError) as refused:
            ownership.check(annes, PoolSizes(3, 3), who(ANNE, **quota))
        assert refused.value.fields == fields
        ownership.check(annes, PoolSizes(0, 9), who(ANNE, **quota))  # what is less is never refused
        ownership.check(annes, PoolSizes(3, 3), OPERATOR)  # an operator is bound by nobody's quota
    for too_small, name in (({"memory_bytes": GIB - 1}, "memory_bytes"), ({"cpus": 0.25}, "cpus"), ({"sandboxes": 0}, "sandboxes")):
        with pytest.raises(LimitError) as refused:
            ownership.check(annes, PoolSizes(0, 4), who(ANNE, **too_small), 0)  # not even one could ever wait in it
        assert refused.value.fields["quota"] == name
    for principal in (who(ANNE), OPERATOR):
        with pytest.raises(ForbiddenError):
            ownership.check(annes, PoolSizes(0, 0, 1), principal)
    ownership.check(pool(), PoolSizes(99, 99, 9), OPERATOR, 99)
