"""Fixtures: the HTTP app on a scripted node, and a client of it in the test's own process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from sandlot.core.node import Node
from sandlot.core.records.metrics import Metrics
from sandlot.model.access import OwnerId, Principal
from sandlot.server.app import create_app
from sandlot.server.compose import Service
from sandlot.server.settings import Settings
from sandlot.web.auth import OWNER
from tests.support.scripted_node import ScriptedNode


class KnownKeys:
    """API keys that nobody revokes.

    Args:
        principals: Secret -> principal.
    """

    def __init__(self, principals: Mapping[str, Principal] | None = None) -> None:
        self.principals = dict(principals or {})

    def verify(self, secret: str) -> Principal | None:
        """Return the principal of a key."""
        return self.principals.get(secret)

    def working_for(self, owner: OwnerId) -> AbstractContextManager[None]:  # noqa: ARG002 - a keyring
        """Return a context that never ends early."""
        return nullcontext()


def scripted_service(node: Node, settings: Settings | None = None, keys: KnownKeys | None = None) -> Service:
    """Return a service that the app and the server can serve, without store."""
    values: dict[str, Any] = {"api_keys": keys or KnownKeys(), "store": None, "blobs": None}
    return Service(settings=settings or Settings(), node=node, stop=asyncio.Event(), keep=False, **values)


def local_client(app: ASGIApp, headers: Mapping[str, str] | None = None) -> httpx.AsyncClient:
    """Return a client of an app in this process: the operator, or with headers a client that comes over TCP."""

    async def from_peer(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "state": {"peer": OWNER} if headers is None else {}}, receive, send)

    return httpx.AsyncClient(transport=httpx.ASGITransport(from_peer), base_url="http://sandlot", headers=headers)


@pytest.fixture
def scripted() -> Iterator[ScriptedNode]:
    """A scripted node; a call that was not scripted and a result that was not used fail the test."""
    node = ScriptedNode(metrics=Metrics())
    yield node
    node.check()


@pytest.fixture
async def api(scripted: ScriptedNode) -> AsyncIterator[httpx.AsyncClient]:
    """The operator's client of an app on the scripted node. A response is complete when it arrives; for streams use ``served``."""
    async with local_client(create_app(scripted_service(scripted.services))) as client:
        yield client
