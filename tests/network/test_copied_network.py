"""Promise: with a release of runsc whose control socket was not tested, sandboxes have the same network. ``scripts/soak`` runs all other tests so."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot import Network, Sandbox
from tests.network.conftest import COPIED
from tests.support.internet import Internet, http_reply
from tests.support.localservice import LocalService
from tests.support.network_client import Client
from tests.support.onhost import members_of, network_namespaces
from tests.support.traces import settle

pytestmark = pytest.mark.parametrize("isolation", [COPIED], indirect=True, scope="module")

ADDRESS, OTHER = "23.12.0.1", "23.12.0.2"


@pytest.fixture(scope="module", autouse=True)
def servers(net: Internet) -> None:
    net.names |= {"api.example.com": [ADDRESS], "other.example.com": [OTHER]}
    net.serve((ADDRESS, 80), (OTHER, 80), reply=http_reply)


@pytest.fixture
def sandbox(service: LocalService) -> Iterator[Sandbox]:
    with service.create(network=Network("allowlist", allow=["api.example.com", f"{ADDRESS}:80"])) as made:
        yield made


def statuses(sandbox: Sandbox) -> list[int]:
    return [Client(sandbox).get(host).status for host in ("api.example.com", ADDRESS, "other.example.com", OTHER)]


def test_service_says_that_runsc_copies_the_network(service: LocalService) -> None:
    (driver,) = (each for each in service.client.service.capabilities() if each.driver == "gvisor")
    assert driver.abilities["network"].ok
    assert "copies the network" in driver.abilities["network"].reason


def test_names_and_addresses_are_decided_in_the_sandbox_and_in_its_copies(sandbox: Sandbox) -> None:
    (fork,) = sandbox.fork()
    with fork:
        assert statuses(sandbox) == statuses(fork) == [200, 200, 403, 403]
        sandbox.update(network=["other.example.com"])
        assert statuses(sandbox) == [403, 403, 200, 403]
        sandbox.hibernate()
        sandbox.resume()
        assert statuses(sandbox) == [403, 403, 200, 403]
        assert statuses(fork) == [200, 200, 403, 403]


def test_killed_service_and_its_sandboxes_leave_no_namespace_and_no_card(service: LocalService) -> None:
    cards = socket.if_nameindex()
    sandbox = service.create(network=Network("allowlist", allow=["api.example.com"]))
    own = set(members_of(service.data_dir).values())
    assert own
    service.end(signal.SIGKILL)
    service.start()
    assert statuses(sandbox) == [200, 403, 403, 403]
    assert own <= network_namespaces()
    sandbox.kill()
    settle(lambda: own & network_namespaces(), set[Path]())
    assert socket.if_nameindex() == cards
