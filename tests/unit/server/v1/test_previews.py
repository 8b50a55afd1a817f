"""Preview URLs over HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import UTC, datetime

import httpx
import pytest

from sandlot.model.access import OPERATOR
from sandlot.model.errors import ErrorCode, NotFoundError
from sandlot.model.previews import DEFAULT_PREVIEW_LIFETIME_S, PreviewToken
from sandlot.model.sandboxes import ListeningPort
from sandlot.server.app import create_app
from sandlot.web.preview_urls import PreviewAddress
from tests.support.http import problem
from tests.support.scripted_app import local_client, scripted_service
from tests.support.scripted_node import Call, ScriptedNode

ID = "sb-node-aaaaaaaaaaaaaaaa"
PORTS = f"/v1/sandboxes/{ID}/ports"
TOKEN = PreviewToken(f"8000-{ID}.local.1.x", datetime(2026, 1, 2, tzinfo=UTC), public=False)


class Previews:
    """A service with an address for previews."""

    is_enabled = True

    async def require_address(self) -> PreviewAddress:
        """Return the address."""
        return PreviewAddress("http", "localhost", 8081)


@pytest.fixture
async def previewing(scripted: ScriptedNode) -> AsyncGenerator[httpx.AsyncClient]:
    """Client of a service that serves previews."""
    async with local_client(create_app(scripted_service(scripted.services), preview_addresses=Previews())) as http:
        yield http


@pytest.mark.parametrize("body, lifetime_s", [(None, DEFAULT_PREVIEW_LIFETIME_S), ({"expires_in": 60}, 60)])
async def test_url_has_both_forms_and_the_token(
    scripted: ScriptedNode, previewing: httpx.AsyncClient, body: dict[str, int] | None, lifetime_s: float
) -> None:
    scripted.script("previews.sign", TOKEN)
    response = await previewing.post(f"{PORTS}/8000/url", json=body)
    assert response.json() == {
        "url": f"http://8000-{ID}.localhost:8081/?sandlot_token={TOKEN.value}",
        "path_url": f"http://localhost:8081/p/{TOKEN.value}/",
        "host": f"8000-{ID}.localhost:8081",
        "token": TOKEN.value,
        "public": False,
        "expires_at": "2026-01-02T00:00:00Z",
    }
    assert scripted.calls[-1] == Call("previews.sign", {"principal": OPERATOR, "sandbox": ID, "port": 8000, "lifetime_s": lifetime_s})


async def test_url_of_a_public_port_has_no_token(scripted: ScriptedNode, previewing: httpx.AsyncClient) -> None:
    scripted.script("previews.sign", PreviewToken(TOKEN.value, TOKEN.expires_at, public=True))
    response = await previewing.post(f"{PORTS}/8000/url")
    assert (response.json()["url"], response.json()["public"]) == (f"http://8000-{ID}.localhost:8081/", True)


async def test_listening_ports_have_their_urls(scripted: ScriptedNode, previewing: httpx.AsyncClient) -> None:
    scripted.script("sandboxes.ports", [ListeningPort(8000, "::1")])
    scripted.script("previews.sign", TOKEN)
    response = await previewing.get(PORTS)
    assert response.json() == {"ports": [{"port": 8000, "address": "::1", "url": f"http://8000-{ID}.localhost:8081/?sandlot_token={TOKEN.value}"}]}


async def test_service_without_previews_says_how_to_enable_them(scripted: ScriptedNode, api: httpx.AsyncClient) -> None:
    scripted.script("previews.sign", TOKEN)
    response = await api.post(f"{PORTS}/8000/url")
    assert "--preview-port" in problem(response, 501, "unsupported")["hint"]
    scripted.script("sandboxes.ports", [ListeningPort(8000, "::1")])
    assert (await api.get(PORTS)).json() == {"ports": [{"port": 8000, "address": "::1", "url": None}]}


async def test_errors_of_the_node_are_passed_on(scripted: ScriptedNode, previewing: httpx.AsyncClient) -> None:
    scripted.script("previews.sign", NotFoundError("no such sandbox", code=ErrorCode.SANDBOX_NOT_FOUND))
    assert (await previewing.post(f"{PORTS}/8000/url")).status_code == 404
    assert (await previewing.post(f"{PORTS}/x/url")).status_code == 400
