"""Wildcards of COPY and .dockerignore."""

from __future__ import annotations

import pytest

from sandlot.builds.patterns import IgnoreRules, NamePattern, PathPattern
from sandlot.model.errors import InvalidRequestError


@pytest.mark.parametrize(
    "pattern, name, matches",
    [
        ("a", "a", True),
        ("a", "ab", False),
        ("", "", True),
        ("*", "", True),
        ("*.py", "a.py", True),
        ("*.py", "a.pyc", False),
        ("a*b*c", "axbxbxc", True),
        ("a*b*c", "axbx", False),
        ("?", "é", True),
        ("[a-c]x", "bx", True),
        ("[^a-c]x", "bx", False),
        ("\\*", "*", True),
        ("\\*", "a", False),
        ("*" * 50 + "b", "a" * 5_000, False),
        ("*a" * 50 + "b", "a" * 5_000, False),
    ],
)
def test_name_is_matched(pattern: str, name: str, matches: bool) -> None:  # noqa: FBT001 - a table
    assert NamePattern(pattern).matches(name) is matches


@pytest.mark.parametrize("pattern", ["[", "[a", "[]", "[a-", "[-a]", "\\", "[\\"])
def test_invalid_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRequestError):
        NamePattern(pattern)


@pytest.mark.parametrize(
    "pattern, path, matches",
    [("**", "a/b", True), ("**/x", "x", True), ("**/x", "a/b/x", True), ("a/**/x", "a/x", True), ("a/**/x", "b/x", False), ("a/*", "a/b/c", False)],
)
def test_path_is_matched(pattern: str, path: str, matches: bool) -> None:  # noqa: FBT001 - a table
    assert PathPattern(pattern).matches(path.split("/")) is matches


def test_last_matching_rule_decides() -> None:
    rules = IgnoreRules("# comment\n\nnode_modules\n/build/\n*.log\n!keep.log\n**/tmp\n")
    ignored = ["node_modules", "node_modules/a/b", "build", "build/x", "a.log", "a/b/tmp", "a/tmp/c"]
    assert [path for path in [*ignored, "keep.log", "src/a.log", "src"] if rules.ignores(path)] == ignored
