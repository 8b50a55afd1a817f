"""Trees of forks are found from any of their members, also if members are no longer remembered.

``test_fork_batches.py`` has trees whose members are all remembered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from sandlot.core.snapshots import forks
from sandlot.model.ids import SandboxId
from sandlot.model.specs import SandboxSpec

#: child -> parent: a has b and c, b has d and e, c has f; x is nobody's fork, and y is of one that nobody remembers.
PARENTS = {"a": None, "b": "a", "c": "a", "d": "b", "e": "b", "f": "c", "x": None, "y": "gone"}


@dataclass
class Box:
    """As much of a sandbox as is looked at."""

    spec: SandboxSpec

    @property
    def id(self) -> SandboxId:
        return self.spec.id


@pytest.mark.parametrize(
    "names, start, root",
    [
        ("abcdefxy", "d", "a"),
        ("abcdefxy", "a", "a"),
        ("abcdefxy", "x", "x"),
        ("abcdefxy", "y", "gone"),
        ("bdec", "d", "a"),  # the one at the top is forgotten, and its name is not
        ("d", "d", "b"),
    ],
)
def test_the_root_is_the_top_of_what_is_known(names: str, start: str, root: str) -> None:
    parents: Any = {name: PARENTS[name] for name in names}
    assert forks.root_of(SandboxId(start), parents) == root


def test_a_ring_ends() -> None:
    one, other = SandboxId("one"), SandboxId("other")
    assert forks.root_of(one, {one: other, other: one}) in {one, other}


def test_what_hangs_below_one_that_is_forgotten_stays_together() -> None:
    boxes: Any = [Box(SandboxSpec(id=SandboxId(name), parent=SandboxId(PARENTS[name] or "") or None)) for name in "aced"]
    assert [each.id for each in forks.below([SandboxId("b")], boxes)] == ["e", "d"]
