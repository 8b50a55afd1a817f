"""Promise: a door tells nobody of what is somebody else's: on every route of every door, by its path or by a header, it is what is not there.

The matrix is made from the doors' routes, as that of the native API is (test_foreign_ids.py): the stranger asks first, then the owner, for whom
the same request has to come to something. What is inside of an E2B sandbox, and of a Tensorlake sandbox at the root, is asked for by a header:
who names somebody else's there hears what is heard of a sandbox that is not running (E2B: 502 "was not found").
"""

from __future__ import annotations

import re
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.support.tenants import PORT, Asked, Two, agent_session, all_routes, status

NOT_SUPPORTED = 501
RPCS = ("/e2b/process.", "/e2b/filesystem.")
PATH = {"path": "/workspace/file"}
FORM = (
    b'--x\r\nContent-Disposition: form-data; name="path"\r\n\r\n/workspace/new\r\n'
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="new"\r\n\r\n1\r\n--x--\r\n'
)
MULTIPART = {"Content-Type": "multipart/form-data; boundary=x"}


def connect(message: bytes) -> bytes:
    """A message as Connect streams it."""
    return struct.pack(">BI", 0, len(message)) + message


async def made(http: httpx.AsyncClient, path: str, body: Mapping[str, Any], *names: str, headers: Mapping[str, str] | None = None) -> str:
    """Create something; its id, by the first of some names that the answer has."""
    answer = await http.post(path, json=body, headers=headers)
    assert answer.is_success, f"{path}: {answer.status_code} {answer.text}"
    told = answer.json()
    return str(next(told[name] for name in names if name in told))


async def inside(http: httpx.AsyncClient, sandbox: str) -> None:
    """Something to read in a sandbox."""
    assert (await http.put(f"/v1/sandboxes/{sandbox}/files/content", params=PATH, content=b"secret")).is_success


async def process(http: httpx.AsyncClient, sandbox: str) -> Any:  # noqa: ANN401 - JSON
    """One that runs there."""
    return (await http.post(f"/v1/sandboxes/{sandbox}/processes", json={"command": "cat", "stdin_open": True, "background": True})).json()


DIGEST = "0" * 64
"""Hash of files that nobody has uploaded."""


async def template(owner: httpx.AsyncClient) -> dict[str, str]:
    """Ids of a template and of a build that waits."""
    made = (await owner.post("/e2b/v3/templates", json={"name": "mine"})).json()
    return {"template": made["templateID"], "build": made["buildID"]}


async def in_e2b(owner: httpx.AsyncClient) -> dict[str, str]:
    sandbox = await made(owner, "/e2b/v2/sandboxes", {"templateID": "base", "timeout": 600}, "sandboxID")
    await inside(owner, sandbox)
    headers = {"E2b-Sandbox-Id": sandbox}
    return {
        **await template(owner),
        "digest": DIGEST,
        "sandbox": sandbox,
        "context": await made(owner, "/e2b/contexts", {}, "id", headers=headers),
        "pid": str((await process(owner, sandbox))["pid"]),
        "watcher": await made(owner, "/e2b/filesystem.Filesystem/CreateWatcher", {"path": "/workspace"}, "watcherId", headers=headers),
    }


async def in_pandastack(owner: httpx.AsyncClient) -> dict[str, str]:
    sandbox = await made(owner, "/pandastack/v1/sandboxes", {"template": "base"}, "id")
    await inside(owner, sandbox)
    at_ = f"/pandastack/v1/sandboxes/{sandbox}"
    return {
        **await template(owner),
        "sandbox": sandbox,
        "context": await made(owner, f"{at_}/repl/sessions", {"language": "python"}, "id"),
        "volume": await made(owner, "/pandastack/v1/volumes", {"name": f"mine-{sandbox[-16:]}", "size_mb": 64}, "name"),
        "snapshot": (await owner.post(f"/v1/sandboxes/{sandbox}/snapshots", json={})).json()["id"],
    }


