"""Promise: whoever asks with the id of something that is somebody else's hears what he would hear if it did not exist: 404, on every route.

The matrix is made from the app's routes: a new one with an id in its path is asked by itself, and one whose request needs a body or a query
to be a right one fails here until it says which. Every request is first made by the stranger, for whom there is nothing; then by the owner,
for whom there is, so that a 404 is about whose it is and not about the request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import pytest

from tests.support.tenants import PORT, Asked, Two, agent_session, all_routes, named, status
from tests.support.until import until

OWN = ("/api", "/e2b", "/files", "/pandastack", "/sandbase", "/tensorlake")
"""How the paths of doors begin that have a matrix of their own (test_foreign_ids_compat.py)."""

PATH = {"path": "/workspace/file"}
RIGHT: Mapping[str, Asked] = {
    "PATCH /v1/sandboxes/{sandbox}": Asked({"timeout": 600}),
    "DELETE /v1/sandboxes/{sandbox}": Asked(last=True),
    "POST /v1/sandboxes/{sandbox}/volumes": Asked({"volume": "mine", "path": "/mine"}),
    "DELETE /v1/sandboxes/{sandbox}/volumes": Asked(query={"path": "/mine"}),
    "POST /v1/sandboxes/{sandbox}/snapshots": Asked({}),
    "POST /v1/sandboxes/{sandbox}/forks": Asked({}),
    "DELETE /v1/snapshots/{snapshot}": Asked(last=True),
    "POST /v1/sandboxes/{sandbox}/code": Asked({"code": "1"}),
    "POST /v1/sandboxes/{sandbox}/contexts": Asked({}),
    "DELETE /v1/sandboxes/{sandbox}/contexts/{context}": Asked(last=True),
    "POST /v1/sandboxes/{sandbox}/network/approve": Asked(json={"refusal": "1"}),
    "POST /v1/sandboxes/{sandbox}/processes": Asked({"command": "true"}),
    "POST /v1/sandboxes/{sandbox}/packages": Asked({"packages": ["six"]}),
    "POST /v1/sandboxes/{sandbox}/processes/{process}/signal": Asked({"signal": "SIGCONT"}),
    "POST /v1/sandboxes/{sandbox}/processes/{process}/stdin": Asked(content=b"x"),
    "GET /v1/sandboxes/{sandbox}/files": Asked(query={"path": "/workspace"}),
    "DELETE /v1/sandboxes/{sandbox}/files": Asked(query={"path": "/workspace/folder"}, last=True),
    "GET /v1/sandboxes/{sandbox}/files/content": Asked(query=PATH),
    "PUT /v1/sandboxes/{sandbox}/files/content": Asked(content=b"x", query=PATH),
    "GET /v1/sandboxes/{sandbox}/files/stat": Asked(query=PATH),
    "GET /v1/sandboxes/{sandbox}/files/realpath": Asked(query=PATH),
    "POST /v1/sandboxes/{sandbox}/files/directories": Asked({"path": "/workspace/folder"}),
    "POST /v1/sandboxes/{sandbox}/files/move": Asked({"path": "/workspace/file", "to": "/workspace/file", "overwrite": True}),
    "GET /v1/sandboxes/{sandbox}/files/exists": Asked(query=PATH),
    "GET /v1/sandboxes/{sandbox}/files/archive": Asked(query={"path": "/workspace"}),
    "POST /v1/sandboxes/{sandbox}/files/archive": Asked(content=bytes(1024), query={"path": "/workspace"}),
    "GET /v1/sandboxes/{sandbox}/files/watch": Asked(query={"path": "/workspace"}),
    "POST /v1/sandboxes/{sandbox}/files/watchers": Asked({"path": "/workspace"}),
    "DELETE /v1/sandboxes/{sandbox}/files/watchers/{watcher}": Asked(last=True),
    "POST /v1/sandboxes/{sandbox}/files/signed-urls": Asked(PATH),
    "POST /v1/sandboxes/{sandbox}/files/import": Asked({"file_ids": ["{file}"], "path": "/workspace"}),
    "POST /v1/sandboxes/{sandbox}/files/export": Asked(PATH),
    "GET /v1/sandboxes/{sandbox}/processes/{process}/wait": Asked(query={"timeout": "0"}),
    "POST /v1/sandboxes/{sandbox}/processes/{process}/resize": Asked({"rows": 24, "cols": 80}),
    "DELETE /v1/files/{file}": Asked(last=True),
    "DELETE /v1/volumes/{volume}": Asked(last=True),
    "DELETE /v1/webhooks/{webhook}": Asked(last=True),
    "PATCH /v1/pools/{pool}": Asked({"max": 0}),
    "DELETE /v1/pools/{pool}": Asked(last=True),
    "PATCH /v1/webhooks/{webhook}": Asked(json={"enabled": False}),
    "PUT /v1/templates/{template}/tags/{tag}": Asked({"build": "{build}"}),
    "DELETE /v1/templates/{template}/tags/{tag}": Asked(last=True),
    "PATCH /v1/agents/{agent}": Asked({"name": "x"}),
    "POST /v1/agents/{agent}/archive": Asked(last=True),
    "DELETE /v1/agents/{agent}": Asked(last=True),
    "PATCH /v1/agent-sessions/{session}": Asked({"title": "x"}),
    "POST /v1/agent-sessions/{session}/messages": Asked({"content": "x"}),
    "POST /v1/agent-sessions/{session}/archive": Asked(last=True),
    "DELETE /v1/agent-sessions/{session}": Asked(last=True),
    "DELETE /agentsandbox/v1/sessions/{session}": Asked(last=True),
    "POST /agentsandbox/v1/sessions/{session}/files": Asked({"file_ids": ["{file}"]}),
    "DELETE /agentsandbox/v1/files/{file}": Asked(last=True),
    "POST /sandboxapi/v1/sessions/{session}/execute": Asked({"code": "1"}),
    "POST /sandboxapi/v1/sessions/{session}/install": Asked({"packages": ["six"]}),
    "POST /sandboxapi/v1/sessions/{session}/packages": Asked({"packages": ["six"]}),
    "POST /sandboxapi/v1/sessions/{session}/close": Asked(last=True),
    "DELETE /sandboxapi/v1/sessions/{session}": Asked(last=True),
}
"""Requests that are more than their path."""

OWNERS_404: Mapping[str, str] = {
    "POST /v1/sandboxes/{sandbox}/network/approve": "refusal_not_found",
    "PUT /v1/templates/{template}/tags/{tag}": "build_not_found",  # the build has failed
}
"""Route -> code of the owner's 404, which a stranger does not hear."""

