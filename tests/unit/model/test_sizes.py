"""Sizes: numbers, and texts with units."""

from __future__ import annotations

import pytest

from sandlot.model.errors import InvalidRequestError
from sandlot.model.sizes import parse_size
from sandlot.model.specs import GIB, KIB, MIB


@pytest.mark.parametrize(
    "value,size",
    [
        (5, 5),
        ("6", 6),
        ("512M", 512 * MIB),
        ("512 MiB", 512 * MIB),
        ("1.5g", 3 * GIB // 2),
        ("2GB", 2 * GIB),
        ("7k", 7 * KIB),
        (" 1T ", 1024 * GIB),
        ("123456789012345679", 123456789012345679),
    ],
)
def test_size_is_in_bytes(value: int | str, size: int) -> None:
    assert parse_size(value) == size


@pytest.mark.parametrize("text", ["", "M", "1X", "-1M", "1 2M", "1e3", "٣", 400 * "9"])
def test_text_that_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="is not a size"):
        parse_size(text)
