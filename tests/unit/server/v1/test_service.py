"""The service itself over HTTP: who it is, what it can do, and its end."""

from __future__ import annotations

import os

import httpx

from sandlot import __version__
from sandlot.model.service import ServiceInfo
from tests.support.scripted_node import ScriptedNode
from tests.support.service import Bench


async def test_who_it_is(scripted: ScriptedNode, api: httpx.AsyncClient) -> None:
    assert (await api.get("/healthz")).json() == {"status": "ok", "version": __version__}
    info = ServiceInfo(version="1.2.3", generation=4, node=scripted.services.id, pid=567, max_sandboxes=8, sandboxes=9)
    scripted.script("service.info", info)
    assert (await api.get("/v1/version")).json() == {"version": "1.2.3", "generation": 4, "node": scripted.services.id, "pid": 567}


async def test_what_there_is(http: httpx.AsyncClient) -> None:
    (driver,) = (await http.get("/v1/capabilities")).json()["drivers"]
    assert driver["driver"] == "gvisor"
    assert driver["abilities"]["boot"] == {"ok": True, "reason": ""}


async def test_its_owner_can_stop_it(at: Bench, http: httpx.AsyncClient) -> None:
    await at.sandbox()
    response = await http.post("/v1/service/stop")
    assert (response.status_code, response.json()) == (202, {"pid": os.getpid(), "sandboxes": 1})
    assert at.service.stop.is_set()
