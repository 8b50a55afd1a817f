"""What tests ask of Tensorlake's client again and again."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from tensorlake.sandbox import RemoteAPIError

MIB = 1 << 20


def status(refused: Callable[[], object]) -> int:
    """The status that its client was refused with."""
    with pytest.raises(RemoteAPIError) as told:
        refused()
    return int(told.value.status_code)


def until_so(happened: Callable[[], bool]) -> None:
    """Return once something has happened."""
    for _ in range(600):
        if happened():
            return
        time.sleep(0.05)
    raise AssertionError("it never happened")
