"""Headless Chromium, as the tests in tests/browser use it."""

from __future__ import annotations

from tests.browser.conftest import browser, profile

__all__ = ["browser", "profile"]
