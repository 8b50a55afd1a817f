"""Comparison of a program's output with the expected output. Pure functions.

Invariants:
- Every comparison is reflexive. It is also symmetric, except for the tolerance, which is relative to the *expected* number.
- Nothing is computed in binary floating point. Numbers are compared as decimals, with forty digits more than both numbers have together.
- The time is proportional to the length of both texts. Numbers with very many digits would take longer, so they are compared as words.
"""

from __future__ import annotations

import decimal
import re
from decimal import Decimal

from sandlot.model.programs import DEFAULT_TOLERANCE, Comparison

MAX_NUMBER_CHARS = 1000
"""Largest length of a word that is compared as a number; longer words are compared as text."""

_SPARE_DIGITS = 40
"""Digits of precision that are added to the digits of both numbers; more digits than any tolerance that a float can express."""
_WORDS_AT_ONCE = 1000
"""Number of words that are first compared as lists. Most words are equal, and comparing lists is a hundred times as fast as comparing numbers."""
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,6})?", re.ASCII)
_WHITE_SPACE = " \t\r\n\v\f"


def matches(output: str, expected: str, comparison: Comparison = Comparison.TRIMMED, tolerance: float = DEFAULT_TOLERANCE) -> bool:
    """Return whether the output of a program is the expected output.

    Args:
        output: Output of the program.
        expected: Expected output.
        comparison: Kind of comparison.
        tolerance: Largest difference of two numbers in a numeric comparison, relative if the absolute value of the expected number is above 1:
            ``abs(number - expected) <= tolerance * max(1, abs(expected))``.
    """
    if output == expected:
        return True
    match comparison:
        case Comparison.EXACT:
            return False
        case Comparison.TRIMMED:
            return _trimmed(output) == _trimmed(expected)
        case Comparison.NUMERIC:
            return _are_words_equal(output.split(), expected.split(), tolerance)


def _trimmed(text: str) -> str:
    """Return a text without white space at the end of its lines and without empty lines at its end."""
    return "\n".join(line.rstrip(_WHITE_SPACE) for line in text.split("\n")).rstrip("\n")


def _are_words_equal(output: list[str], expected: list[str], tolerance: float) -> bool:
    if len(output) != len(expected):
        return False
    for start in range(0, len(output), _WORDS_AT_ONCE):
        end = start + _WORDS_AT_ONCE
        if output[start:end] != expected[start:end]:
            pairs = zip(output[start:end], expected[start:end], strict=True)
            if not all(word == expected_word or _are_numbers_equal(word, expected_word, tolerance) for word, expected_word in pairs):
                return False
    return True


def _are_numbers_equal(output: str, expected: str, tolerance: float) -> bool:
    if max(len(output), len(expected)) > MAX_NUMBER_CHARS or not (_NUMBER.fullmatch(output) and _NUMBER.fullmatch(expected)):
        return False
    # Exponents have at most six digits, far below the limits of Decimal, so no operation overflows or raises.
    with decimal.localcontext(prec=len(output) + len(expected) + _SPARE_DIGITS, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN):
        number, expected_number = Decimal(output), Decimal(expected)
        return abs(number - expected_number) <= Decimal(repr(tolerance)) * max(Decimal(1), abs(expected_number))