async def in_sandbase(owner: httpx.AsyncClient) -> dict[str, str]:
    sandbox = await made(owner, "/sandbase/sandboxes", {"templateID": "base"}, "sandboxID")
    await inside(owner, sandbox)
    for each in (await owner.get("/v1/webhooks")).json()["webhooks"]:  # a key has ten at most
        await owner.delete(f"/v1/webhooks/{each['id']}")
    webhook = await made(owner, "/sandbase/events/webhooks", {"url": "https://example.com/hook"}, "id", "webhookID")
    return {"sandbox": sandbox, "webhook": webhook, **await agent_session(owner)}


POOL = {"image": "base", "resources": {"cpus": 1.0, "memory_mb": 640}, "warm_containers": 0}


async def in_tensorlake(owner: httpx.AsyncClient) -> dict[str, str]:
    space = "/tensorlake/v1/namespaces/default"
    sandbox = await made(owner, f"{space}/sandboxes", {"resources": {"cpus": 1.0, "memory_mb": 512}}, "sandbox_id")
    await inside(owner, sandbox)
    assert (await owner.post("/v1/volumes", json={"name": "mine", "size_bytes": 64 << 20})).status_code in {201, 409}
    assert (await owner.post(f"/v1/sandboxes/{sandbox}/volumes", json={"volume": "mine", "path": "/mine"})).is_success
    pool = (await owner.post(f"{space}/sandbox-pools", json=POOL)).json()
    return {
        **await template(owner),
        "image": "mine",
        "namespace": "default",
        "pool": pool["pool_id"] if "pool_id" in pool else (await owner.get("/v1/pools/base")).json()["id"],
        "sandbox": sandbox,
        "process": str((await process(owner, sandbox))["pid"]),
        "port": str(PORT),
        "snapshot": (await owner.post(f"/v1/sandboxes/{sandbox}/snapshots", json={})).json()["id"],
    }


@dataclass(frozen=True)
class Rows:
    """One door's.

    Args:
        own: Makes one of everything that has an id.
        roots: How its paths begin.
        right: Requests that are more than their path.
        nobodys: Paths whose ids are nobody's secret.
        by_header: Of what is asked for by a header: how such paths begin, and the header's name.
    """

    own: Callable[[httpx.AsyncClient], Awaitable[dict[str, str]]]
    roots: tuple[str, ...]
    right: Mapping[str, Asked]
    nobodys: str = r"(?!)"
    by_header: tuple[tuple[str, ...], str] = ((), "")


