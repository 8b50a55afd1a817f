"""Promise: fifty clients at once get right answers or a limit that was declared, and the service is the same afterwards as before.

``scripts/soak tests/soak/test_crowd.py`` runs this for five minutes, ``SANDLOT_SOAK_S=60`` for one; ``SANDLOT_SOAK_SEED`` makes the same
choices again.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot.sdk import Client
from tests.support.localservice import ISOLATIONS
from tests.support.soaking import crowd
from tests.support.tcpservice import TcpService
from tests.support.traces import NOTHING, settle, traces

CLIENTS = 50
KEYS = 5
SECONDS = int(os.environ.get("SANDLOT_SOAK_S", "300"))
SANDBOXES = 40
"""Fewer than clients: some are told that there is no room, and come again."""
GROWTH_BYTES = 48 << 20
"""From the first look at its memory to the last: flat, but for what an allocator does."""


@pytest.fixture
def service() -> Iterator[TcpService]:
    # Not pytest's folder, whose path may be too long for a unix socket (unix(7): 107 bytes).
    folder = Path(tempfile.mkdtemp(prefix="sandlot-soak-"))
    made = TcpService(folder, {"SANDLOT_ISOLATION_ALLOWED": ",".join(ISOLATIONS), "SANDLOT_MAX_SANDBOXES": str(SANDBOXES)})
    made.start()
    try:
        yield made
    finally:
        if made.is_alive():
            for left in made.client.sandboxes.list():  # of a test that failed: they outlive their service
                made.client.sandboxes.kill(left.id)
            settle(lambda: len(made.traces().cgroups), 0)
        made.end(signal.SIGTERM)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 900)
def test_fifty_clients_are_served(service: TcpService, capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("SANDLOT_SOAK_SEED", random.SystemRandom().randrange(1 << 32)))
    opened = service.descriptors()
    secrets = [service.client.keys.create(f"key-{number}").key for number in range(KEYS)]
    clients = [Client(url=service.url, api_key=secrets[number % KEYS]) for number in range(CLIENTS)]
    tally, seen = crowd(service, clients, seconds=SECONDS, seed=seed)
    with capsys.disabled():
        print(f"\nseed {seed}, {SECONDS} s, {sum(tally.done.values())} steps\n{tally.table()}")
        print("memory of the service in MiB:", *(size >> 20 for size in seen))
    assert tally.failures == [], f"seed {seed}\n" + "\n\n".join(tally.failures)
    assert seen[-1] - seen[0] < GROWTH_BYTES
    for client in clients:
        settle(lambda client=client: len(client.sandboxes.list()), 0)  # type: ignore[misc]
        client.close()
    settle(service.traces, NOTHING)
    settle(lambda: service.descriptors() - opened, Counter[str]())
    assert service.end() == 0, service.log()
    settle(lambda: traces(service.data_dir), NOTHING)
    assert [record for record in service.records() if record.get("level") in {"error", "critical"}] == []
