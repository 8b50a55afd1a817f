"""Wildcards of COPY and .dockerignore."""

from __future__ import annotations

import tracemalloc

import pytest

from sandlot.builds.patterns import MAX_PATTERN_CHARS, ComparisonBudget, IgnoreRules, NamePattern
from sandlot.model.errors import InvalidRequestError, LimitError


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
        ("a*a", "a", False),
        ("*b?*", "abc", True),
        ("*b?*", "ab", False),
        ("a*[0-9]", "a1x", False),
        ("a*[0-9]", "axx1", True),
    ],
)
def test_name_is_matched(pattern: str, name: str, matches: bool) -> None:  # noqa: FBT001 - a table
    assert NamePattern(pattern).matches(name, ComparisonBudget()) is matches


@pytest.mark.parametrize("pattern", ["[", "[a", "[]", "[a-", "[-a]", "\\", "[\\"])
def test_invalid_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRequestError):
        NamePattern(pattern)


def ignored(rules: str, *paths: str, budget: int = 1_000_000) -> list[str]:
    """Return the paths that rules leave out, sorted."""
    return sorted(IgnoreRules(rules).ignored(paths, ComparisonBudget(budget)))


@pytest.mark.parametrize(
    "pattern, path, matches",
    [
        ("**", "a/b", True),
        ("**/x", "x", True),
        ("**/x", "a/b/x", True),
        ("**/**/x", "a/b/x", True),
        ("a/**/x", "a/x", True),
        ("a/**/x", "b/x", False),
        ("a/**/x/**/y", "a/x/x/b/y", True),
        ("a/*", "a/b", True),
        ("a/*", "b/a", False),
    ],
)
def test_path_is_matched(pattern: str, path: str, matches: bool) -> None:  # noqa: FBT001 - a table
    assert ignored(pattern, path) == ([path] if matches else [])


def test_last_matching_rule_decides() -> None:
    rules = "# comment\n\nnode_modules\n/build/\n*.log\n!keep.log\n**/tmp\n"
    left_out = ["a.log", "a/b/tmp", "a/tmp/c", "build", "build/x", "node_modules", "node_modules/a/b"]
    assert ignored(rules, *left_out, "keep.log", "src/a.log", "src", "a-b") == left_out


def test_rule_for_a_folder_applies_to_everything_in_it_until_a_later_rule() -> None:
    assert ignored("a\n!a/b\na/b/c", "a", "a/b", "a/b/c", "a/b/c/d", "a/b/e") == ["a", "a/b/c", "a/b/c/d"]
    assert ignored("!a/b\na", "a/b") == ["a/b"]


def test_each_name_of_a_tree_is_compared_once_with_each_rule() -> None:
    """Folders in folders: the work grows with the number of paths, not with the sum or the square of their lengths."""
    deep = ["a" + "/a" * depth for depth in range(1_000)]
    assert ignored("**/**/b\n**/b/**/c", *deep, budget=2 * len(deep)) == []
    with pytest.raises(LimitError, match="too many files"):
        ignored("**/b", *deep, budget=len(deep) - 1)


def test_names_of_deep_paths_are_not_in_memory_at_once() -> None:
    deep = "/".join(f"folder{number}" for number in range(200))
    paths = [f"{deep}/{number}" for number in range(1_000)]
    size_bytes = sum(map(len, paths))
    tracemalloc.start()
    try:
        assert ignored("**/none", *paths) == []
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 3 * size_bytes


def test_wildcards_that_compare_character_by_character_cost_more() -> None:
    with pytest.raises(LimitError):
        NamePattern("*[a-cx-z]?").matches("a" * 100, ComparisonBudget(200))
    assert NamePattern("*" * 50 + "b").cost == 0


@pytest.mark.parametrize("rules", ["*[" + "b" * MAX_PATTERN_CHARS + "]", "a/" * MAX_PATTERN_CHARS, "a\n" * 501])
def test_rules_that_are_too_long_or_too_many_are_refused(rules: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"characters|at most 500"):
        IgnoreRules(rules)
