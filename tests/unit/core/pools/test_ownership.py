"""Shared and private pools: quotas, order of evictions and order of fills."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from sandlot.core.access.quotas import taken
from sandlot.core.pools import ownership
from sandlot.core.pools.models import PoolConfig, PoolSpec
from sandlot.core.pools.ownership import PoolOwners
from sandlot.core.pools.pool import Pool, PreparedPoolEntry, WarmSandbox
from sandlot.model.access import LOCAL, OPERATOR, OwnerId, Principal, Quota
from sandlot.model.errors import ForbiddenError, LimitError
from sandlot.model.ids import SandboxId
from sandlot.model.pools import PoolSizes
from sandlot.model.specs import GIB, Limits, TemplateRef

LIMITS = Limits(cpus=0.5, memory_bytes=GIB, disk_bytes=GIB)
ANNE, BOB = OwnerId("aaaaaaaaaaaa"), OwnerId("bbbbbbbbbbbb")
UNUSED: Any = None
"""Parts of entries that these functions do not use."""


def principal(owner: OwnerId, **quota: Any) -> Principal:  # noqa: ANN401 - any field of Quota
    return Principal(owner, owner, quota=Quota(**quota))


def pool(owner: OwnerId = LOCAL, template: str = "base", limits: Limits = LIMITS, ages_s: tuple[float, ...] = ()) -> Pool:
    """Return a pool with warm sandboxes of some ages; the current time is 0."""
    made = Pool(PoolConfig(PoolSpec(TemplateRef(LOCAL, template), "gvisor", limits), PoolSizes(1, 4), owner))
    for age_s in sorted(ages_s, reverse=True):
        made.ready.append(WarmSandbox(SandboxId(f"{owner}-{template}-{age_s}"), made.spec, UNUSED, UNUSED, -age_s))
    return made


# Quotas ---------------------------------------------------------------------------------------------------------------


@hypothesis.given(
    sandboxes=st.none() | st.integers(0, 6),
    cpus=st.none() | st.integers(0, 12).map(lambda number: number / 2),
    live=st.integers(0, 5),
    unfinished=st.integers(0, 2),
    ready=st.lists(st.sampled_from((LIMITS, replace(LIMITS, cpus=1.0))), max_size=6),
)
def test_smallest_number_of_warm_sandboxes_is_removed(
    sandboxes: int | None, cpus: float | None, live: int, unfinished: int, ready: list[Limits]
) -> None:
    quota = Quota(sandboxes=sandboxes, cpus=cpus)

    def fits(removed: int) -> bool:
        used = taken([*[LIMITS] * (live + unfinished), *ready[removed:]])
        return (sandboxes is None or used.sandboxes <= sandboxes) and (cpus is None or used.cpus <= cpus)

    removed = ownership.excess_count(quota, [LIMITS] * live, [LIMITS] * unfinished, ready)

    assert fits(removed) or removed == len(ready)
    assert removed == 0 or not fits(removed - 1)


@hypothesis.given(sandboxes=st.integers(0, 6), live=st.integers(0, 5), unfinished=st.integers(0, 2), ready=st.integers(0, 4))
def test_nothing_is_removed_from_pools_that_were_filled_up_to_the_quota(sandboxes: int, live: int, unfinished: int, ready: int) -> None:
    quota, live_limits, unfinished_limits = Quota(sandboxes=sandboxes), [LIMITS] * live, [LIMITS] * unfinished
    hypothesis.assume(live + unfinished + ready <= sandboxes)

    left = ownership.quota_left(quota, live_limits, [LIMITS] * (unfinished + ready), LIMITS)

    assert left is not None
    assert ownership.excess_count(quota, live_limits, unfinished_limits, [LIMITS] * (ready + left)) == 0
    assert ownership.excess_count(quota, live_limits, unfinished_limits, [LIMITS] * (ready + left + 1)) > 0


def test_oldest_warm_sandboxes_of_all_pools_of_an_owner_are_over_quota() -> None:
    principals = {ANNE: principal(ANNE, sandboxes=4), BOB: principal(BOB, sandboxes=1)}
    live = {ANNE: [LIMITS] * 2, BOB: [LIMITS]}
    owners = PoolOwners(principals.get, lambda owner: live[owner])
    pools = [pool(ages_s=(99.0,)), pool(ANNE, ages_s=(9.0, 2.0)), pool(ANNE, "other", ages_s=(8.0, 3.0)), pool(BOB, ages_s=(1.0,))]

    over_quota = [(each.owner, -warm.started_at_s) for each, warm in owners.over_quota(pools)]

    assert over_quota == [(ANNE, 9.0), (ANNE, 8.0), (BOB, 1.0)]


def test_quota_leaves_to_a_pool_what_live_and_warm_sandboxes_do_not_use() -> None:
    live = [LIMITS] * 2
    owners = PoolOwners({ANNE: principal(ANNE, sandboxes=4)}.get, lambda _: live)
    shared, first, second = pool(ages_s=(99.0,)), pool(ANNE, ages_s=(9.0, 2.0)), pool(ANNE, "other", ages_s=(8.0, 3.0))

    assert owners.quota_left(shared, [shared]) is None
    assert owners.quota_left(first, [shared, first, second]) == 0
    assert owners.quota_left(first, [shared, first]) == 0
    live.clear()
    assert owners.quota_left(first, [shared, first]) == 2


def test_pool_can_have_a_warm_sandbox_only_within_its_sizes_and_the_quota() -> None:
    owners = PoolOwners({ANNE: principal(ANNE, sandboxes=2)}.get, lambda _: [LIMITS])
    first, second = pool(ANNE), pool(ANNE, "other", ages_s=(1.0,))

    assert owners.can_have_warm(first, [first])
    assert not owners.can_have_warm(first, [first, second])  # one is live and one is warm
    assert owners.can_have_warm(second, [first, second])  # the template snapshot of a warm sandbox must stay current


def test_empty_pool_can_have_a_warm_sandbox_after_it_has_grown() -> None:
    owners = PoolOwners({ANNE: principal(ANNE, sandboxes=2)}.get, lambda _: [LIMITS])
    annes = pool(ANNE)
    annes.configure(replace(annes.config, sizes=PoolSizes(0, 4)))

    assert not owners.can_have_warm(annes, [annes])
    annes.take(None, 0.0)
    assert owners.can_have_warm(annes, [annes])


# Order ----------------------------------------------------------------------------------------------------------------


def test_private_warm_sandboxes_are_evicted_before_shared_entries_and_the_largest_owner_first() -> None:
    shared, annes = pool(ages_s=(9.0, 8.0, 7.0)), pool(ANNE, ages_s=(6.0, 5.0))
    bobs, bobs_other = pool(BOB, limits=replace(LIMITS, memory_bytes=4 * GIB), ages_s=(4.0, 3.0)), pool(BOB, ages_s=(90.0,))
    prepared = PreparedPoolEntry(shared.spec, UNUSED, UNUSED, UNUSED)
    shared.prepared.append(prepared)
    pools, evicted = [shared, annes, bobs, bobs_other], []

    while (entry := ownership.next_eviction(pools)) is not None:
        evicted.append(-entry.started_at_s if isinstance(entry, WarmSandbox) else entry)
        assert [each.drop(entry) for each in pools].count(True) == 1

    # Bob has 9 GiB and Anne 2 GiB, until Bob has 1 GiB. Shared entries come last, the prepared sandbox first.
    assert evicted == [4.0, 3.0, 6.0, 5.0, 90.0, prepared, 9.0, 8.0, 7.0]


def test_nothing_is_evicted_without_pools() -> None:
    assert ownership.next_eviction([]) is None


def test_shared_pools_are_filled_first_and_then_those_of_the_owner_with_the_fewest_warm_sandboxes() -> None:
    shared, annes, annes_other, bobs = pool(ages_s=(1.0, 2.0, 3.0)), pool(ANNE, ages_s=(1.0,)), pool(ANNE, "other"), pool(BOB)
    pools = [annes, annes_other, bobs, shared]

    assert sorted(pools, key=lambda each: ownership.fill_priority(each, pools)) == [shared, bobs, annes_other, annes]


def test_shared_pool_with_the_fewest_warm_sandboxes_is_filled_first() -> None:
    grown, empty, one = pool(ages_s=(1.0, 2.0)), pool(template="empty"), pool(template="one", ages_s=(1.0,))
    pools = [grown, one, empty]

    assert sorted(pools, key=lambda each: ownership.fill_priority(each, pools)) == [empty, one, grown]


# Refusals -------------------------------------------------------------------------------------------------------------


def test_pool_beyond_the_number_of_pools_is_refused() -> None:
    anne = principal(ANNE, sandboxes=3, pools=2)
    ownership.check_allowed(pool(ANNE), PoolSizes(3, 3), anne, existing=1)

    with pytest.raises(LimitError) as error:
        ownership.check_allowed(pool(ANNE), PoolSizes(3, 3), anne, existing=2)

    assert error.value.fields == {"quota": "pools", "limit": 2, "used": 2, "requested": 1}


@pytest.mark.parametrize(
    "quota, fields",
    [
        ({"sandboxes": 2}, {"quota": "sandboxes", "limit": 2, "used": 0, "requested": 3}),
        ({"cpus": 1.0}, {"quota": "cpus", "limit": 1.0, "used": 0, "requested": 1.5}),
        ({"memory_bytes": GIB}, {"quota": "memory_bytes", "limit": GIB, "used": 0, "requested": 3 * GIB}),
        ({"disk_bytes": GIB}, {"quota": "disk_bytes", "limit": GIB, "used": 0, "requested": 3 * GIB}),
    ],
)
def test_only_larger_sizes_are_refused_beyond_a_quota(quota: dict[str, Any], fields: dict[str, Any]) -> None:
    with pytest.raises(LimitError) as error:
        ownership.check_allowed(pool(ANNE), PoolSizes(3, 3), principal(ANNE, **quota))

    assert error.value.fields == fields
    ownership.check_allowed(pool(ANNE), PoolSizes(0, 9), principal(ANNE, **quota))


def test_operator_changes_a_private_pool_beyond_the_quota_of_its_owner() -> None:
    ownership.check_allowed(pool(ANNE), PoolSizes(3, 3), OPERATOR)


@pytest.mark.parametrize("quota", [{"memory_bytes": GIB - 1}, {"cpus": 0.25}, {"sandboxes": 0}])
def test_new_pool_of_sandboxes_that_the_quota_never_allows_is_refused(quota: dict[str, Any]) -> None:
    with pytest.raises(LimitError) as error:
        ownership.check_allowed(pool(ANNE), PoolSizes(0, 4), principal(ANNE, **quota), existing=0)

    assert [error.value.fields["quota"]] == list(quota)


@pytest.mark.parametrize("caller", [principal(ANNE), OPERATOR])
def test_prepared_sandboxes_in_a_private_pool_are_refused(caller: Principal) -> None:
    with pytest.raises(ForbiddenError):
        ownership.check_allowed(pool(ANNE), PoolSizes(0, 0, 1), caller)


def test_shared_pool_of_any_size_is_allowed() -> None:
    ownership.check_allowed(pool(), PoolSizes(99, 99, 9), OPERATOR, existing=99)
