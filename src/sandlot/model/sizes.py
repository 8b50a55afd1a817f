"""Sizes as people write them."""

from __future__ import annotations

import re
from typing import Final

from sandlot.model.errors import InvalidRequestError
from sandlot.model.specs import GIB, KIB, MIB

_SIZE: Final = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([KMGT]?)(?:i?B?)\s*", re.IGNORECASE)
_UNITS: Final = {"": 1, "K": KIB, "M": MIB, "G": GIB, "T": 1024 * GIB}


def parse_size(value: int | str) -> int:
    """Return a size in bytes. A number is in bytes; a text can have a unit of 1024s, such as ``512M`` or ``1.5GiB``.

    Raises:
        InvalidRequestError: The text is not a size.
    """
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value)
    if match is None:
        raise InvalidRequestError(f"{value[:64]!r} is not a size.", hint="Pass bytes, or a number with a unit, such as 512M or 1.5GiB.")
    number, unit = match[1], _UNITS[match[2].upper()]
    return int(number) * unit if number.isdigit() else int(float(number) * unit)
