"""The service on which builds of templates are tested with the clients of vendors."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.builds import Rig, build_rig


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    """A service whose builds are recorded instead of run. Some vendors wrap the fixture."""
    async with build_rig(monkeypatch) as service:
        yield service
