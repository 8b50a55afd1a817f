"""The document and its page, as a browser gets them."""

from __future__ import annotations

import json
import re

import httpx

from sandlot.server.app import create_app
from sandlot.server.docs_page import FILES
from tests.support.scripted_app import local_client, scripted_service
from tests.support.scripted_node import ScriptedNode


async def test_docs_page_needs_no_key(scripted: ScriptedNode) -> None:
    async with local_client(create_app(scripted_service(scripted.services)), headers={}) as http:
        assert (await http.get("/v1/version")).status_code == 401
        for path in ("/", "/openapi.json", "/docs", "/docs/start.js", *(f"/docs/{name}" for name in FILES)):
            answer = await http.get(path)
            assert answer.status_code == 200, path
            assert len(answer.content) > 100, path
            assert answer.headers["x-content-type-options"] == "nosniff", path


async def test_docs_page_loads_nothing_from_other_origins(api: httpx.AsyncClient) -> None:
    page = await api.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(loaded) == 4
    for name in loaded:
        found = await api.get(f"/{name}")
        assert found.status_code == 200, name
        # ... and none of it is run or used unless its type is what the tag expects (nosniff).
        expected = {"js": "text/javascript", "css": "text/css", "png": "image/png"}[name.rpartition(".")[2]]
        assert found.headers["content-type"].partition(";")[0] == expected
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self';")
    assert "http" not in policy
    assert "<script>" not in page.text


async def test_page_at_the_address_of_the_service_links_to_the_api(api: httpx.AsyncClient) -> None:
    page = await api.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert len(page.content) < 2000
    linked = re.findall(r'<a href="([^"]+)"', page.text)
    assert set(linked) == {"docs", "openapi.json", "healthz"}
    assert [(await api.get(f"/{name}")).status_code for name in linked] == [200, 200, 200]
    assert page.headers["content-security-policy"].startswith("default-src 'none';")


async def test_what_the_page_starts_shows_the_document(api: httpx.AsyncClient) -> None:
    start = (await api.get("/docs/start.js")).text
    (url,) = re.findall(r'url: ("[^"]+")', start)
    assert (await api.get(f"/{json.loads(url)}")).json()["info"]["title"] == "Sandlot"
    assert "isOAS31" in (await api.get("/docs/swagger-ui-bundle.js")).text, "a Swagger UI that cannot show OpenAPI 3.1"
