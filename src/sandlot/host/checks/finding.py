"""Findings: results of checks, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Part:
    """Part of a finding.

    Args:
        name: Name of the part.
        ok: True if the part is available. None: it could not be checked.
        detail: Details of the part, or the reason why it is missing.
    """

    name: str
    ok: bool | None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check.

    Args:
        name: Name of the check; stable, for programs.
        ok: True if the result is good; None if the check could not run.
        detail: Result in one line.
        fix: Action if the result is bad; empty otherwise.
        required: True if sandboxes cannot run without a good result.
        group: Heading under which the finding is printed.
        parts: Parts of the finding.
        facts: Numbers and names for programs, as JSON values.
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
        """Return the finding as JSON values."""
        return asdict(self)


def load(values: Mapping[str, Any]) -> Finding:
    """Return the finding from the output of :meth:`Finding.dump`.

    Raises:
        TypeError: The values have another form.
    """
    fields = dict(values)
    fields["parts"] = tuple(Part(**part) for part in fields.get("parts", ()))
    return Finding(**fields)
