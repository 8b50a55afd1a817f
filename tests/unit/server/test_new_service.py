"""A new service is one file of core, one file of the server, and a line each in ``Node``, ``open_service`` and ``create_app``."""

from __future__ import annotations

from dataclasses import dataclass, fields

import httpx
from fastapi import APIRouter, Request
from pydantic import BaseModel

from sandlot.core.node import Node
from sandlot.core.registry import SandboxRegistry
from sandlot.core.sandbox import SandboxLocal
from sandlot.model.access import OPERATOR, OwnerId, Principal
from sandlot.model.errors import ErrorCode, LimitError
from sandlot.server.app import create_app
from sandlot.web.dependencies import get_node, get_principal
from tests.support.http import problem
from tests.support.scripted_app import KnownKeys, local_client, scripted_service
from tests.support.scripted_node import Call, ScriptedNode
from tests.support.service import Bench


# The file of core.
class NoteService:
    """Notes on sandboxes, which end with their sandbox."""

    def __init__(self, registry: SandboxRegistry) -> None:
        self._registry = registry
        self._notes: SandboxLocal[list[str]] = SandboxLocal(lambda _: [])

    async def add(self, principal: Principal, sandbox: str, text: str) -> int:
        """Add a note to a sandbox and return the number of its notes."""
        live = self._registry.find(sandbox, principal)
        notes = self._notes.of(live)
        notes.append(text)
        return len(notes)


# The file of the server.
router = APIRouter()


class NoteBody(BaseModel):
    text: str


@router.post("/v1/sandboxes/{sandbox}/notes", status_code=201)
async def add(sandbox: str, body: NoteBody, request: Request) -> dict[str, int]:
    """Add a note to a sandbox."""
    node = get_node(request)
    assert isinstance(node, NotesNode)  # not needed for a field of Node itself
    return {"notes": await node.notes.add(get_principal(request), sandbox, body.text)}


# The lines in Node, open_service and create_app.
@dataclass(frozen=True, slots=True)
class NotesNode(Node):
    notes: NoteService


def client(node: Node, principal: Principal = OPERATOR) -> httpx.AsyncClient:
    app = create_app(scripted_service(node, keys=KnownKeys({"key": principal})))
    app.include_router(router)
    return local_client(app, headers={"X-API-Key": "key"})


async def test_scripted_operation_is_translated() -> None:
    node = ScriptedNode(NotesNode)
    node.script("notes.add", 3, LimitError("Too many notes.", code=ErrorCode.TOO_LARGE))
    async with client(node.services) as http:
        added = await http.post("/v1/sandboxes/s/notes", json={"text": "hello"})
        assert (added.status_code, added.json()) == (201, {"notes": 3})
        problem(await http.post("/v1/sandboxes/s/notes", json={"text": "hello"}), 413, "too_large")
    assert node.calls == [Call("notes.add", {"principal": OPERATOR, "sandbox": "s", "text": "hello"})] * 2
    node.check()


async def test_real_operation_finds_own_sandboxes_only(at: Bench) -> None:
    node = NotesNode(**{each.name: getattr(at.node, each.name) for each in fields(Node)}, notes=NoteService(at.service.internals.registry))
    path = f"/v1/sandboxes/{(await at.sandbox()).id}/notes"
    stranger = Principal(owner=OwnerId("0123456789ab"), name="stranger")
    async with client(node) as http, client(node, stranger) as other:
        assert [(await http.post(path, json={"text": "hello"})).json()["notes"] for _ in range(2)] == [1, 2]
        problem(await other.post(path, json={"text": "hello"}), 404, "sandbox_not_found")
