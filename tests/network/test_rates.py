"""Promise: ``SANDLOT_NETWORK_MBIT`` limits what a sandbox sends and receives, for each sandbox separately."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from sandlot import Network, Sandbox
from sandlot.egress.gateway.rate import BURST_S
from tests.support.internet import Internet
from tests.support.localservice import LocalService

ADDRESS, PORT, SIZE = "23.6.0.1", 5000, 512 * 1024
MBIT = 8
BYTES_PER_S = MBIT * 125_000
ECHO = f"""
import socket, threading
with socket.create_connection(("echo.example.com", {PORT})) as connection:
    threading.Thread(target=lambda: (connection.sendall(bytes({SIZE - 1}) + b"\\n")), daemon=True).start()
    left = {SIZE}
    while left:
        piece = connection.recv(65536)
        assert piece, "the connection has ended early"
        left -= len(piece)
"""
"""Sends ``SIZE`` bytes and receives as many."""

pytestmark = pytest.mark.parametrize("isolation", ["gvisor"], indirect=True, scope="module")


@pytest.fixture(scope="module")
def settings() -> dict[str, str]:
    return {"SANDLOT_NETWORK_MBIT": str(MBIT)}


def transfer(sandbox: Sandbox) -> float:
    """Send and receive ``SIZE`` bytes, and return the seconds of the whole transfer."""
    began_s = time.monotonic()
    sandbox.commands.run(["python3", "-c", ECHO]).check()
    return time.monotonic() - began_s


def test_both_directions_of_all_connections_of_a_sandbox_share_the_rate(service: LocalService, net: Internet) -> None:
    net.names["echo.example.com"] = [ADDRESS]
    net.serve((ADDRESS, PORT), reply=lambda data: bytes(len(data)) if data.endswith(b"\n") else None)
    with service.create(network=Network("allowlist", allow=[f"echo.example.com:{PORT}"])) as sandbox:
        began_s = time.monotonic()
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(transfer, [sandbox] * 2))
        took_s = time.monotonic() - began_s
        activity = sandbox.network.info()
        assert (activity.sent_bytes, activity.received_bytes) == (2 * SIZE, 2 * SIZE)
        # A lower bound, which no slow machine misses: a bucket lets no byte pass before its time.
        assert BYTES_PER_S * (took_s + BURST_S) >= 4 * SIZE
