"""Fixtures of the preview listener."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.support.web_servers import certificate
from tests.unit.server.preview.world import World, preview_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncGenerator[World]:
    """A preview listener on loopback."""
    async with preview_world(tmp_path) as opened:
        yield opened


@pytest.fixture
async def tls_world(tmp_path: Path) -> AsyncGenerator[World]:
    """A preview listener with TLS, whose certificate is in ``tmp_path``."""
    _, file = certificate(tmp_path, "localhost")
    async with preview_world(tmp_path, preview_tls_cert=file, preview_tls_key=tmp_path / "key.pem") as opened:
        yield opened
