"""Trees of forks are found from any of their members, whatever of them is still remembered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from sandlot.core.sandbox import Sandbox
from sandlot.core.saved import trees
from sandlot.model.ids import SandboxId
from sandlot.model.specs import SandboxSpec

#: child -> parent: a has b and c, b has d and e, c has f; x is nobody's fork, and y is of one that nobody remembers.
PARENTS = {"a": None, "b": "a", "c": "a", "d": "b", "e": "b", "f": "c", "x": None, "y": "gone"}


@dataclass
class Box:
    """As much of a sandbox as is looked at."""

    spec: SandboxSpec
    metadata: dict[str, str] = field(default_factory=dict)

    @property
    def id(self) -> SandboxId:
        return self.spec.id


def box(name: str, **metadata: str) -> Sandbox:
    parent = PARENTS[name]
    made: Any = Box(SandboxSpec(id=SandboxId(name), parent=None if parent is None else SandboxId(parent)), metadata)
    return made  # type: ignore[no-any-return]


def boxes(names: str = "abcdefxy") -> list[Sandbox]:
    return [box(name) for name in names]


def ids(found: Any) -> str:  # noqa: ANN401 - any iterable of them
    return "".join(each.id for each in found)


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
    assert trees.root_of(SandboxId(start), {each.id: each.spec.parent for each in boxes(names)}) == root


def test_a_ring_ends() -> None:
    one, other = SandboxId("one"), SandboxId("other")
    assert trees.root_of(one, {one: other, other: one}) in {one, other}


@pytest.mark.parametrize("roots, found", [("a", "abcdef"), ("b", "bde"), ("c", "cf"), ("bf", "bdef"), ("x", "x"), ("", ""), ("z", "")])
def test_what_is_below_is_all_that_was_forked_at_any_remove(roots: str, found: str) -> None:
    assert ids(trees.below([SandboxId(each) for each in roots], boxes())) == found


def test_what_hangs_below_one_that_is_forgotten_stays_together() -> None:
    assert ids(trees.below([SandboxId("b")], boxes("aced"))) == "ed"


def test_siblings_are_the_other_forks_of_the_parent() -> None:
    assert ids(trees.siblings(box("d"), boxes(), {})) == "e"
    assert ids(trees.siblings(box("b"), boxes(), {})) == "c"
    assert ids(trees.siblings(box("f"), boxes(), {})) == ""


def test_siblings_may_be_chosen_by_their_metadata() -> None:
    forks = [box("b", tree="1"), box("c", tree="2")]
    assert ids(trees.siblings(box("b"), forks, {"tree": "2"})) == "c"
    assert ids(trees.siblings(box("b"), forks, {"tree": "1"})) == ""
    assert ids(trees.siblings(box("b"), forks, {"tree": "2", "more": "x"})) == ""
