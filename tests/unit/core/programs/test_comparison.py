"""Comparisons of a program's output with the expected output."""

from __future__ import annotations

import math
import threading
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.core.programs import runner
from sandlot.core.programs.comparison import matches
from sandlot.core.programs.verdict import grade
from sandlot.model.access import OPERATOR
from sandlot.model.errors import InvalidRequestError
from sandlot.model.programs import Comparison, ProgramParams, ProgramResult, ProgramStatus, check_tolerance
from tests.support.node import NodeState, open_node


@given(one=st.text(alphabet="a1. \n\r\t"), other=st.text(alphabet="a1. \n\r\t"))
def test_laxer_comparisons_accept_what_stricter_ones_accept(one: str, other: str) -> None:
    verdicts = [matches(one, other, comparison, 0) for comparison in (Comparison.EXACT, Comparison.TRIMMED, Comparison.NUMERIC)]
    assert verdicts == sorted(verdicts)
    assert verdicts[0] == (one == other)


@pytest.mark.parametrize(
    "written, expected, exact, trimmed_",
    [
        ("a\n", "a", False, True),
        ("a\r\nb\r\n", "a\nb", False, True),
        ("a  \nb\n\n\n", "a\nb\n", False, True),
        (" a", "a", False, False),
        ("a\n\nb", "a\nb", False, False),
        ("a b", "a  b", False, False),
        ("", "\n \n", False, True),
        ("A", "a", False, False),
        ("a\u00a0", "a", False, False),  # a no-break space is a character, not white space that a terminal hides
        ("1.0", "1", False, False),
    ],
)
def test_trimmed_ignores_white_space_at_line_ends_and_exact_nothing(written: str, expected: str, exact: bool, trimmed_: bool) -> None:  # noqa: FBT001
    assert matches(written, expected, Comparison.EXACT) is exact
    assert matches(written, expected) is trimmed_


@pytest.mark.parametrize(
    "written, expected, tolerance, equal",
    [
        ("3.14159", "3.1415926535", 1e-5, True),
        ("3.14159", "3.1415926535", 1e-7, False),
        ("1000001", "1000000", 1e-6, True),  # relative, where the expected number is above 1
        ("1000002", "1000000", 1e-6, False),
        ("0.0000005", "0", 1e-6, True),
        ("0.000002", "0", 1e-6, False),
        ("1", "1.0", 0, True),
        ("+1e3", "1000", 0, True),
        ("-0", "0", 0, True),
        ("12345678901234567890123", "12345678901234567890124", 0, False),  # equal as floats
        ("0.1", "0.10000000000000000000000000001", 0, False),
        ("x=1.0 y=2", "x=1 y=2", 1, False),  # words that contain numbers are compared as text
        ("sum: 2.5000001\nmean: 3", "sum:   2.5\n\nmean: 3.0", 1e-6, True),  # line breaks do not matter
        ("1 2", "1 2 3", 9, False),
        ("", "", 0, True),
        ("1", "", 9, False),
        ("nan", "nan", 0, True),
        ("nan", "NaN", 9, False),
        ("inf", "1", 9, False),
        ("1e999999", "1", 9, False),
        ("1e999999", "1e999998", 9, True),
        ("1e-999999", "0", 0, False),
        ("1e9999999", "1e9999999.0", 1, False),  # seven digits in the exponent: compared as text
        ("1" * 2000, "1" * 1999 + "2", 1, False),
        ("\u0661", "1", 0, False),
    ],
)
def test_numeric_accepts_differences_up_to_the_tolerance(written: str, expected: str, tolerance: float, equal: bool) -> None:  # noqa: FBT001
    assert matches(written, expected, Comparison.NUMERIC, tolerance) is equal


NUMBERS = st.decimals(allow_nan=False, allow_infinity=False, places=8)


@given(number=NUMBERS, expected=NUMBERS, tolerance=st.floats(0, 10))
def test_tolerance_follows_the_formula_exactly(number: Decimal, expected: Decimal, tolerance: float) -> None:
    # Fraction(repr) on purpose: a tolerance means the number that is written.
    one, other, bound = Fraction(number), Fraction(expected), Fraction(repr(tolerance))
    assert matches(f"{number:f}", f"{expected:f}", Comparison.NUMERIC, tolerance) is (abs(one - other) <= bound * max(Fraction(1), abs(other)))


@pytest.mark.parametrize("tolerance", [-1, math.nan, math.inf])
def test_negative_or_infinite_tolerance_is_refused(tolerance: float) -> None:
    with pytest.raises(InvalidRequestError):
        check_tolerance(tolerance)


def test_equal_words_are_not_compared_as_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def near(one: str, *_: object) -> bool:
        asked.append(one)
        return True

    monkeypatch.setattr("sandlot.core.programs.comparison._are_numbers_equal", near)
    words = [str(number) for number in range(10_000)]
    assert matches(" ".join(words), "\n".join([*words[:5000], "5000.0", *words[5001:]]), Comparison.NUMERIC)
    assert asked == ["5000"]


async def test_large_output_is_graded_in_a_thread_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    def observed(*given: Any) -> ProgramResult:  # noqa: ANN401 - passed on
        threads.append(threading.current_thread().name)
        return grade(*given)

    monkeypatch.setattr(runner, "grade", observed)
    async with open_node(NodeState(tmp_path)) as node:
        params = ProgramParams("bash", "echo 1", template="base", expected_output="1" * 100_000)
        result = await node.services.programs.run(OPERATOR, params)

    assert result.status is ProgramStatus.WRONG_ANSWER
    assert threads == ["grading_0"]
