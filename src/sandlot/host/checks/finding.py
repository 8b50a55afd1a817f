"""Findings: the results of checks of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Part:
    """Result for one of several things that a check examined, for example one kind of namespace.

    Args:
        name: Name of the examined thing.
        ok: True if the thing is available or sufficient, False if not. None if this could not be checked.
        detail: Result in one line, or the reason why ``ok`` is not True.
    """

    name: str
    ok: bool | None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check.

    Args:
        name: Name of the check. Programs may rely on the name.
        ok: True if the check passed, False if it failed. None if the check could not run.
        detail: Result in one line, for people.
        fix: Action that makes the check pass; empty if there is nothing to do.
        required: True if sandboxes cannot run unless the check passes.
        group: Heading under which ``sandlot doctor`` prints the finding.
        parts: One result for each thing that the check examined, such as each kind of namespace. Empty if the check has no such separate results.
        facts: Results for programs: name -> JSON value.
    """

    name: str
    ok: bool | None
    detail: str
    fix: str = ""
    required: bool = True
    group: str = ""
    parts: tuple[Part, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def dump(self) -> dict[str, Any]:
        """Return the fields of the finding as a JSON object, which :func:`load` parses."""
        return asdict(self)


def load(values: Mapping[str, Any]) -> Finding:
    """Create a finding from the values that :meth:`Finding.dump` returned.

    Raises:
        TypeError: A field is missing or unknown.
    """
    fields = dict(values)
    fields["parts"] = tuple(Part(**part) for part in fields.get("parts", ()))
    return Finding(**fields)
