"""Every vendor's client creates a sandbox without options: the sandbox is claimed from one of the default pools."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from agentsandbox import AgentSandbox
from e2b import Sandbox as E2bSandbox
from e2b_code_interpreter import Sandbox as E2bInterpreter
from pandastack import Client as PandaStack
from tensorlake.sandbox import SandboxClient as Tensorlake

from sandlot.core.pools.models import default_pools
from sandlot.model.pools import StartPath
from sandlot.sdk.compat.sandboxapi import SandboxAPI
from sandlot.server.process import serve_in_background
from sandlot.server.settings import Settings
from sandlot.web import listener
from tests.support.cases import cases
from tests.support.pools import live_pools
from tests.support.service import Bench, bench
from tests.support.until import until

SMALL_NODE = default_pools(0)


@pytest.fixture
async def pooled(folder: Path) -> AsyncIterator[Bench]:
    """A service whose default pools are full."""
    async with bench(folder, Settings(pools=SMALL_NODE)) as opened:
        await until(lambda: all(pool.ready for pool in live_pools(opened.node).values()))
        yield opened


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
async def test_default_create_of_each_client_is_a_claim(create: Callable[[str, str], None], template: str, pooled: Bench) -> None:
    _, key = await pooled.service.api_keys.create("client")
    tcp = listener.tcp_socket("127.0.0.1", 0)
    async with serve_in_background(pooled.service, [tcp]):
        await asyncio.to_thread(create, f"http://127.0.0.1:{tcp.getsockname()[1]}", key)

    claims = {pool.spec.template.name: pool.claims for pool in live_pools(pooled.node).values()}
    assert claims == {"base": {}, "code-interpreter": {}} | {template: {StartPath.WARM: 1}}
