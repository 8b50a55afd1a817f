"""Facts about the service: version, capabilities and capacity."""

from __future__ import annotations

import os

from sandlot import __version__
from sandlot.model.access import OPERATOR
from sandlot.model.ports import DriverCapability
from sandlot.model.sandboxes import CreateSandboxParams
from tests.support.node import MemoryNode


async def test_info_names_the_service_and_counts_its_sandboxes(node: MemoryNode) -> None:
    await node.sandboxes.create(OPERATOR, CreateSandboxParams(template="base"))
    info = node.services.service.info()
    assert (info.version, info.node, info.pid, info.sandboxes) == (__version__, node.services.id, os.getpid(), 1)
    assert (await node.services.service.capacity(OPERATOR)).sandboxes == 1
    assert info.max_sandboxes == node.service.settings.max_sandboxes


async def test_capabilities_are_those_of_every_driver(node: MemoryNode) -> None:
    (found,) = await node.services.service.capabilities()
    assert found.driver == node.driver.name
    assert found.can(DriverCapability.BOOT)
