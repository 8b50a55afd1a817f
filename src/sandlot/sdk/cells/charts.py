"""The data behind a chart that a cell drew, so that a program can read what a person sees.

Law: it comes from code in a sandbox. What is not of its form is left out, and nothing that it says raises.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

CHART = "application/vnd.sandlot.chart.v1+json"
"""The MIME type of a chart's data, which comes beside its image."""
SEVERAL = "superchart"


@dataclass(frozen=True, slots=True)
class Chart:
    """What a chart shows.

    Args:
        type: ``bar``, ``line``, ``scatter``, ``pie``, ``box_and_whisker``; ``superchart`` where one figure holds several; ``unknown`` for any other.
        title: Empty where it has none.
        x_label: Of the horizontal axis.
        y_label: Of the vertical axis.
        x_unit: What stands in brackets behind the label.
        y_unit: The same.
        elements: What is drawn. Lines and scatters: ``label`` and ``points`` (pairs of x and y); bars: ``label``, ``value`` and ``group``; slices:
            ``label``, ``angle`` and ``radius``; boxes: ``label``, ``min``, ``first_quartile``, ``median``, ``third_quartile``, ``max`` and
            ``outliers``.
        charts: Of a ``superchart``: each of them.
    """

    type: str
    title: str = ""
    x_label: str = ""
    y_label: str = ""
    x_unit: str = ""
    y_unit: str = ""
    elements: tuple[Mapping[str, Any], ...] = ()
    charts: tuple[Self, ...] = ()

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Read it from its JSON."""
        given = raw.get("elements")
        elements = tuple(each for each in given if isinstance(each, Mapping)) if isinstance(given, list) else ()
        kind = _word(raw, "type") or "unknown"
        several = kind == SEVERAL
        return cls(
            type=kind,
            title=_word(raw, "title"),
            x_label=_word(raw, "x_label"),
            y_label=_word(raw, "y_label"),
            x_unit=_word(raw, "x_unit"),
            y_unit=_word(raw, "y_unit"),
            elements=() if several else elements,
            charts=tuple(cls.parse(each) for each in elements) if several else (),
        )

    @classmethod
    def of(cls, text: str | None) -> Self | None:
        """Read it from the content of its MIME type; None where there is none, or none that can be read."""
        try:
            raw = json.loads(text or "null")
            return cls.parse(raw) if isinstance(raw, dict) else None
        except (ValueError, RecursionError):
            return None


def _word(raw: Mapping[str, Any], name: str) -> str:
    word = raw.get(name)
    return "" if word is None else str(word)
