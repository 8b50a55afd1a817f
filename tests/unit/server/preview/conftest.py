"""Fixtures of the preview listener."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.unit.server.preview.world import World, preview_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncGenerator[World]:
    """A preview listener on loopback."""
    async with preview_world(tmp_path) as opened:
        yield opened
