"""A network namespace with the card and the NAT table of a container. Needs root. Nothing of it exists on the host or stays."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sandlot.drivers.oci.container.plan import CARD, NETWORK_SETTINGS
from sandlot.host.nat_table import nat_table
from sandlot.host.stage.network import card, private_network
from sandlot.protocol.schema import NETWORK_ADDRESS

_T = TypeVar("_T")


def in_sandbox_network(work: Callable[[], _T]) -> _T:
    """Run a function in a new thread with a new network namespace, which ends with the thread and the sockets of the function."""

    def run() -> _T:
        private_network(tuple(NETWORK_SETTINGS.items()))
        card(CARD, NETWORK_ADDRESS, nat_table())
        return work()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()
