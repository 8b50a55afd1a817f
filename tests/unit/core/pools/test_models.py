"""What a pool holds and how much: ids, sizes, and the words of a setting."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandlot.core.pools.models import DEFAULT_WISHES, GROWS_TO, POOL_ID, PoolId, PoolSizes, PoolSpec, Wish, kind_as_words, kind_of_words, wishes
from sandlot.model.access import LOCAL, OwnerId
from sandlot.model.errors import InvalidRequestError
from sandlot.model.specs import DEFAULT_TEMPLATE, GIB, Limits

KIND = PoolSpec("base", "gvisor", Limits())


def test_an_id_stands_for_whose_a_pool_is_and_for_what_it_holds() -> None:
    others = [
        replace(KIND, template="code-interpreter"),
        replace(KIND, isolation="container"),
        *(replace(KIND, limits=limits) for limits in (Limits(cpus=2.0), Limits(memory_bytes=2 * GIB), Limits(disk_bytes=GIB), Limits(pids=100))),
    ]
    owners = (LOCAL, OwnerId("0123456789ab"), OwnerId("ba9876543210"))
    ids = {PoolId(owner, each).id for each in (KIND, *others) for owner in owners}
    assert len(ids) == len(owners) * (len(others) + 1)
    assert all(POOL_ID.fullmatch(each) for each in ids)
    assert PoolId(LOCAL, PoolSpec("base", "gvisor", Limits())).id == PoolId(LOCAL, KIND).id == "pool-j66vgm5nuh7a"


@pytest.mark.parametrize(
    "wanted, given",
    [
        (KIND, True),
        (replace(KIND, limits=Limits(pids=16)), True),
        (replace(KIND, limits=Limits(pids=513)), False),
        (replace(KIND, limits=Limits(memory_bytes=2 * GIB)), False),
        (replace(KIND, limits=Limits(memory_bytes=GIB // 2)), False),
        (replace(KIND, limits=Limits(cpus=0.5)), False),
        (replace(KIND, limits=Limits(disk_bytes=GIB)), False),
        (replace(KIND, template="code-interpreter"), False),
        (replace(KIND, isolation="container"), False),
    ],
)
def test_what_is_seen_from_inside_must_be_what_was_asked_for(wanted: PoolSpec, *, given: bool) -> None:
    assert KIND.gives(wanted) is given


def test_a_change_keeps_what_it_does_not_name_and_max_follows_warm_upwards() -> None:
    before = PoolSizes(1, 4, 2)
    assert before.changed(blank=0) == PoolSizes(1, 4, 0)
    assert before.changed(warm=6) == PoolSizes(6, 6, 2)
    assert before.changed(warm=0) == PoolSizes(0, 4, 2)
    assert before.changed(most=1) == PoolSizes(1, 1, 2)
    with pytest.raises(InvalidRequestError):
        before.changed(warm=3, most=2)


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("", ()),
        ("none", ()),
        (" none ", ()),
        ("base=1", (Wish("base", PoolSizes(1, GROWS_TO)),)),
        ("base=7", (Wish("base", PoolSizes(7, 7)),)),
        ("base=2:2", (Wish("base", PoolSizes(2, 2)),)),
        ("code-interpreter=2:4, base=1:1+3", (Wish("code-interpreter", PoolSizes(2, 4)), Wish("base", PoolSizes(1, 1, 3)))),
        ("base=0:0+2", (Wish("base", PoolSizes(0, 0, 2)),)),
    ],
)
def test_a_setting_is_read(text: str, wanted: tuple[Wish, ...]) -> None:
    assert wishes(text, {"base", "code-interpreter"}) == wanted


@pytest.mark.parametrize(
    "text", ["base", "base=", "base=x", "base=-1", "base=1:", "base=3:2", "base=1,base=2", "other=1", "base=1;x=2", "=1", "base=99999"]
)
def test_what_is_no_setting_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        wishes(text, {"base"})


def test_the_default_is_small_and_nobodys_wish() -> None:
    (wish,) = DEFAULT_WISHES
    assert (wish.template, wish.implied) == (DEFAULT_TEMPLATE, True)
    assert wish.sizes.warm == 1


def test_a_kind_survives_its_words() -> None:
    kind = replace(KIND, limits=Limits(cpus=0.5, memory_bytes=GIB // 2, disk_bytes=GIB, pids=99))
    assert kind_of_words(kind_as_words(kind)) == kind
