"""The garbage of one test."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collected() -> Iterator[None]:
    """Collect the garbage of the block, so that its warnings appear in no later test. Older objects are left out: they take half a second."""
    gc.freeze()
    yield
    gc.collect()