LAST = Asked(last=True)
PID = {"pid": "#{pid}"}
E2B = {
    "POST /e2b/sandboxes/{sandbox}/timeout": Asked({"timeout": 600}),
    "POST /e2b/sandboxes/{sandbox}/refreshes": Asked({"duration": 600}),
    "POST /e2b/sandboxes/{sandbox}/connect": Asked({"timeout": 600}),
    "POST /e2b/v2/sandboxes/{sandbox}/connect": Asked({"timeout": 600}),
    "POST /e2b/sandboxes/{sandbox}/resume": Asked({"timeout": 600}),
    "POST /e2b/sandboxes/{sandbox}/snapshots": Asked({}),
    "POST /e2b/sandboxes/{sandbox}/fork": Asked({}),
    "POST /e2b/sandboxes/{sandbox}/pause": Asked({}, last=True),
    "PUT /e2b/sandboxes/{sandbox}/network": Asked({}),
    "POST /e2b/v2/templates/{template}/builds/{build}": Asked({"fromTemplate": "base"}, last=True),
    "DELETE /e2b/templates/{template}": LAST,
    "DELETE /e2b/contexts/{context}": LAST,
    "DELETE /e2b/sandboxes/{sandbox}": LAST,
    "POST /e2b/execute": Asked({"code": "1"}),
    "POST /e2b/contexts": Asked({}),
    "GET /e2b/files": Asked(query=PATH),
    "GET /files": Asked(query=PATH),
    "POST /e2b/files": Asked(content=FORM, query={"path": "/workspace/new"}),
    "POST /files": Asked(content=FORM, query={"path": "/workspace/new"}),
    "POST /e2b/filesystem.Filesystem/CreateWatcher": Asked({"path": "/workspace"}),
    "POST /e2b/filesystem.Filesystem/GetWatcherEvents": Asked({"watcherId": "{watcher}"}),
    "POST /e2b/filesystem.Filesystem/RemoveWatcher": Asked({"watcherId": "{watcher}"}, last=True),
    "POST /e2b/filesystem.Filesystem/ListDir": Asked({"path": "/workspace"}),
    "POST /e2b/filesystem.Filesystem/MakeDir": Asked({"path": "/workspace/folder"}),
    "POST /e2b/filesystem.Filesystem/Move": Asked({"source": "/workspace/file", "destination": "/workspace/moved"}, last=True),
    "POST /e2b/filesystem.Filesystem/Remove": Asked(PATH, last=True),
    "POST /e2b/filesystem.Filesystem/Stat": Asked(PATH),
    "POST /e2b/filesystem.Filesystem/WatchDir": Asked(content=connect(b'{"path":"/workspace"}')),
    "POST /e2b/process.Process/Connect": Asked(content=connect(b'{"process":{"pid":1}}')),
    "POST /e2b/process.Process/Start": Asked(content=connect(b'{"process":{"cmd":"true","args":[]}}')),
    "POST /e2b/process.Process/StreamInput": Asked(content=connect(b'{"start":{"process":{"pid":1}}}')),
    "POST /e2b/process.Process/List": Asked({}),
    "POST /e2b/process.Process/SendInput": Asked({"process": PID, "input": {"stdin": "eA=="}}),
    "POST /e2b/process.Process/Update": Asked({"process": PID}),
    "POST /e2b/process.Process/SendSignal": Asked({"process": PID, "signal": "SIGNAL_SIGTERM"}, last=True),
    "POST /e2b/process.Process/CloseStdin": Asked({"process": PID}, last=True),
}
INSIDE_E2B = ("execute", "contexts", "files", "health", "process.", "filesystem.")
PANDASTACK = {
    "DELETE /pandastack/v1/sandboxes/{sandbox}/fs": Asked(query=PATH, last=True),
    "GET /pandastack/v1/sandboxes/{sandbox}/fs": Asked(query=PATH),
    "GET /pandastack/v1/sandboxes/{sandbox}/fs/dir": Asked(query={"path": "/workspace"}),
    "GET /pandastack/v1/sandboxes/{sandbox}/fs/stat": Asked(query=PATH),
    "PUT /pandastack/v1/sandboxes/{sandbox}/fs": Asked(content=b"x", query=PATH),
    "PATCH /pandastack/v1/sandboxes/{sandbox}/lifecycle": Asked({"ttl_seconds": 600}),
    "POST /pandastack/v1/sandboxes/{sandbox}/exec": Asked({"cmd": "true"}),
    "POST /pandastack/v1/sandboxes/{sandbox}/exec/stream": Asked({"cmd": "true"}),
    "POST /pandastack/v1/sandboxes/{sandbox}/fork-tree": Asked({"count": 1}),
    "POST /pandastack/v1/sandboxes/{sandbox}/promote": Asked({}),
    "POST /pandastack/v1/sandboxes/{sandbox}/repl/sessions": Asked({"language": "python"}),
    "POST /pandastack/v1/sandboxes/{sandbox}/repl/sessions/{context}/run": Asked({"code": "1"}),
    "DELETE /pandastack/v1/sandboxes/{sandbox}/repl/sessions/{context}": LAST,
    "POST /pandastack/v1/sandboxes/{sandbox}/hibernate": LAST,
    "POST /pandastack/v1/sandboxes/{sandbox}/pause": LAST,
    "DELETE /pandastack/v1/sandboxes/{sandbox}": LAST,
    "DELETE /pandastack/v1/templates/{template}": LAST,
    "DELETE /pandastack/v1/snapshots/{snapshot}": LAST,
    "DELETE /pandastack/v1/volumes/{volume}": LAST,
}
SANDBASE = {
    "GET /sandbase/sandboxes/{sandbox}/files": Asked(query=PATH),
    "GET /sandbase/sandboxes/{sandbox}/filesystem": Asked(query=PATH),
    "GET /sandbase/sandboxes/{sandbox}/filesystem/download": Asked(query=PATH),
    "GET /sandbase/sandboxes/{sandbox}/filesystem/stat": Asked(query=PATH),
    "GET /sandbase/sandboxes/{sandbox}/filesystem/list": Asked(query={"path": "/workspace"}),
    "DELETE /sandbase/sandboxes/{sandbox}/filesystem": Asked(query=PATH, last=True),
    "POST /sandbase/sandboxes/{sandbox}/files": Asked(content=FORM),
    "POST /sandbase/sandboxes/{sandbox}/filesystem/upload": Asked(content=FORM),
    "POST /sandbase/sandboxes/{sandbox}/filesystem": Asked({"path": "/workspace/b", "content": "eA=="}),
    "POST /sandbase/sandboxes/{sandbox}/filesystem/mkdir": Asked({"path": "/workspace/folder"}),
    "POST /sandbase/sandboxes/{sandbox}/filesystem/move": Asked({"source": "/workspace/file", "destination": "/workspace/moved"}, last=True),
    "POST /sandbase/sandboxes/{sandbox}/processes": Asked({"cmd": "true"}),
    "POST /sandbase/sandboxes/{sandbox}/refreshes": Asked({"duration": 600}),
    "POST /sandbase/sandboxes/{sandbox}/timeout": Asked({"timeout": 600}),
    "POST /sandbase/sandboxes/{sandbox}/shutdown": LAST,
    "DELETE /sandbase/sandboxes/{sandbox}": LAST,
    "DELETE /sandbase/events/webhooks/{webhook}": LAST,
    "PATCH /sandbase/events/webhooks/{webhook}": Asked({"enabled": False}),
}
AGENTS = {
    "POST /agents/{agent}": Asked({"name": "x"}),
    "PATCH /agents/{agent}": Asked({"name": "x"}),
    "POST /agents/{agent}/archive": LAST,
    "DELETE /agents/{agent}": LAST,
    "POST /sessions/{session}": Asked({"title": "x"}),
    "PATCH /sessions/{session}": Asked({"title": "x"}),
    "POST /sessions/{session}/events": Asked({"events": [{"type": "user.message", "content": "x"}]}),
    "POST /sessions/{session}/archive": LAST,
    "DELETE /sessions/{session}": LAST,
}
INSIDE = {
    "GET /files": Asked(query=PATH),
    "GET /files/list": Asked(query={"path": "/workspace"}),
    "PUT /files": Asked(content=b"x", query=PATH),
    "DELETE /files": Asked(query=PATH, last=True),
    "POST /processes": Asked({"command": "true"}),
    "POST /processes/run": Asked({"command": "true"}),
    "POST /processes/{process}/signal": Asked({"signal": 18}),
    "POST /processes/{process}/stdin": Asked(content=b"x"),
    "POST /processes/{process}/stdin/close": LAST,
    "POST /processes/{process}/restart": LAST,
    "DELETE /processes/{process}": LAST,
    "POST /pty": Asked({"command": "true", "rows": 24, "cols": 80}),
    "DELETE /pty/{process}": LAST,
    "WEBSOCKET /tunnels/tcp": Asked(query={"port": "{port}"}),
}
OUTSIDE = {
    "PATCH /sandboxes/{sandbox}": Asked({"auto_resume": True}),
    "POST /sandboxes/{sandbox}/snapshot": Asked({"snapshot_type": "filesystem"}),
    "POST /sandboxes/{sandbox}/file_systems": Asked({"file_system_id": "mine", "mount_path": "/mine"}),
    "DELETE /sandboxes/{sandbox}/file_systems": Asked({"mount_path": "/mine"}, last=True),
    "POST /sandboxes/{sandbox}/suspend": LAST,
    "POST /sandboxes/{sandbox}/resume": LAST,
    "DELETE /sandboxes/{sandbox}": LAST,
    "DELETE /snapshots/{snapshot}": LAST,
    "PUT /sandbox-pools/{pool}": Asked(POOL),
    "DELETE /sandbox-pools/{pool}": LAST,
}
SPACES = ("/tensorlake", "/tensorlake/v1/namespaces/{namespace}")
INSIDES = ("/api/v1", "/tensorlake/sbx/{sandbox}/api/v1")


