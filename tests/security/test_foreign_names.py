"""Promise: the name of a sandbox, in a path, means the caller's own live sandbox with this name, on every native route, and no other sandbox."""

from __future__ import annotations

from collections.abc import Mapping

import httpx

from tests.security.test_foreign_ids import OWNERS_404, RIGHT, belongings, routes
from tests.support.tenants import Asked, Two, status

NAME = "shared-name"
ODD_NAMES = (
    "shared-name%2F..%2Fshared-name",
    "..%2Fsandboxes%2Fshared-name",
    "%2Fshared-name",
    "shared-name%00",
    "shared-name%0A",
    "shared-name%0d%0aX-Injected: 1",
    "shared-name%20",
    "SHARED-NAME",
    "%EF%BD%93hared-name",
    "shared%E2%80%8B-name",
    "%ff%fe",
    "x" * 3000,
)
"""Other spellings of the name, which no sandbox can have."""


async def rename(client: httpx.AsyncClient, sandbox: str, name: str) -> None:
    response = await client.patch(f"/v1/sandboxes/{sandbox}", json={"name": name})
    assert response.is_success, response.text


async def create(client: httpx.AsyncClient, name: str) -> str:
    response = await client.post("/v1/sandboxes", json={"template": "base", "name": name})
    assert response.status_code == 201, response.text
    id_: str = response.json()["id"]
    return id_


async def ids_of(client: httpx.AsyncClient, name: str) -> tuple[int, str | None]:
    """Return the status of the sandbox with a name, and its id."""
    response = await client.get(f"/v1/sandboxes/{name}")
    return response.status_code, response.json().get("id")


async def test_every_native_route_takes_names_of_own_sandboxes_only(two: Two) -> None:
    ids: Mapping[str, str] = await belongings(two.owner)
    await rename(two.owner, ids["sandbox"], NAME)
    requests = [route for route in routes() if " /v1/" in route and "{sandbox}" in route]
    assert len(requests) > 30
    by_name = {**ids, "sandbox": NAME}
    refused = {route: (await status(two, two.stranger, route, RIGHT.get(route, Asked()), by_name))[0] for route in requests}
    assert {route: code for route, code in refused.items() if code != 404} == {}
    for route in sorted(requests, key=lambda route: (RIGHT.get(route, Asked()).last, -route.count("/"))):
        answer = await status(two, two.owner, route, RIGHT.get(route, Asked()), by_name)
        if route in OWNERS_404:
            assert OWNERS_404[route] in answer[1]
        else:
            assert answer[0] not in {400, 404, 422, 500}, f"{route}: {answer}"


async def test_same_name_of_two_owners_means_the_callers_own_sandbox(two: Two) -> None:
    first, second = await create(two.owner, NAME), await create(two.stranger, NAME)
    assert (await ids_of(two.owner, NAME), await ids_of(two.stranger, NAME)) == ((200, first), (200, second))
    assert (await two.stranger.delete(f"/v1/sandboxes/{NAME}")).status_code == 204
    assert (await ids_of(two.owner, NAME), await ids_of(two.stranger, NAME)) == ((200, first), (404, None))


async def test_id_of_a_foreign_sandbox_cannot_be_taken_as_a_name(two: Two) -> None:
    foreign = await create(two.owner, NAME)
    taken = await two.stranger.post("/v1/sandboxes", json={"template": "base", "name": foreign})
    assert taken.status_code == 400, taken.text
    assert await ids_of(two.owner, foreign) == (200, foreign)
    assert (await ids_of(two.stranger, foreign))[0] == 404


async def test_other_spellings_of_a_name_find_nothing(two: Two) -> None:
    sandbox = await create(two.owner, NAME)
    for name in ODD_NAMES:
        for suffix in ("", "/files/stat?path=/", "/usage"):
            response = await two.owner.get(f"/v1/sandboxes/{name}{suffix}")
            assert response.status_code == 404, (name, suffix, response.text)
            assert "x-injected" not in response.headers
    assert await ids_of(two.owner, NAME) == (200, sandbox)


async def test_encoded_slash_reaches_no_foreign_sandbox(two: Two) -> None:
    await create(two.owner, NAME)
    for path in (f"{NAME}%2Fusage", f"x%2F..%2F{NAME}/usage", f"%2e%2e%2Fsandboxes%2F{NAME}"):
        assert (await two.stranger.get(f"/v1/sandboxes/{path}")).status_code == 404, path
