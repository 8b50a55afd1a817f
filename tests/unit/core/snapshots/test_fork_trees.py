"""Trees of forks are found from any of their members, also if members are no longer remembered.

``test_forks.py`` has trees whose members are all remembered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from sandlot.core.snapshots import forks
from sandlot.model.ids import SandboxId
from sandlot.model.specs import SandboxSpec

#: child -> parent: a has b and c, b has d and e, c has f; x is not a fork, and the parent of y is forgotten.
PARENTS = {"a": None, "b": "a", "c": "a", "d": "b", "e": "b", "f": "c", "x": None, "y": "gone"}


@dataclass
class FakeSandbox:
    """The attributes of a sandbox that trees use."""

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
        ("bdec", "d", "a"),  # the root is forgotten, and its id is not
        ("d", "d", "b"),
    ],
)
def test_root_is_the_last_known_ancestor(names: str, start: str, root: str) -> None:
    parents: Any = {name: PARENTS[name] for name in names}
    assert forks.root_of(SandboxId(start), parents) == root


def test_ring_of_parents_ends() -> None:
    first, second = SandboxId("first"), SandboxId("second")
    assert forks.root_of(first, {first: second, second: first}) in {first, second}


def test_sandboxes_below_a_forgotten_one_stay_in_one_tree() -> None:
    sandboxes: Any = [FakeSandbox(SandboxSpec(id=SandboxId(name), parent=SandboxId(PARENTS[name] or "") or None)) for name in "aced"]
    assert [each.id for each in forks.below([SandboxId("b")], sandboxes)] == ["e", "d"]
