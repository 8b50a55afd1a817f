"""Fixtures of the command line's unit tests."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.unit.sdk.conftest import service
from tests.unit.sdk.scripted import Script

__all__ = ["service"]


@pytest.fixture
def there(service: Script, monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    """The scripted service as the one that commands ask. Signals are as before in the end: ``run_until_signal`` changes what they do."""
    monkeypatch.setenv("SANDLOT_URL", service.url)
    monkeypatch.delenv("SANDLOT_API_KEY", raising=False)
    before = signal.getsignal(signal.SIGTTIN)
    yield service
    signal.signal(signal.SIGTTIN, before)
