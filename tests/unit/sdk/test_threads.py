"""One client, several threads."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from sandlot.model.errors import SandlotError
from sandlot.sdk import Client


def test_threads_that_call_after_a_close_open_one_pool_of_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second pool of connections would never be closed."""
    client = Client(data_dir=tmp_path, autostart=False)
    client.close()
    opened: list[httpx.Client] = []
    honest = client.transport._connections  # noqa: SLF001 - counted

    def connections() -> httpx.Client:
        time.sleep(0.05)  # long enough for all of them to come by
        opened.append(honest())
        return opened[-1]

    monkeypatch.setattr(client.transport, "_connections", connections)

    def call(_: int) -> None:
        with pytest.raises(SandlotError):  # nobody serves that folder
            client.service.version()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(call, range(8)))
    client.close()
    assert len(opened) == 1
    assert opened[0].is_closed
