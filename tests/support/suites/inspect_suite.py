"""inspect_ai's suite of sandboxes; run in an environment of tests/environments."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest
from inspect_ai.util import SandboxEnvironment
from inspect_ai.util._sandbox.self_check import *  # noqa: F403 - as the suite wants it

from sandlot.agents.inspect import SandlotSandboxEnvironment


@pytest.fixture
async def sandbox_env() -> AsyncIterator[SandboxEnvironment]:
    environments = await SandlotSandboxEnvironment.sample_init("suite", os.environ["SUITE_TEMPLATE"], {})
    yield environments["default"]
    await SandlotSandboxEnvironment.sample_cleanup("suite", None, environments, False)
