"""Two tenants of one service, and the routes on which one asks for what is the other's.

:func:`memory_tenants` is a service on the in-memory driver. Its guests have the programs that routes of files and packages start.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
from fastapi.routing import APIWebSocketRoute, iter_route_contexts
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from sandlot.link.payload import program_argv
from sandlot.protocol import values
from sandlot.protocol.schema import STDERR
from sandlot.server.app import create_routes
from sandlot.server.composition import RunningService
from sandlot.server.process import serve_in_background
from sandlot.server.settings import Settings
from sandlot.testing.memory.driver import MemoryDriver
from sandlot.testing.memory.guest import PortConnection
from sandlot.testing.memory.process import ProgramContext
from sandlot.web import listener
from tests.support.scripted_model.endpoint import scripted_model
from tests.support.scripted_model.steps import Call, Conversation, Say, Step
from tests.support.service import serving

MODEL = "large"
"""Model of the agents of :func:`memory_tenants`, which looks at an image."""
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PORT = 7000
"""A port on which a program listens in every sandbox of :func:`memory_tenants`."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What makes a request to a route a right one.

    Args:
        json: Its body.
        content: Its body, where it is no JSON.
        query: Its query.
        last: Whether what it is about is gone afterwards.
    """

    json: Any = None
    content: bytes | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    last: bool = False


@dataclass
class Two:
    """Two keys of one service, and who asks with them."""

    owner: httpx.AsyncClient
    stranger: httpx.AsyncClient
    port: int


@asynccontextmanager
async def tenants(service: RunningService) -> AsyncIterator[Two]:
    """Two of a service, over TCP."""
    tcp = listener.tcp_socket("127.0.0.1", 0)
    port = tcp.getsockname()[1]
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(serve_in_background(service, [tcp]))
        secrets = [(await service.api_keys.create(name))[1] for name in ("owner", "stranger")]
        owner, stranger = [
            await stack.enter_async_context(
                httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {secret}"}, timeout=60)
            )
            for secret in secrets
        ]
        yield Two(owner, stranger, port)


@asynccontextmanager
async def memory_tenants(folder: Path) -> AsyncIterator[Two]:
    """Two tenants of a service on the in-memory driver, whose sandboxes have all capabilities.

    Args:
        folder: The service's data.
    """
    driver = MemoryDriver()
    driver.scripts.programs[program_argv("")[0]] = _guest_program
    driver.scripts.ports[PORT] = _silent
    with scripted_model(_look_at_an_image) as endpoint:
        models = folder / "models.toml"
        models.write_text(f'[models.{MODEL}]\nkind = "openai-chat"\nbase_url = "{endpoint.openai_url}"\napi_key = "k"\n')
        async with serving(folder, driver, Settings(agent_models=models)) as service, tenants(service) as two:
            yield two
    assert driver.leftovers() == []


async def agent_session(owner: httpx.AsyncClient) -> dict[str, str]:
    """Ids of a new agent, of a session with it, and of a file of the session."""
    agent = (await owner.post("/v1/agents", json={"name": "a", "model": MODEL, "tools": [{"type": "mcp", "server": "code-exec"}]})).json()["id"]
    session = (await owner.post("/v1/agent-sessions", json={"agent": agent, "environment": {"template": "base"}})).json()["id"]
    base = f"/sandbase/v1/sessions/{session}"
    (await owner.post(f"{base}/events", json={"type": "message", "content": "Look"})).raise_for_status()
    return {"agent": agent, "session": session, "file": (await owner.get(f"{base}/files")).json()["data"][0]["id"]}


def _look_at_an_image(conversation: Conversation) -> Step:
    match len(conversation.results):
        case 0:
            write = f"import base64\nopen('/tmp/a.png', 'wb').write(base64.b64decode('{PNG}'))"
            return Call("run_code", {"code": write})
        case 1:
            return Call("read_file", {"path": "/tmp/a.png"})
        case _:
            return Say("A black pixel.")


async def _guest_program(context: ProgramContext) -> None:
    """A program of ``guest/helpers``: one that watches goes on until its input ends, any other succeeds at once."""

    async def tell(message: dict[str, Any]) -> None:
        await context.write(values.encode_message(message), STDERR)

    assert context.stdin is not None
    await context.stdin.read()  # the request
    if ".watch " in context.argv[-1]:
        await tell({"by": "inotify"})
        await context.read_all()
    elif ".unpack " in context.argv[-1]:
        await context.read_all()
    await tell({"result": {}})


async def _silent(connection: PortConnection) -> None:
    """A program that listens and says nothing."""
    while await connection.read():
        pass


def all_routes() -> Iterable[tuple[str, str]]:
    """Methods (WEBSOCKET is one) and paths."""
    for context in iter_route_contexts(create_routes().routes):
        socket = isinstance(context.original_route, APIWebSocketRoute)
        methods = {"WEBSOCKET"} if socket else set(getattr(context.original_route, "methods", None) or ()) - {"HEAD", "OPTIONS"}
        yield from ((method, str(context.path)) for method in methods)


def named(text: str, ids: Mapping[str, str]) -> str:
    """A text with the ids for their names: ``{name}`` is one, and ``"#{name}"`` in JSON one that is a number."""
    return re.sub(r"{(\w+)}", lambda found: ids[found[1]], re.sub(r'"#{(\w+)}"', lambda found: ids[found[1]], text))


async def status(
    two: Two, who: httpx.AsyncClient, route: str, asked: Asked, ids: Mapping[str, str], headers: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """What somebody is answered: status and, of a failure, its body.

    Args:
        two: The service.
        who: One of its clients.
        route: Method and path, with names for ids.
        asked: What makes it a right one.
        ids: By their names.
        headers: More of them.
    """
    method, _, path = route.partition(" ")
    url = named(path, ids)
    if method == "WEBSOCKET":
        try:
            told = {"Authorization": who.headers["Authorization"], **(headers or {})}
            query = urlencode({name: named(value, ids) for name, value in asked.query.items()})
            async with connect(f"ws://127.0.0.1:{two.port}{url}{'?' if query else ''}{query}", additional_headers=told):
                return 101, ""
        except InvalidStatus as refused:
            return refused.response.status_code, ""
    content = asked.content if asked.json is None else named(json.dumps(asked.json), ids).encode()
    kind = {} if asked.json is None else {"Content-Type": "application/json"}
    async with who.stream(method, url, content=content, params=dict(asked.query), headers=kind | dict(headers or {})) as answer:
        return answer.status_code, "" if answer.is_success else (await answer.aread()).decode()


SILENT = "import socket, time; made = socket.create_server(('127.0.0.1', 0)); print(made.getsockname()[1], flush=True); time.sleep(600)"


async def listening(owner: httpx.AsyncClient, sandbox: str, code: str = SILENT) -> str:
    """A port of a sandbox on which something listens.

    Args:
        owner: Whose it is.
        sandbox: Its address.
        code: What listens, in Python; it prints its port first.
    """
    ran = (await owner.post(f"{sandbox}/processes", json={"argv": ["python3", "-c", code], "background": True})).json()
    told_as = {"Accept": "application/x-ndjson"}
    async with owner.stream("GET", f"{sandbox}/processes/{ran['id']}/output", params={"follow": "true"}, headers=told_as) as answer:
        async for line in answer.aiter_lines():
            told = json.loads(line)
            if told["event"] == "output":
                return str(told["data"]["data"]).strip()
    raise AssertionError("it does not listen")