def below(prefixes: Sequence[str], rows: Mapping[str, Asked]) -> dict[str, Asked]:
    """The same requests at several addresses."""
    parts = [(*row.partition(" ")[::2], asked) for row, asked in rows.items()]
    return {f"{method} {prefix}{path}": asked for method, path, asked in parts for prefix in prefixes}


DOORS: Mapping[str, Rows] = {
    "e2b": Rows(
        in_e2b,
        ("/e2b", "/files"),
        E2B,
        nobodys=r"/e2b/secrets.*|/e2b/volumes.*",
        by_header=(("/files", *(f"/e2b/{each}" for each in INSIDE_E2B)), "E2b-Sandbox-Id"),
    ),
    "pandastack": Rows(in_pandastack, ("/pandastack",), PANDASTACK),
    "sandbase": Rows(
        in_sandbase, ("/sandbase",), SANDBASE | below(("/sandbase/v1", "/sandbase/default/v1"), AGENTS), nobodys=r"/sandbase/templates/.*"
    ),
    "tensorlake": Rows(
        in_tensorlake,
        ("/tensorlake", "/api"),
        below(SPACES, OUTSIDE) | below(INSIDES, INSIDE) | {"POST /tensorlake/images/v4/builds/{build}/context/seal": Asked({"digest": DIGEST})},
        nobodys=r".*/archived-sandboxes.*|/tensorlake/images/v4/images/name/.*|/tensorlake/platform/.*|/tensorlake/v1/namespaces/\{namespace\}/(sandboxes|snapshots|sandbox-pools)",
        by_header=(("/api",), "X-Tensorlake-Sandbox-Id"),
    ),
}


