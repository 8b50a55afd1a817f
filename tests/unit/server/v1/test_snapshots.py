"""Snapshots over HTTP, as far as that needs none: what is not there, what makes no sense. Those that there are: tests/service/test_saved.py."""

from __future__ import annotations

import httpx

from tests.support.cases import cases
from tests.support.http import problem
from tests.support.service import Bench


async def test_none_is_an_empty_page(http: httpx.AsyncClient) -> None:
    assert (await http.get("/v1/snapshots")).json() == {"snapshots": [], "next_cursor": None}
    problem(await http.get("/v1/snapshots?limit=0"), 400, "invalid_request")
    problem(await http.get("/v1/snapshots?cursor=AAA"), 400, "invalid_request")
    problem(await http.get("/v1/snapshots?name=x"), 400, "invalid_request")


@cases("name", ["snap-aaaa-aaaaaaaaaaaaaaaa", "mine", "a b", "%00"])
async def test_what_there_is_not_is_not_found(at: Bench, http: httpx.AsyncClient, name: str) -> None:
    problem(await http.get(f"/v1/snapshots/{name}"), 404, "snapshot_not_found")
    problem(await http.delete(f"/v1/snapshots/{name}"), 404, "snapshot_not_found")
    problem(await http.post("/v1/sandboxes", json={"snapshot": name}), 404, "snapshot_not_found")
    assert at.sandboxes.held == 0


@cases("given", [{"template": "base"}, {"isolation": "gvisor"}])
async def test_a_snapshot_decides_what_cannot_be_chosen_beside_it(at: Bench, http: httpx.AsyncClient, given: dict[str, str]) -> None:
    told = problem(await http.post("/v1/sandboxes", json={"snapshot": "mine", **given}), 400, "invalid_request")
    assert told["fields"]["field"] == next(iter(given))
    assert at.sandboxes.held == 0
