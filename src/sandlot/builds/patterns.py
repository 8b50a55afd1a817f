"""Wildcards of COPY and of ``.dockerignore``. Pure.

Regular expressions are not used: the patterns and paths come from users, and some take exponential time. Patterns have a limited length, each name of
a tree is compared once with each part of a pattern that can match there, and all comparisons of a build together are limited.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from operator import eq
from typing import Final

from sandlot.model.errors import ErrorCode, InvalidRequestError, LimitError

MAX_PATTERNS: Final = 500
MAX_PATTERN_CHARS: Final = 1024
"""Maximum number of characters of one pattern."""
MAX_COMPARISONS: Final = 10_000_000
"""Comparisons of a name with a pattern that one build may need: about ten seconds of work."""
_SPECIAL: Final = frozenset("*?[\\")


def has_wildcards(pattern: str) -> bool:
    """Return whether a pattern has wildcards or escapes."""
    return any(each in _SPECIAL for each in pattern)


class ComparisonBudget:
    """Comparisons that are left for one build.

    Args:
        left: Number of comparisons.
    """

    __slots__ = ("_left",)

    def __init__(self, left: int = MAX_COMPARISONS) -> None:
        self._left = left

    def spend(self, number: int) -> None:
        """Use comparisons.

        Raises:
            LimitError: None are left.
        """
        self._left -= number
        if self._left < 0:
            raise LimitError(
                "The build has too many files for the wildcards of the .dockerignore and of COPY.",
                code=ErrorCode.TOO_LARGE,
                hint="Use fewer patterns and fewer wildcards, or copy folders.",
            )


@dataclass(frozen=True, slots=True)
class _Class:
    ranges: tuple[tuple[str, str], ...]
    is_negated: bool

    def matches(self, char: str) -> bool:
        return any(low <= char <= high for low, high in self.ranges) != self.is_negated


_Piece = str | tuple[str | _Class, ...]
"""Part of a pattern without ``*``: a text, or characters, classes and empty texts for any character."""


class NamePattern:
    """Pattern of one name, as in Go's ``filepath.Match``: ``*``, ``?``, ``[a-z]``, ``[^a-z]``, and a backslash before a character.

    Attributes:
        cost: Comparisons of one character of a name, at most.

    Raises:
        InvalidRequestError: The pattern is invalid or too long.
    """

    __slots__ = ("_pieces", "cost")

    def __init__(self, pattern: str) -> None:
        if len(pattern) > MAX_PATTERN_CHARS:
            raise InvalidRequestError(
                f"The pattern {pattern[:64]!r}… has {len(pattern)} characters.", hint=f"Use at most {MAX_PATTERN_CHARS} characters."
            )
        pieces: list[list[str | _Class]] = [[]]
        at = 0
        while at < len(pattern):
            char = pattern[at]
            at += 1
            if char == "*":
                pieces.append([])
            elif char == "?":
                pieces[-1].append("")
            elif char == "[":
                found, at = _read_class(pattern, at)
                pieces[-1].append(found)
            elif char == "\\":
                if at >= len(pattern):
                    raise _invalid(pattern)
                pieces[-1].append(pattern[at])
                at += 1
            else:
                pieces[-1].append(char)
        self._pieces = [_joined(piece) for piece in pieces]
        self.cost = sum(
            len(token.ranges) if isinstance(token, _Class) else 1 for piece in self._pieces if not isinstance(piece, str) for token in piece
        )

    def matches(self, name: str, budget: ComparisonBudget) -> bool:
        """Return whether a name matches. Each piece between two ``*`` is looked for as far to the left as possible.

        Raises:
            LimitError: The budget is used up.
        """
        budget.spend(len(self._pieces) + self.cost * len(name))
        first, *others = self._pieces
        if not others:
            return len(name) == len(first) and _is_at(first, name, 0)
        *middle, last = others
        at, end = len(first), len(name) - len(last)
        if at > end or not _is_at(first, name, 0) or not _is_at(last, name, end):
            return False
        for piece in middle:
            at = _find(piece, name, at, end)
            if at < 0:
                return False
            at += len(piece)
        return True


class PathPattern:
    """Pattern of a path, whose part ``**`` stands for any number of names. A path is compared name by name, from a state to the next one.

    Attributes:
        start: State before the first name.
    """

    __slots__ = ("_parts", "start")

    def __init__(self, pattern: str) -> None:
        self._parts: list[NamePattern | None] = []
        for part in pattern.split("/"):
            if part == "**":
                if not self._parts or self._parts[-1] is not None:
                    self._parts.append(None)
            elif part not in {"", "."}:
                self._parts.append(NamePattern(part))
        self.start = self._with_next(frozenset({0}))

    def next_state(self, state: frozenset[int], name: str, budget: ComparisonBudget) -> frozenset[int]:
        """Return the state after a name: the numbers of parts that can match the next one. Empty: no longer path matches.

        Raises:
            LimitError: The budget is used up.
        """
        following = set()
        for at in state:
            if at < len(self._parts):
                part = self._parts[at]
                if part is None:  # costs nothing, because the part after it is compared too
                    following.add(at)
                elif part.matches(name, budget):
                    following.add(at + 1)
        return self._with_next(following)

    def is_match(self, state: frozenset[int]) -> bool:
        """Return whether a path with this state matches."""
        return len(self._parts) in state

    def _with_next(self, state: Iterable[int]) -> frozenset[int]:
        """Add the parts after each ``**``, which may stand for no name."""
        return frozenset(state).union(at + 1 for at in state if at < len(self._parts) and self._parts[at] is None)


@dataclass(frozen=True, slots=True)
class _Level:
    """Rules at one path.

    Args:
        last: Number of the last rule that matches the path or a folder above it; -1: none does.
        open: Later rules that can match a path below, with their states.
    """

    last: int
    open: tuple[tuple[int, frozenset[int]], ...]


class IgnoreRules:
    """Rules of a ``.dockerignore``: the last matching one decides. A rule for a folder applies to everything in it.

    Args:
        text: Content of the file.

    Raises:
        InvalidRequestError: A pattern is invalid or too long, or there are too many.
    """

    __slots__ = ("_rules",)

    def __init__(self, text: str) -> None:
        self._rules: list[tuple[bool, PathPattern]] = []
        lines = [line.strip() for line in text.removeprefix("\ufeff").splitlines() if not line.startswith("#")]
        patterns = [line for line in lines if line]
        if len(patterns) > MAX_PATTERNS:
            raise InvalidRequestError(f"The .dockerignore has {len(patterns)} patterns; at most {MAX_PATTERNS} are allowed.")
        for pattern in patterns:
            if len(pattern) > MAX_PATTERN_CHARS:
                raise InvalidRequestError(
                    f"The .dockerignore has a pattern of {len(pattern)} characters: {pattern[:64]!r}…",
                    hint=f"Use at most {MAX_PATTERN_CHARS} characters in a line.",
                )
            self._rules.append((pattern.startswith("!"), PathPattern(pattern.removeprefix("!").strip())))

    def ignored(self, paths: Iterable[str], budget: ComparisonBudget) -> set[str]:
        """Return the paths of a context that are left out.

        Raises:
            LimitError: The budget is used up.
        """
        found = set()
        levels = [_Level(-1, tuple((number, pattern.start) for number, (_, pattern) in enumerate(self._rules)))]
        above: list[str] = []
        # A folder comes directly before the paths in it. The names of all deep paths at once would take gigabytes.
        for path in sorted(paths, key=lambda path: path.replace("/", "\0")):
            names = path.split("/")
            shared = sum(takewhile(bool, map(eq, above, names)))
            del levels[shared + 1 :]
            for name in names[shared:]:
                levels.append(self._below(levels[-1], name, budget))
            above = names
            if levels[-1].last >= 0 and not self._rules[levels[-1].last][0]:
                found.add(path)
        return found

    def _below(self, level: _Level, name: str, budget: ComparisonBudget) -> _Level:
        """Return the level of a name in the folder of a level."""
        last, still_open = level.last, []
        for number, state in level.open:
            pattern = self._rules[number][1]
            state = pattern.next_state(state, name, budget)  # noqa: PLW2901
            if pattern.is_match(state):
                last = number
            elif state:
                still_open.append((number, state))
        return _Level(last, tuple(each for each in still_open if each[0] > last))


def _joined(tokens: list[str | _Class]) -> _Piece:
    """Return a piece of a pattern as a text, if it has no wildcards."""
    texts = [token for token in tokens if isinstance(token, str) and token]
    return "".join(texts) if len(texts) == len(tokens) else tuple(tokens)


def _is_at(piece: _Piece, name: str, at: int) -> bool:
    """Return whether a piece matches a name, which is long enough, at a position."""
    if isinstance(piece, str):
        return name.startswith(piece, at)
    for token, char in zip(piece, name[at : at + len(piece)], strict=True):
        if token not in {"", char} and not (isinstance(token, _Class) and token.matches(char)):
            return False
    return True


def _find(piece: _Piece, name: str, at: int, end: int) -> int:
    """Return the first position of a piece in a part of a name; -1 if there is none."""
    if isinstance(piece, str):
        return name.find(piece, at, end)
    return next((start for start in range(at, end - len(piece) + 1) if _is_at(piece, name, start)), -1)


def _read_class(pattern: str, at: int) -> tuple[_Class, int]:
    is_negated = pattern[at : at + 1] == "^"
    at += is_negated
    ranges: list[tuple[str, str]] = []
    while not (ranges and pattern[at : at + 1] == "]"):
        low, at = _class_char(pattern, at)
        high = low
        if pattern[at : at + 1] == "-":
            high, at = _class_char(pattern, at + 1)
        ranges.append((low, high))
    return _Class(tuple(ranges), is_negated), at + 1


def _class_char(pattern: str, at: int) -> tuple[str, int]:
    char = pattern[at : at + 1]
    if char in {"", "-", "]"}:
        raise _invalid(pattern)
    if char == "\\":
        at += 1
        char = pattern[at : at + 1]
        if not char:
            raise _invalid(pattern)
    return char, at + 1


def _invalid(pattern: str) -> InvalidRequestError:
    return InvalidRequestError(f"The pattern {pattern[:64]!r} is invalid.", hint="Close each bracket, and write `\\\\` for a backslash.")