NOBODYS: Mapping[str, str] = {
    "/v1/keys/{key}": "only operators may ask, and all others hear that first (403), whichever key it is",
    "/v1/templates/{template}": "the built-in templates are the same for everybody; tests/unit/core/test_template_builds.py asks for others",
    "/v1/templates/{template}/builds": "a name is each key's own; tests/unit/core/test_template_builds.py asks for ids",
    "/v1/build-contexts/{archive}": "a name is each key's own (tests/unit/builds/test_uploads.py)",
}
"""Routes with an id that is nobody's secret, and why."""

IN_BODIES: Sequence[tuple[str, str, Any]] = (
    ("POST", "/v1/sandboxes", {"template": "base", "file_ids": ["{file}"]}),
    ("POST", "/v1/sandboxes", {"snapshot": "{snapshot}"}),
    ("POST", "/v1/sandboxes", {"snapshot": "named"}),
    ("POST", "/v1/sandboxes", {"volumes": [{"volume": "{volume}", "path": "/mine"}]}),
    ("POST", "/v1/sandboxes", {"volumes": [{"volume": "mine", "path": "/mine"}]}),
    ("POST", "{own}/volumes", {"volume": "{volume}", "path": "/mine"}),
    ("POST", "{own}/volumes", {"volume": "mine", "path": "/mine"}),
    ("POST", "{own}/files/import", {"file_ids": ["{file}"], "path": "/workspace"}),
    ("POST", "/v1/agent-sessions", {"agent": "{agent}"}),
    ("POST", "/agentsandbox/v1/execute", {"code": "1", "session_id": "{session}"}),
    ("POST", "/agentsandbox/v1/execute", {"code": "1", "file_ids": ["{file}"]}),
    ("POST", "/agentsandbox/v1/sessions", {"file_ids": ["{file}"]}),
)
"""Requests that name somebody else's in their body; ``{own}`` is the stranger's own sandbox."""

