"""A sandbox that runs, by its address."""

from __future__ import annotations

import pytest

from tests.support.service import Bench


@pytest.fixture
async def url(at: Bench) -> str:
    """The address of a sandbox that runs."""
    return f"/v1/sandboxes/{(await at.sandbox()).id}"
