"""Wildcards of COPY and of ``.dockerignore``, matched in time that is proportional to the lengths of pattern and path. Pure.

Regular expressions are not used: the patterns and paths come from users, and some take exponential time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sandlot.model.errors import InvalidRequestError

MAX_PATTERNS: Final = 500
_SPECIAL: Final = frozenset("*?[\\")


def has_wildcards(pattern: str) -> bool:
    """Return whether a pattern has wildcards or escapes."""
    return any(each in _SPECIAL for each in pattern)


@dataclass(frozen=True, slots=True)
class _Class:
    ranges: tuple[tuple[str, str], ...]
    is_negated: bool

    def matches(self, char: str) -> bool:
        return any(low <= char <= high for low, high in self.ranges) != self.is_negated


class NamePattern:
    """Pattern of one name, as in Go's ``filepath.Match``: ``*``, ``?``, ``[a-z]``, ``[^a-z]``, and a backslash before a character.

    Raises:
        InvalidRequestError: The pattern is invalid.
    """

    __slots__ = ("_tokens",)

    def __init__(self, pattern: str) -> None:
        self._tokens: list[str | _Class | None] = []
        """A character, a class, an empty text for any character, or None for ``*``."""
        at = 0
        while at < len(pattern):
            char = pattern[at]
            at += 1
            if char == "*":
                if not self._tokens or self._tokens[-1] is not None:
                    self._tokens.append(None)
            elif char == "?":
                self._tokens.append("")
            elif char == "[":
                at = self._read_class(pattern, at)
            elif char == "\\":
                if at >= len(pattern):
                    raise _invalid(pattern)
                self._tokens.append(pattern[at])
                at += 1
            else:
                self._tokens.append(char)

    def _read_class(self, pattern: str, at: int) -> int:
        is_negated = pattern[at : at + 1] == "^"
        at += is_negated
        ranges: list[tuple[str, str]] = []
        while not (ranges and pattern[at : at + 1] == "]"):
            low, at = _class_char(pattern, at)
            high = low
            if pattern[at : at + 1] == "-":
                high, at = _class_char(pattern, at + 1)
            ranges.append((low, high))
        self._tokens.append(_Class(tuple(ranges), is_negated))
        return at + 1

    def matches(self, name: str) -> bool:
        """Return whether a name matches. A ``*`` takes as few characters as possible, and the last one is extended on a mismatch."""
        token, char, star, mark = 0, 0, -1, 0
        tokens = self._tokens
        while char < len(name):
            wanted = tokens[token] if token < len(tokens) else ()
            if wanted is None:
                star, mark = token, char
                token += 1
            elif wanted == "" or wanted == name[char] or (isinstance(wanted, _Class) and wanted.matches(name[char])):
                token += 1
                char += 1
            elif star >= 0:
                token, mark = star + 1, mark + 1
                char = mark
            else:
                return False
        return all(each is None for each in tokens[token:])


class PathPattern:
    """Pattern of a path, whose part ``**`` stands for any number of names."""

    __slots__ = ("_parts",)

    def __init__(self, pattern: str) -> None:
        self._parts = [None if part == "**" else NamePattern(part) for part in pattern.split("/") if part not in {"", "."}]

    def matches(self, names: Sequence[str]) -> bool:
        """Return whether the path with these names matches."""
        reached = {0}
        for name in (*names, None):
            for part in sorted(reached):  # `**` may stand for no name
                while part < len(self._parts) and self._parts[part] is None:
                    part += 1  # noqa: PLW2901
                    reached.add(part)
            if name is None:
                break
            following = set()
            for part in reached:
                if part < len(self._parts):
                    wanted = self._parts[part]
                    if wanted is None:
                        following.add(part)
                    elif wanted.matches(name):
                        following.add(part + 1)
            reached = following
        return len(self._parts) in reached


class IgnoreRules:
    """Rules of a ``.dockerignore``: the last matching one decides. A rule for a folder applies to everything in it.

    Args:
        text: Content of the file.

    Raises:
        InvalidRequestError: A pattern is invalid, or there are too many.
    """

    __slots__ = ("_rules",)

    def __init__(self, text: str) -> None:
        self._rules: list[tuple[bool, PathPattern]] = []
        for line in text.removeprefix("\ufeff").splitlines():
            pattern = line.strip()
            if not pattern or line.startswith("#"):
                continue
            includes = pattern.startswith("!")
            self._rules.append((includes, PathPattern(pattern.removeprefix("!").strip())))
        if len(self._rules) > MAX_PATTERNS:
            raise InvalidRequestError(f"The .dockerignore has {len(self._rules)} patterns; at most {MAX_PATTERNS} are allowed.")

    def ignores(self, path: str) -> bool:
        """Return whether a path of the context is left out."""
        names = path.split("/")
        ignored = False
        for includes, pattern in self._rules:
            if includes == ignored and any(pattern.matches(names[:depth]) for depth in range(1, len(names) + 1)):
                ignored = not includes
        return ignored


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
