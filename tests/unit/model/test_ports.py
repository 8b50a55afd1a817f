"""The values that drivers receive (:mod:`sandlot.model.ports`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandlot.model.ports import Attachment, Change, DriverCapability
from sandlot.model.specs import Limits

LIMITS = Limits()


def test_change_needs_the_capability_of_each_limit_that_gets_another_value() -> None:
    change = Change(memory_bytes=2 * LIMITS.memory_bytes, cpus=LIMITS.cpus)
    assert change.needs(LIMITS) == (DriverCapability.CONFIGURE_MEMORY,)


@pytest.mark.parametrize("change", [Change(volumes=(Attachment(0, "/data", tree=Path("/srv/volume")),)), Change(without=(0,))])
def test_change_of_volumes_needs_its_capability_and_keeps_all_limits(change: Change) -> None:
    assert change.needs(LIMITS) == (DriverCapability.CONFIGURE_VOLUMES,)
    assert change.over(LIMITS) == LIMITS


def test_change_of_limits_and_volumes_together_is_refused() -> None:
    with pytest.raises(ValueError, match="limits or volumes"):
        Change(cpus=1.0, without=(0,))
