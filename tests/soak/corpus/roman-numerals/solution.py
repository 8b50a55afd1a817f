"""Print numbers as Roman numerals."""

import sys

NUMERALS = (
    (1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1),
    ("M", "CM", "D", "CD", "C", "XC", "L", "XL", "X", "IX", "V", "IV", "I"),
)


def roman(number):
    text = ""
    for value, numeral in zip(*NUMERALS, strict=True):
        count, number = divmod(number, value)
        text += numeral * count
    return text


print("\n".join(roman(int(line)) for line in sys.stdin.read().splitlines()))