LISTS: Mapping[str, str] = {
    "/v1/sandboxes": "sandboxes",
    "/v1/sandboxes?state=running,stopped": "sandboxes",
    "/v1/snapshots": "snapshots",
    "/v1/files": "files",
    "/v1/executions": "executions",
    "/v1/executions?sandbox={sandbox}": "executions",
    "/v1/events": "events",
    "/v1/events?sandbox={sandbox}": "events",
    "/v1/volumes": "volumes",
    "/v1/webhooks": "webhooks",
    "/v1/pools": "pools",
    "/v1/agents": "agents",
    "/v1/agent-sessions": "sessions",
    "/agentsandbox/v1/sessions": "sessions",
    "/agentsandbox/v1/files": "files",
}
"""Lists, and what theirs is called: one's own only."""


@pytest.fixture
async def ids(two: Two) -> Mapping[str, str]:
    return await belongings(two.owner)


async def belongings(owner: httpx.AsyncClient) -> Mapping[str, str]:
    """One of everything that has an id: the name that it has in paths, and the id."""
    url = await sandbox(owner)
    body = {"command": "cat", "pty": {}, "background": True}
    ran = (await owner.post(f"{url}/processes", json=body)).json()
    assert (await owner.put(f"{url}/files/content", params=PATH, content=b"secret")).status_code == 200
    executed = (await owner.post(f"{url}/code", json={"code": "1"})).json()

    async def is_logged() -> bool:
        return (await owner.get(f"/v1/executions/{executed['id']}")).is_success

    await until(is_logged)
    volume = (await owner.post("/v1/volumes", json={"name": "mine", "size_bytes": 64 << 20})).json()["id"]
    response = await owner.post(f"{url}/volumes", json={"volume": volume, "path": "/mine"})
    assert response.is_success, response.text
    session = (await owner.post("/agentsandbox/v1/sessions", json={})).json()["session_id"]
    talk = await agent_session(owner)
    build = (await owner.post("/v1/templates/web/builds", json={"dockerfile": "FROM none.invalid/image"})).json()
    return {
        "template": build["template"],
        "build": build["id"],
        "tag": "v1",
        "agent": talk["agent"],
        "agent_session": talk["session"],
        "sandboxapi": await other_session(owner),
        "sandbox": url.rpartition("/")[2],
        "session": session,
        "process": ran["id"],
        "port": str(PORT),
        "context": (await owner.post(f"{url}/contexts", json={})).json()["id"],
        "file": await file(owner),
        "snapshot": (await owner.post(f"{url}/snapshots", json={"name": "named"})).json()["id"],
        "execution": executed["id"],
        "watcher": (await owner.post(f"{url}/files/watchers", json={"path": "/workspace"})).json()["id"],
        "volume": volume,
        "pool": (await owner.post("/v1/pools", json={"template": "base", "warm": 0})).json()["id"],
        "webhook": (await owner.post("/v1/webhooks", json={"url": "https://example.com/"})).json()["id"],
    }


