"""What one key may take: refused beyond it with the figures, and with a time to wait only where waiting helps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest

from sandlot.core.access import quotas
from sandlot.core.admission import CreateSandboxParams
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR, OwnerId, Principal, Quota
from sandlot.model.errors import ErrorCode, LimitError
from sandlot.model.ids import NodeId, SandboxId, new_sandbox_id
from sandlot.model.ports import Change
from sandlot.model.specs import GIB, Limits, SandboxSpec

SMALL = Limits(cpus=0.5, memory_bytes=GIB, disk_bytes=GIB)


@dataclass
class Box:
    """As much of a sandbox as is looked at."""

    id: SandboxId
    spec: SandboxSpec

    @property
    def counted_limits(self) -> Limits:
        return self.spec.limits


def box(limits: Limits = SMALL) -> Sandbox:
    id_ = new_sandbox_id(NodeId("node"))
    made: Any = Box(id_, SandboxSpec(id=id_, limits=limits))
    return made  # type: ignore[no-any-return]


def who(**quota: Any) -> Principal:  # noqa: ANN401 - any of a quota's fields
    return Principal(owner=OwnerId("0123456789ab"), name="a", quota=Quota(**{"sandboxes": None, **quota}))


@pytest.mark.parametrize(
    "quota, params, live, refused",
    [
        ({}, CreateSandboxParams(timeout_s=None, limits=Limits(cpus=64)), 100, None),
        ({"sandboxes": 2}, CreateSandboxParams(), 1, None),
        ({"sandboxes": 2}, CreateSandboxParams(), 2, {"quota": "sandboxes", "limit": 2, "used": 2, "asked": 1, "retry_after_s": 5}),
        ({"sandboxes": 2}, CreateSandboxParams(), 3, {"quota": "sandboxes", "limit": 2, "used": 3, "asked": 1, "retry_after_s": 5}),
        ({"sandboxes": 0}, CreateSandboxParams(), 0, {"quota": "sandboxes", "limit": 0, "used": 0, "asked": 1}),
        ({"lifetime_s": 60}, CreateSandboxParams(timeout_s=60), 0, None),
        ({"lifetime_s": 60}, CreateSandboxParams(timeout_s=61), 0, {"quota": "lifetime_s", "limit": 60, "used": 0, "asked": 61}),
        ({"lifetime_s": 1e9}, CreateSandboxParams(timeout_s=None), 0, {"quota": "lifetime_s", "limit": 1e9, "used": 0, "asked": None}),
        ({"cpus": 2.0}, CreateSandboxParams(limits=Limits(cpus=1.0)), 2, None),
        (
            {"cpus": 2.0},
            CreateSandboxParams(limits=Limits(cpus=1.5)),
            2,
            {"quota": "cpus", "limit": 2.0, "used": 1.0, "asked": 1.5, "retry_after_s": 5},
        ),
        ({"cpus": 2.0}, CreateSandboxParams(limits=Limits(cpus=2.5)), 0, {"quota": "cpus", "limit": 2.0, "used": 0, "asked": 2.5}),
        (
            {"memory_bytes": 3 * GIB},
            CreateSandboxParams(limits=Limits(memory_bytes=2 * GIB)),
            2,
            {"quota": "memory_bytes", "limit": 3 * GIB, "used": 2 * GIB, "asked": 2 * GIB, "retry_after_s": 5},
        ),
        ({"disk_bytes": 5 * GIB}, CreateSandboxParams(), 0, None),
        ({"disk_bytes": 5 * GIB - 1}, CreateSandboxParams(), 0, {"quota": "disk_bytes", "limit": 5 * GIB - 1, "used": 0, "asked": 5 * GIB}),
    ],
)
def test_a_create_is_refused_beyond_a_quota(quota: dict[str, Any], params: CreateSandboxParams, live: int, refused: dict[str, Any] | None) -> None:
    sandboxes = [box() for _ in range(live)]
    if refused is None:
        quotas.check_create(who(**quota), params, sandboxes)
        return
    with pytest.raises(LimitError) as error:
        quotas.check_create(who(**quota), params, sandboxes)
    assert (error.value.code, error.value.status) == (ErrorCode.QUOTA_EXCEEDED, 429)
    assert error.value.hint
    assert dict(error.value.fields) == refused


def test_a_change_is_refused_where_it_takes_more_than_there_is() -> None:
    mine, other = box(), box()
    for change, timeout_s, refused in (
        (Change(memory_bytes=2 * GIB), None, None),
        (Change(memory_bytes=3 * GIB), None, "memory_bytes"),
        (Change(cpus=1.0), None, "cpus"),
        (Change(cpus=0.25), None, None),
        (Change(), 60.0, None),
        (Change(), 61.0, "lifetime_s"),
        (Change(), math.inf, "lifetime_s"),
    ):
        quota = who(memory_bytes=3 * GIB, cpus=1.0, lifetime_s=60.0)
        if refused is None:
            quotas.check_update(quota, mine, timeout_s, change, [mine, other])
        else:
            with pytest.raises(LimitError) as error:
                quotas.check_update(quota, mine, timeout_s, change, [mine, other])
            assert error.value.fields["quota"] == refused
        quotas.check_update(OPERATOR, mine, timeout_s, change, [mine, other])


def test_what_takes_less_is_never_refused() -> None:
    mine, other = box(Limits(cpus=4, memory_bytes=8 * GIB)), box(Limits(cpus=4, memory_bytes=8 * GIB))
    quotas.check_update(who(cpus=1.0, memory_bytes=GIB), mine, None, Change(cpus=3.0), [mine, other])  # a quota that became smaller since
