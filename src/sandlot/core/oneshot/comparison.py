"""Comparison of a program's output with the expected output. Pure.

Each comparison accepts everything that the comparison above it accepts:

| comparison | accepts |
|---|---|
| exact | texts with the same characters |
| trimmed | texts that differ only in white space at the end of lines and in empty lines at the end; a line ends with LF or CR LF |
| numeric | texts with the same number of words and equal pairs of words; two numbers are equal if they differ at most by the tolerance |

Invariants:
- Every comparison is reflexive. It is symmetric except for the tolerance, which is relative to the *expected* number.
- Nothing is computed in binary floating point. Numbers are compared as they are written, with forty digits more than both have together.
- The time is proportional to the length of both texts. Numbers with very many digits would take longer, so they are compared as words.
"""

from __future__ import annotations

import decimal
import math
import re
from decimal import Decimal
from enum import StrEnum

from sandlot.model.errors import InvalidRequestError

DEFAULT_TOLERANCE = 1e-6
MOST_DIGITS = 1000
"""Largest length of a word that is compared as a number; longer words are compared as text."""

_SPARE_DIGITS = 40
"""Digits of precision beyond the digits of both numbers: more than any tolerance that a float can express."""
_BULK = 1000
"""Words that are first compared as a list. Most words are equal, and comparing lists is a hundred times as fast as comparing numbers."""
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,6})?", re.ASCII)
_BLANKS = " \t\r\n\v\f"


class Comparison(StrEnum):
    """Kind of comparison between the output and the expected output."""

    TRIMMED = "trimmed"
    EXACT = "exact"
    NUMERIC = "numeric"


def check_tolerance(tolerance: float) -> None:
    """Refuse an invalid tolerance.

    Raises:
        InvalidRequestError: The tolerance is negative or not finite.
    """
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise InvalidRequestError(f"`tolerance` is {tolerance:g}; it must be a finite number, at least 0.", fields={"field": "tolerance"})


def matches(written: str, expected: str, comparison: Comparison = Comparison.TRIMMED, tolerance: float = DEFAULT_TOLERANCE) -> bool:
    """Return whether the output of a program is the expected one.

    Args:
        written: Output of the program.
        expected: Expected output.
        comparison: Kind of comparison.
        tolerance: Largest difference of two numbers in a numeric comparison. It is relative if the expected number is above 1:
            ``abs(written - expected) <= tolerance * max(1, abs(expected))``.
    """
    if written == expected:
        return True
    match comparison:
        case Comparison.EXACT:
            return False
        case Comparison.TRIMMED:
            return trimmed(written) == trimmed(expected)
        case Comparison.NUMERIC:
            return _numeric(written, expected, tolerance)


def trimmed(text: str) -> str:
    """Return a text without white space at the end of its lines and without empty lines at its end."""
    return "\n".join(line.rstrip(_BLANKS) for line in text.split("\n")).rstrip("\n")


def _numeric(written: str, expected: str, tolerance: float) -> bool:
    ours, theirs = written.split(), expected.split()
    if len(ours) != len(theirs):
        return False
    for start in range(0, len(ours), _BULK):
        one, other = ours[start : start + _BULK], theirs[start : start + _BULK]
        if one != other and not all(word == right or _near(word, right, tolerance) for word, right in zip(one, other, strict=True)):
            return False
    return True


def _near(written: str, expected: str, tolerance: float) -> bool:
    if len(written) > MOST_DIGITS or len(expected) > MOST_DIGITS or not (_NUMBER.fullmatch(written) and _NUMBER.fullmatch(expected)):
        return False
    # Exponents have at most six digits, far below the limits of Decimal, so no operation overflows or raises.
    with decimal.localcontext(prec=len(written) + len(expected) + _SPARE_DIGITS, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN):
        number, right = Decimal(written), Decimal(expected)
        return abs(number - right) <= Decimal(repr(tolerance)) * max(Decimal(1), abs(right))
