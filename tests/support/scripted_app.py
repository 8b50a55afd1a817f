"""Fixtures: the HTTP app on a scripted node, and a client of it in the test's own process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from socket import socket
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from sandlot.builds.layers import LayerStore
from sandlot.builds.uploads import Uploads
from sandlot.core.node import Node
from sandlot.core.ports import SystemClock
from sandlot.core.records.events import EventFeed
from sandlot.core.records.metrics import Metrics
from sandlot.core.snapshots.manager import SnapshotManager
from sandlot.images.store import ImageStore
from sandlot.model.access import INTERNAL, OwnerId, Principal
from sandlot.model.records import SnapshotRecord
from sandlot.model.streams import Page
from sandlot.server.app import create_app
from sandlot.server.composition import RunningService
from sandlot.server.process import serve_in_background
from sandlot.server.settings import Settings
from sandlot.web import listener
from sandlot.web.auth import OWNER
from tests.support.http import unix_client
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


class _NothingToPrune:
    """Bases and results of builds, which the server prunes at its start."""

    async def prune(self, builds: object) -> None: ...


class _EmptyManager:
    """The manager of a service without sandboxes, as the server ends it."""

    def refuse(self) -> None: ...

    async def aclose(self, *, keep: bool) -> None: ...


def scripted_service(node: Node, settings: Settings | None = None, keys: KnownKeys | None = None) -> RunningService:
    """Return a service that the app and the server can serve, without store."""
    store: Any = None
    chosen = settings or Settings()
    values: dict[str, Any] = {"api_keys": keys or KnownKeys(), "events": EventFeed(store), "metrics": Metrics()}
    values |= dict.fromkeys(("store", "blobs")) | {
        "bases": _NothingToPrune(),
        "images": ImageStore(chosen.cache_dir),
        "build_results": _NothingToPrune(),
        "layers": LayerStore(chosen.layers),
    }
    values["uploads"] = Uploads(chosen.build_uploads, SystemClock(), max_bytes=chosen.upload_max_bytes)
    values["internals"] = SimpleNamespace(registry=SimpleNamespace(count=0), manager=_EmptyManager())
    return RunningService(settings=chosen, node=node, stop=asyncio.Event(), keep=False, **values)


def local_client(app: ASGIApp, headers: Mapping[str, str] | None = None) -> httpx.AsyncClient:
    """Return a client of an app in this process: the operator, or with headers a client that comes over TCP."""

    async def from_peer(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "state": {"peer": OWNER} if headers is None else {}}, receive, send)

    return httpx.AsyncClient(transport=httpx.ASGITransport(from_peer), base_url="http://sandlot", headers=headers)


class _NoCachedSteps:
    """Snapshots without cached steps of builds, which a service looks for at its start. All other calls are those of a test."""

    def __init__(self, snapshots: SnapshotManager) -> None:
        self._snapshots = snapshots

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any operation
        return getattr(self._snapshots, name)

    async def list(self, principal: Principal, **page: Any) -> Page[SnapshotRecord]:  # noqa: ANN401 - as in the real service
        return Page([], more=False) if principal == INTERNAL else await self._snapshots.list(principal, **page)


class _Idle:
    """Agents without runs and templates without builds, which a service looks for at its start. Tests of both use the real ones."""

    async def running(self) -> list[Any]:
        return []

    async def open_builds(self) -> list[Any]:
        return []

    async def ready_builds(self) -> list[Any]:
        return []

    def close(self) -> None:
        pass


@asynccontextmanager
async def serve_scripted(
    node: ScriptedNode, folder: Path, settings: Settings | None = None, listeners: Sequence[socket] = (), keys: KnownKeys | None = None
) -> AsyncIterator[RunningService]:
    """Serve a scripted node on the unix socket of the settings, as a whole service is served.

    Args:
        node: Scripted node.
        folder: Data directory.
        settings: Other settings.
        listeners: Further sockets.
        keys: API keys.
    """
    idle: Any = _Idle()
    snapshots: Any = _NoCachedSteps(node.services.snapshots)
    services = replace(node.services, agents=idle, template_builds=idle, snapshots=snapshots)
    service = scripted_service(services, replace(settings or Settings(), data_dir=folder / "data"), keys)
    service.settings.socket.parent.mkdir(parents=True)
    async with serve_in_background(service, [listener.unix_socket(service.settings.socket), *listeners]):
        yield service


@pytest.fixture
def scripted() -> Iterator[ScriptedNode]:
    """A scripted node; a call that was not scripted and a result that was not used fail the test."""
    node = ScriptedNode()
    yield node
    node.check()


@pytest.fixture
async def api(scripted: ScriptedNode) -> AsyncIterator[httpx.AsyncClient]:
    """The operator's client of an app on the scripted node. A response is complete when it arrives; :func:`served` streams."""
    async with local_client(create_app(scripted_service(scripted.services))) as client:
        yield client


@pytest.fixture
async def served(scripted: ScriptedNode, folder: Path) -> AsyncIterator[RunningService]:
    """A service with the scripted node, reachable on its unix socket."""
    async with serve_scripted(scripted, folder) as service:
        yield service


@pytest.fixture
async def local(served: RunningService) -> AsyncIterator[httpx.AsyncClient]:
    """The operator's client of the unix socket of ``served``."""
    async with unix_client(served.settings.socket) as client:
        yield client