def routes(rows: Rows) -> list[str]:
    """All of a door's that are about something of somebody's."""
    ours = [(method, path) for method, path in all_routes() if path.startswith(rows.roots) and not re.fullmatch(rows.nobodys, path)]
    return sorted(f"{method} {path}" for method, path in ours if "{" in path or path.startswith(rows.by_header[0]))


async def first(who: httpx.AsyncClient, path: str, content: bytes, headers: Mapping[str, str]) -> tuple[int, str]:
    """What comes first of a stream of Connect's: 200 and a message, or what the error in it stands for."""
    streamed = {"Content-Type": "application/connect+json", "Connect-Protocol-Version": "1", **headers}
    async with who.stream("POST", path, content=content, headers=streamed) as answer:
        told = await anext(answer.aiter_raw())
    unavailable = b'"error":{"code":"unavailable"' in told
    return (502 if unavailable else answer.status_code), told.decode("latin-1")


@pytest.mark.parametrize("door", DOORS)
async def test_every_compat_route_hides_objects_of_other_keys(two: Two, door: str) -> None:
    rows = DOORS[door]
    ids, asked = await rows.own(two.owner), routes(rows)
    assert len(asked) > 15
    unknown = {name for route in asked for name in re.findall(r"{(\w+)", route)} - set(ids)
    assert unknown == set(), "what makes one of each has to make these as well"

    async def ask(who: httpx.AsyncClient, route: str, ids: Mapping[str, str]) -> tuple[int, str]:
        path = route.partition(" ")[2]
        headers = {rows.by_header[1]: ids["sandbox"]} if path.startswith(rows.by_header[0]) else {}
        right = rows.right.get(route, Asked())
        if right.content is not None and path.startswith(RPCS):
            return await first(who, path, right.content, headers)
        return await status(two, who, route, right, ids, headers | (MULTIPART if right.content == FORM else {}))

    def hides(route: str, answer: tuple[int, str]) -> bool:
        """Whether that is what is said of what there is not."""
        by_header = door == "e2b" and route.partition(" ")[2].startswith(rows.by_header[0])
        return "not found" in answer[1] and answer[0] == 502 if by_header else answer[0] == 404

    heard = {route: await ask(two.stranger, route, ids) for route in asked}
    refused = {route for route, answer in heard.items() if answer[0] == NOT_SUPPORTED}
    assert {route: answer for route, answer in heard.items() if route not in refused and not hides(route, answer)} == {}
    for route in sorted(asked, key=lambda route: rows.right.get(route, Asked()).last):
        # What ends something has something of its own to end.
        answer = await ask(two.owner, route, await rows.own(two.owner) if rows.right.get(route, Asked()).last else ids)
        if route in refused:
            assert answer[0] == NOT_SUPPORTED, f"{route}: {answer}"
        else:
            assert answer[0] not in {400, 404, 422, 500}, f"{route}: {answer}, so what a stranger hears says nothing"
            assert not hides(route, answer), route
