"""Headless Chromium, and a local service, which opens its preview listener on demand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.service.conftest import service
from tests.support.chromium import Browser, Profile, chromium

__all__ = ["browser", "profile", "service"]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture
def profile(browser: Browser) -> Iterator[Profile]:
    with browser.profile() as opened:
        yield opened
