"""The app as a whole: every route is described, and every failure of every route has one shape."""

from __future__ import annotations

import re
from collections import defaultdict

import httpx

from sandlot.model.access import OPERATOR
from sandlot.server.app import route_table
from tests.support.scripted_node import ScriptedNode
from tests.support.service import Bench


async def test_the_description_is_complete(api: httpx.AsyncClient) -> None:
    described = (await api.get("/openapi.json")).json()
    operations = [(path, method, what) for path, methods in described["paths"].items() for method, what in methods.items()]
    assert len(operations) > 20
    for path, method, what in operations:
        assert what["summary"], (path, method)
        assert what["description"], (path, method)
        assert "4XX" in what["responses"], (path, method)
        assert any(status.startswith(("1", "2")) for status in what["responses"]), (path, method)


async def test_every_route_refuses_invalid_requests_with_one_error_format(at: Bench, http: httpx.AsyncClient) -> None:
    box = (await at.sandbox()).id
    for path, methods in (await http.get("/openapi.json")).json()["paths"].items():
        url = re.sub(r"\{process\}", "0" * 32, path.replace("{sandbox}", box))
        for method in methods:
            if path in {"/v1/service/stop", "/v1/sandboxes/{sandbox}"}:
                continue
            response = await http.request(method, url, content=b"\xff{", headers={"Content-Type": "application/json"}, params={"path": "x"})
            assert response.status_code < 500 or response.json()["code"] == "unsupported", (method, path, response.text)
            if response.status_code >= 400:
                assert response.headers["content-type"] == "application/problem+json"
                assert response.json()["detail"]
    assert (await http.get(f"/v1/sandboxes/{box}")).json()["state"] == "running"


async def test_unused_ways_to_describe_it_are_off(api: httpx.AsyncClient) -> None:
    assert (await api.get("/redoc")).status_code == 404


async def test_wrong_method_gets_all_methods_of_the_path_in_every_api(scripted: ScriptedNode, api: httpx.AsyncClient) -> None:
    scripted.script("tokens.principal_of_url", OPERATOR)
    methods: defaultdict[str, set[str]] = defaultdict(set)
    for entry in route_table():
        methods[re.sub(r"{\w+(:path)?}", "x", entry.path)] |= entry.methods
    assert {"GET", "PATCH", "DELETE"} <= methods["/v1/sandboxes/x"]
    for path, expected in methods.items():
        response = await api.request("TRACE", path)
        allowed = response.headers.get("allow", "").split(", ")
        assert (response.status_code, set(allowed) >= expected) == (405, True), (path, allowed)
        assert ", ".join(allowed) in response.text, "the hint has them too"


async def test_wrong_method_gets_the_methods_that_work(api: httpx.AsyncClient) -> None:
    response = await api.put("/v1/sandboxes/x")
    assert (response.status_code, response.headers["allow"]) == (405, "GET, PATCH, DELETE")
    assert (response.json()["status"], response.json()["code"]) == (405, "invalid_request")
