"""Whether what a program wrote is what it was to write. Pure: text in, verdict out.

Three ways to compare, of which each takes everything that the one before takes where no numbers are rounded:

| comparison | equal are |
|---|---|
| exact | texts of the same characters |
| trimmed | texts that differ in nothing but white space at the end of lines, and empty lines at the end; a line ends by LF or CR LF |
| numeric | texts of as many words, pair by pair equal; a pair of two numbers is equal within the tolerance |

Laws:
- Every comparison is reflexive, and symmetric but for the tolerance, which is a part of the *expected* number.
- Nothing is computed in binary floating point: numbers are compared as they are written, in forty digits more than both have.
- The time that it takes is in proportion to both texts, but for single numbers of very many digits, which are compared as words.
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
"""Of a number that is compared as one; what is longer is compared letter by letter."""

_SPARE_DIGITS = 40
"""Of the precision, beyond the digits of both numbers: so many has no tolerance that a float can spell."""
_BULK = 1000
"""Words that are compared at once first: most are equal, and lists are compared a hundred times as fast as numbers."""
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,6})?", re.ASCII)
_BLANKS = " \t\r\n\v\f"


class Comparison(StrEnum):
    """How what a program wrote is compared with what was expected."""

    TRIMMED = "trimmed"
    EXACT = "exact"
    NUMERIC = "numeric"


def check_tolerance(tolerance: float) -> None:
    """Refuse a tolerance that is none.

    Raises:
        InvalidRequestError: It is negative or not finite.
    """
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise InvalidRequestError(f"tolerance is {tolerance:g}; it must be a number from 0.", fields={"field": "tolerance"})


def matches(written: str, expected: str, comparison: Comparison = Comparison.TRIMMED, tolerance: float = DEFAULT_TOLERANCE) -> bool:
    """Whether a program wrote what it was to write.

    Args:
        written: By the program.
        expected: What it was to write.
        comparison: How the two are compared.
        tolerance: Of a numeric comparison: a number may be off by so much, or by so much of the expected one where that is above 1
            (``abs(written - expected) <= tolerance * max(1, abs(expected))``).
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
    """A text without white space at the end of its lines, and without empty lines at its end."""
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
    # Exponents have at most six digits, far from the bounds of Decimal's: nothing overflows, and nothing is trapped.
    with decimal.localcontext(prec=len(written) + len(expected) + _SPARE_DIGITS, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN):
        number, right = Decimal(written), Decimal(expected)
        return abs(number - right) <= Decimal(repr(tolerance)) * max(Decimal(1), abs(right))
