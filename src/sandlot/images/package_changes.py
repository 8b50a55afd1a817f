"""Differences between the packages of two trees."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sandlot.images.packages import Package


@dataclass(frozen=True, slots=True)
class PackageChange:
    """A package that differs between two trees.

    Args:
        kind: ``deb``, ``pypi`` or ``npm``.
        name: Name of the package.
        old: Versions in the first tree, separated by commas; empty: none.
        new: Versions in the second tree.
    """

    kind: str
    name: str
    old: str
    new: str


def changes(old: Iterable[Package], new: Iterable[Package]) -> list[PackageChange]:
    """Return the packages that were added, removed or have other versions, sorted. Pure."""
    versions: tuple[dict[tuple[str, str], list[str]], ...] = ({}, {})
    for found, packages in zip(versions, (old, new), strict=True):
        for kind, name, version in packages:
            found.setdefault((kind, name), []).append(version)
    before, after = ({key: ", ".join(sorted(each)) for key, each in found.items()} for found in versions)
    differing = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    return [PackageChange(*key, before.get(key, ""), after.get(key, "")) for key in differing]
