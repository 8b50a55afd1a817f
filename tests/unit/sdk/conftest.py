"""Fixtures of the SDK's unit tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.sdk.scripted import Script, Server


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Script]:
    """A scripted service on a socket of its own."""
    script = Script(tmp_path / "s.sock")
    with Server(script) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield script
        server.shutdown()
        thread.join()
