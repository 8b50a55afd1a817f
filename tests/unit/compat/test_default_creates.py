"""Every vendor's client creates a sandbox without options: the sandbox is claimed from one of the default pools."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from agentsandbox import AgentSandbox
from e2b import Sandbox as E2bSandbox
from e2b_code_interpreter import Sandbox as E2bInterpreter
from pandastack import Client as PandaStack
from tensorlake.sandbox import SandboxClient as Tensorlake

from sandlot.core.pools.models import default_pools
from sandlot.model.pools import PoolSizes, StartPath
from sandlot.sdk.compat.sandboxapi import SandboxAPI
from sandlot.server.process import serve_in_background
from sandlot.server.settings import Settings
from sandlot.web import listener
from tests.support.cases import cases
from tests.support.pools import live_pools
from tests.support.service import Bench, bench
from tests.support.until import until

POOLS = [replace(config, sizes=PoolSizes(warm=8, max=8)) for config in default_pools(0)]
"""The default pools, with a warm sandbox for each create of the tests."""


@dataclass(frozen=True)
class Pooled:
    """A service whose default pools are full, and a key for it."""

    bench: Bench
    url: str
    key: str

    def claims(self) -> dict[str, dict[StartPath, int]]:
        """The claims of the pools by template."""
        return {pool.spec.template.name: dict(pool.claims) for pool in live_pools(self.bench.node).values()}


@pytest.fixture
async def pooled(folder: Path) -> AsyncIterator[Pooled]:
    tcp = listener.tcp_socket("127.0.0.1", 0)
    async with bench(folder, Settings(pools=tuple(POOLS))) as opened, serve_in_background(opened.service, [tcp]):
        _, key = await opened.service.api_keys.create("client")
        await until(lambda: all(len(pool.ready) == pool.sizes.warm for pool in live_pools(opened.node).values()))
        yield Pooled(opened, f"http://127.0.0.1:{tcp.getsockname()[1]}", key)


def e2b(url: str, key: str) -> None:
    E2bSandbox.create(api_key=key, api_url=f"{url}/e2b", sandbox_url=f"{url}/e2b")


def e2b_code_interpreter(url: str, key: str) -> None:
    E2bInterpreter.create(api_key=key, api_url=f"{url}/e2b", sandbox_url=f"{url}/e2b")


def e2b_on_sandbase(url: str, key: str) -> None:
    E2bSandbox.create(api_key=key, api_url=f"{url}/sandbase", sandbox_url=f"{url}/sandbase")


def pandastack(url: str, key: str) -> None:
    PandaStack(api_url=f"{url}/pandastack", api_key=key, max_create_retry_seconds=0).sandboxes.create()


def agentsandbox(url: str, key: str) -> None:
    with AgentSandbox(api_key=key, base_url=f"{url}/agentsandbox") as client:
        client.sessions.create()


def sandboxapi(url: str, key: str) -> None:
    with SandboxAPI(api_key=key, base_url=f"{url}/sandboxapi") as client:
        client.sessions.create()


def tensorlake(url: str, key: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with Tensorlake(api_url=f"{url}/tensorlake", api_key=key) as client:
            client.create()


@cases(
    "create, template",
    [
        (e2b, "base"),
        (e2b_on_sandbase, "base"),
        (e2b_code_interpreter, "code-interpreter"),
        (pandastack, "code-interpreter"),
        (agentsandbox, "code-interpreter"),
        (sandboxapi, "code-interpreter"),
        (tensorlake, "code-interpreter"),
    ],
)
async def test_default_create_of_each_client_is_a_claim(create: Callable[[str, str], None], template: str, pooled: Pooled) -> None:
    before = pooled.claims()

    await asyncio.to_thread(create, pooled.url, pooled.key)

    assert pooled.claims() == before | {template: {StartPath.WARM: before[template].get(StartPath.WARM, 0) + 1}}
