"""Quotas: a refusal has the figures, and a time to wait only if waiting can help."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from sandlot.core.access import quotas
from sandlot.model.access import UNBOUNDED, Quota
from sandlot.model.errors import ErrorCode, LimitError
from sandlot.model.specs import GIB, Limits

SMALL = Limits(cpus=0.5, memory_bytes=GIB, disk_bytes=GIB)


def quota_with(**fields: Any) -> Quota:  # noqa: ANN401 - any of a quota's fields
    return Quota(**{"sandboxes": None, **fields})


@pytest.mark.parametrize(
    "quota, limits, timeout_s, live, refused",
    [
        ({}, Limits(cpus=64), None, 100, None),
        ({"sandboxes": 2}, Limits(), 300, 1, None),
        ({"sandboxes": 2}, Limits(), 300, 2, {"quota": "sandboxes", "limit": 2, "used": 2, "requested": 1, "retry_after_s": 5}),
        ({"sandboxes": 2}, Limits(), 300, 3, {"quota": "sandboxes", "limit": 2, "used": 3, "requested": 1, "retry_after_s": 5}),
        ({"sandboxes": 0}, Limits(), 300, 0, {"quota": "sandboxes", "limit": 0, "used": 0, "requested": 1}),
        ({"lifetime_s": 60}, Limits(), 60, 0, None),
        ({"lifetime_s": 60}, Limits(), 61, 0, {"quota": "lifetime_s", "limit": 60, "used": 0, "requested": 61}),
        ({"lifetime_s": 1e9}, Limits(), None, 0, {"quota": "lifetime_s", "limit": 1e9, "used": 0, "requested": None}),
        ({"cpus": 2.0}, Limits(cpus=1.0), 300, 2, None),
        ({"cpus": 2.0}, Limits(cpus=1.5), 300, 2, {"quota": "cpus", "limit": 2.0, "used": 1.0, "requested": 1.5, "retry_after_s": 5}),
        ({"cpus": 2.0}, Limits(cpus=2.5), 300, 0, {"quota": "cpus", "limit": 2.0, "used": 0, "requested": 2.5}),
        (
            {"memory_bytes": 3 * GIB},
            Limits(memory_bytes=2 * GIB),
            300,
            2,
            {"quota": "memory_bytes", "limit": 3 * GIB, "used": 2 * GIB, "requested": 2 * GIB, "retry_after_s": 5},
        ),
        ({"disk_bytes": 5 * GIB}, Limits(), 300, 0, None),
        ({"disk_bytes": 5 * GIB - 1}, Limits(), 300, 0, {"quota": "disk_bytes", "limit": 5 * GIB - 1, "used": 0, "requested": 5 * GIB}),
    ],
)
def test_create_over_a_quota_is_refused_with_the_figures(
    quota: dict[str, Any], limits: Limits, timeout_s: float | None, live: int, refused: dict[str, Any] | None
) -> None:
    def check() -> None:
        quotas.check_lifetime(quota_with(**quota), timeout_s)
        quotas.check_live(quota_with(**quota), limits, [SMALL] * live)

    if refused is None:
        check()
        return
    with pytest.raises(LimitError) as error:
        check()
    assert (error.value.code, error.value.status) == (ErrorCode.QUOTA_EXCEEDED, 429)
    assert error.value.hint
    assert dict(error.value.fields) == refused


@pytest.mark.parametrize(
    "change, timeout_s, refused",
    [
        ({"memory_bytes": 2 * GIB}, None, None),
        ({"memory_bytes": 3 * GIB}, None, "memory_bytes"),
        ({"cpus": 1.0}, None, "cpus"),
        ({"cpus": 0.25}, None, None),
        ({}, 60.0, None),
        ({}, 61.0, "lifetime_s"),
        ({}, math.inf, "lifetime_s"),
    ],
)
def test_update_that_takes_more_than_the_quota_has_left_is_refused(change: dict[str, Any], timeout_s: float | None, refused: str | None) -> None:
    after = replace(SMALL, **change)
    quota = quota_with(memory_bytes=3 * GIB, cpus=1.0, lifetime_s=60.0)
    if refused is None:
        quotas.check_update(quota, SMALL, after, timeout_s, [SMALL])
    else:
        with pytest.raises(LimitError) as error:
            quotas.check_update(quota, SMALL, after, timeout_s, [SMALL])
        assert error.value.fields["quota"] == refused
    quotas.check_update(UNBOUNDED, SMALL, after, timeout_s, [SMALL])


def test_update_that_takes_less_is_never_refused() -> None:
    large = Limits(cpus=4, memory_bytes=8 * GIB)
    lowered = quota_with(cpus=1.0, memory_bytes=GIB)
    quotas.check_update(lowered, large, replace(large, cpus=3.0), None, [large])
