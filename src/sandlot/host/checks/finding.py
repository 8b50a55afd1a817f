"""What a check found, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Part:
    """A finer finding.

    Args:
        name: What.
        ok: Whether it is there; None where it could not be looked at.
        detail: Why not, or what was found.
    """

    name: str
    ok: bool | None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Args:
        name: What; stable, for programs.
        ok: Whether it is as it should be; None where it could not be looked at.
        detail: What was found, in a line.
        fix: What to do where it is not; empty otherwise.
        required: Whether sandboxes cannot run without it.
        group: The heading that it stands under.
        parts: Finer findings.
        facts: Figures and names for programs; JSON values.
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
        """As JSON values."""
        return asdict(self)


def load(told: Mapping[str, Any]) -> Finding:
    """A finding out of what :meth:`Finding.dump` made.

    Raises:
        TypeError: It is something else.
    """
    fields = dict(told)
    fields["parts"] = tuple(Part(**part) for part in fields.get("parts", ()))
    return Finding(**fields)