async def other_session(owner: httpx.AsyncClient) -> str:
    """The id of a new session of the other door that has some."""
    made = (await owner.post("/sandboxapi/v1/sessions", json={"language": "python"})).json()
    id_: str = made.get("session_id") or made["id"]
    return id_


async def file(owner: httpx.AsyncClient) -> str:
    """The id of a new one in the file store."""
    id_: str = (await owner.post("/v1/files", params={"filename": "name"}, content=b"secret")).json()["id"]
    return id_


async def sandbox(owner: httpx.AsyncClient) -> str:
    """The address of a new one."""
    made = await owner.post("/v1/sandboxes", json={"template": "base", "limits": {"pids": 32768}})
    return f"/v1/sandboxes/{made.json()['id']}"


def routes() -> list[str]:
    """All routes whose path has somebody's id in it, but those of doors that have a matrix of their own (test_foreign_ids_compat.py)."""
    return sorted(f"{method} {path}" for method, path in all_routes() if "{" in path and path not in NOBODYS and not path.startswith(OWN))


def of_door(route: str, ids: Mapping[str, str]) -> Mapping[str, str]:
    """The ids as a route's door has them: sessions are the door's own that made them."""
    for door, name in ((" /sandboxapi/", "sandboxapi"), (" /v1/agent-sessions/", "agent_session")):
        if door in route:
            return {**ids, "session": ids[name]}
    return ids


async def test_every_route_hides_objects_of_other_keys(two: Two, ids: Mapping[str, str]) -> None:
    asked = routes()
    assert len(asked) > 30
    unknown = {name for route in asked for name in re.findall(r"{(\w+)", route)} - set(ids)
    assert unknown == set(), "belongings() has to make one of each"
    heard = {route: await status(two, two.stranger, route, RIGHT.get(route, Asked()), of_door(route, ids)) for route in asked}
    assert {route: answer for route, answer in heard.items() if answer[0] != 404 or (route in OWNERS_404 and OWNERS_404[route] in answer[1])} == {}
    # Those that end something come last, the largest of them at the very end.
    for route in sorted(asked, key=lambda route: (RIGHT.get(route, Asked()).last, -route.count("/"))):
        # A file can be removed by two routes, and such a session as well: each has one of its own.
        mine = {**ids, "file": await file(two.owner)} if "{file}" in route else ids
        if " /sandboxapi/" in route and RIGHT.get(route, Asked()).last:
            mine = {**mine, "sandboxapi": await other_session(two.owner)}
        answer = await status(two, two.owner, route, RIGHT.get(route, Asked()), of_door(route, mine))
        if route in OWNERS_404:
            assert OWNERS_404[route] in answer[1]
        else:
            assert answer[0] not in {400, 404, 422, 500}, f"{route}: {answer}, so a stranger's 404 says nothing"


async def test_ids_in_bodies_do_not_reach_objects_of_other_keys(two: Two, ids: Mapping[str, str]) -> None:
    ids = {**ids, "own": await sandbox(two.stranger)}
    for method, path, body in IN_BODIES:
        answer = await two.stranger.request(
            method, named(path, ids), content=named(json.dumps(body), ids), headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == 404, f"{method} {path} {body}: {answer.status_code} {answer.text}"
    assert len((await two.stranger.get("/v1/sandboxes")).json()["sandboxes"]) == 1


async def test_lists_contain_own_objects_only(two: Two, ids: Mapping[str, str]) -> None:
    for url, items in LISTS.items():
        answer = await two.stranger.get(named(url, ids))
        assert answer.status_code in {200, 404}, answer.text
        assert answer.status_code == 404 or answer.json()[items] == [], url
        assert (await two.owner.get(named(url, ids))).json()[items], url
    for url in ("/v1/keys", "/metrics"):
        assert (await two.stranger.get(url)).status_code == 403
    assert (await two.stranger.delete("/v1/keys/owner")).status_code == 403
    assert (await two.owner.get("/v1/sandboxes")).status_code == 200
