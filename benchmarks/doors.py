"""What a door adds: the same call through a vendor's API and through the native one, round by round, on sandboxes of one kind.

Every variant takes its turn in every round, and each is compared with the native call that does the same; medians are what counts. All of it goes
over one keep-alive connection each on the unix socket, so that the difference is the door's own. A file is read because nothing in a sandbox takes
less time: there a difference of a tenth of a millisecond can be seen, which the start of a process in gVisor hides. What AgentSandbox's door does
beside translating, its program file and its look for files that the run made, is in its figures; so are those of a run without a session.
``python benchmarks/doors.py`` as root.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import struct
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from sandlot.sdk import AsyncClient
from sandlot.sdk.config import SOCKET

PYTHON = "print(1)"
FILE = "/workspace/one"
CONTENT = b"x" * 1024

Call = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Way:
    """One way to do something.

    Args:
        what: The request, for people.
        call: It does it once, and sees to it that it was done.
        beside: The name of the native way that does the same; None is a native one.
        seldom: Whether it takes so long that it has its turn in one round of ten.
    """

    what: str
    call: Call
    beside: str | None = None
    seldom: bool = False


class Client:
    """Asks one service.

    Args:
        http: It.
    """

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def ask(self, method: str, path: str, *, headers: Mapping[str, str] | None = None, **sent: Any) -> httpx.Response:  # noqa: ANN401 - httpx's own
        """One call that has to succeed."""
        answer = await self.http.request(method, path, headers=headers, **sent)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text[:300]}"
        return answer

    async def made(self, path: str, field: str, **body: Any) -> str:  # noqa: ANN401 - JSON
        """Create something by its vendor's API; its id."""
        id_: str = (await self.ask("POST", path, json=body)).json()[field]
        return id_

    def reading(self, path: str, query: str = "path", headers: Mapping[str, str] | None = None) -> Call:
        """Reads the file."""

        async def call() -> None:
            assert (await self.ask("GET", path, params={query: FILE}, headers=headers)).content == CONTENT

        return call

    def posting(self, path: str, body: Mapping[str, Any], holds: str) -> Call:
        """Posts JSON; what is answered holds a text."""

        async def call() -> None:
            assert holds in (await self.ask("POST", path, json=body)).text

        return call


async def native(client: Client) -> dict[str, Way]:
    """What the others are compared with."""
    id_ = await client.made("/v1/sandboxes", "id", timeout=3600)
    at = f"/v1/sandboxes/{id_}"
    await client.ask("PUT", f"{at}/files/content", params={"path": FILE}, content=CONTENT)

    async def new() -> None:
        made = await client.made("/v1/sandboxes", "id")
        await client.ask("POST", f"/v1/sandboxes/{made}/processes", json={"argv": ["python3", "-c", PYTHON]})
        await client.ask("DELETE", f"/v1/sandboxes/{made}")

    events = {"Accept": "text/event-stream"}

    async def streamed() -> None:
        assert "event: exit" in (await client.ask("POST", f"{at}/processes", json={"argv": ["true"]}, headers=events)).text

    async def streamed_cell() -> None:
        assert "event: exit" in (await client.ask("POST", f"{at}/code", json={"code": PYTHON}, headers=events)).text

    return {
        "read": Way("GET .../files/content, 1 KiB", client.reading(f"{at}/files/content")),
        "argv": Way("POST .../processes: true", client.posting(f"{at}/processes", {"argv": ["true"]}, '"exit_code":0')),
        "argv, streamed": Way("the same, as events", streamed),
        "shell": Way("POST .../processes: bash -c true", client.posting(f"{at}/processes", {"command": "true"}, '"exit_code":0')),
        "python": Way("POST .../processes: python3 -c 'print(1)'", client.posting(f"{at}/processes", {"argv": ["python3", "-c", PYTHON]}, "1")),
        "cell": Way("POST .../code: print(1)", client.posting(f"{at}/code", {"code": PYTHON}, '"1\\n"')),
        "cell, streamed": Way("the same, as events", streamed_cell),
        "once": Way("POST /v1/execute: python", client.posting("/v1/execute", {"code": PYTHON, "language": "python"}, '"1\\n"'), seldom=True),
        "new": Way("create, run python, delete", new, seldom=True),
    }


async def agentsandbox(client: Client) -> dict[str, Way]:
    """AgentSandbox's."""
    id_ = await client.made("/agentsandbox/v1/sessions", "session_id")
    run = "/agentsandbox/v1/execute"
    session, python = {"session_id": id_}, {"code": PYTHON, "language": "python"}
    return {
        "agentsandbox bash": Way(f"POST {run}", client.posting(run, {"code": "true", "language": "bash"} | session, '"return_code":0'), "shell"),
        "agentsandbox python": Way(f"POST {run}", client.posting(run, python | session, '"return_code":0'), "python"),
        "agentsandbox new": Way("without a session", client.posting(run, python, '"return_code":0'), "new", seldom=True),
    }


async def sandboxapi(client: Client) -> dict[str, Way]:
    """SandboxAPI's."""
    id_ = await client.made("/sandboxapi/v1/sessions", "id", language="python3")
    cell, once = f"/sandboxapi/v1/sessions/{id_}/execute", "/sandboxapi/v1/execute"
    return {
        "sandboxapi cell": Way("POST .../execute", client.posting(cell, {"code": PYTHON}, '"1\\n"'), "cell"),
        "sandboxapi once": Way(f"POST {once}", client.posting(once, {"code": PYTHON, "language": "python3"}, '"1\\n"'), "once", seldom=True),
    }


async def sandbase(client: Client) -> dict[str, Way]:
    """Sandbase's."""
    id_ = await client.made("/sandbase/sandboxes", "sandboxID", templateID="code_interpreter", timeout=3600)
    at = f"/sandbase/sandboxes/{id_}"
    await client.ask("POST", f"{at}/files", files={"file": ("one", CONTENT)}, data={"path": FILE})
    return {
        "sandbase read": Way("GET .../files", client.reading(f"{at}/files"), "read"),
        "sandbase run": Way("POST .../processes", client.posting(f"{at}/processes", {"cmd": "true"}, '"exitCode":0'), "argv"),
    }


async def pandastack(client: Client) -> dict[str, Way]:
    """PandaStack's."""
    id_ = await client.made("/pandastack/v1/sandboxes", "id", template="code-interpreter", ttl_seconds=3600)
    at = f"/pandastack/v1/sandboxes/{id_}"
    await client.ask("PUT", f"{at}/fs", params={"path": FILE}, content=CONTENT)
    return {
        "pandastack read": Way("GET .../fs", client.reading(f"{at}/fs"), "read"),
        "pandastack run": Way("POST .../exec", client.posting(f"{at}/exec", {"cmd": "true"}, '"exit_code":0'), "shell"),
    }


async def tensorlake(client: Client) -> dict[str, Way]:
    """Tensorlake's."""
    spaces = "/tensorlake/v1/namespaces/default/sandboxes"
    id_ = await client.made(spaces, "sandbox_id", resources={"cpus": 1.0, "memory_mb": 1024}, timeout_secs=3600)
    at = f"/tensorlake/sbx/{id_}/api/v1"
    await client.ask("PUT", f"{at}/files", params={"path": FILE}, content=CONTENT)
    return {
        "tensorlake read": Way("GET .../files", client.reading(f"{at}/files"), "read"),
        "tensorlake run": Way("POST .../processes/run", client.posting(f"{at}/processes/run", {"command": "true"}, '"exit_code":'), "argv, streamed"),
    }


async def e2b(client: Client) -> dict[str, Way]:
    """E2B's."""
    id_ = await client.made("/e2b/v2/sandboxes", "sandboxID", templateID="code-interpreter-v1", timeout=3600)
    envd = {"E2b-Sandbox-Id": id_, "E2b-Sandbox-Port": "49983"}
    await client.ask("POST", "/e2b/files", params={"path": FILE}, files={"file": ("one", CONTENT)}, headers=envd)
    start = json.dumps({"process": {"cmd": "true", "args": []}, "stdin": False}).encode()
    connect = envd | {"Content-Type": "application/connect+json", "Connect-Protocol-Version": "1"}

    async def run() -> None:
        content = struct.pack(">BI", 0, len(start)) + start
        assert b'"end"' in (await client.ask("POST", "/e2b/process.Process/Start", content=content, headers=connect)).content

    async def cell() -> None:
        body = {"code": PYTHON, "context_id": None, "language": None, "env_vars": None}
        assert '"1\\n"' in (await client.ask("POST", "/e2b/execute", json=body, headers=envd | {"E2b-Sandbox-Port": "49999"})).text

    return {
        "e2b read": Way("GET /files", client.reading("/e2b/files", headers=envd), "read"),
        "e2b run": Way("POST /process.Process/Start", run, "argv, streamed"),
        "e2b cell": Way("POST /execute", cell, "cell, streamed"),
    }


DOORS = (native, agentsandbox, sandboxapi, sandbase, pandastack, tensorlake, e2b)


async def measure(count: int, folder: Path) -> tuple[dict[str, Way], dict[str, list[float]]]:
    """All ways, and the milliseconds of each, round by round."""
    async with AsyncClient(data_dir=folder) as service:
        await service.version()
        transport = httpx.AsyncHTTPTransport(uds=str(folder / SOCKET))
        async with httpx.AsyncClient(transport=transport, base_url="http://sandlot", timeout=300) as http:
            try:
                ways = {name: way for door in DOORS for name, way in (await door(Client(http))).items()}
                figures: dict[str, list[float]] = {name: [] for name in ways}
                for number in range(count + 1):
                    for name, way in ways.items():
                        if way.seldom and number % 10:
                            continue
                        started_s = time.perf_counter()
                        await way.call()
                        if number:  # what only the first one pays for is in no figure
                            figures[name].append((time.perf_counter() - started_s) * 1000)
            finally:
                for made in (await http.get("/v1/sandboxes")).json()["sandboxes"]:
                    await http.delete(f"/v1/sandboxes/{made['id']}")
                await service.stop_service()
    return ways, figures


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--n", type=int, default=100, help="rounds (default 100, some two minutes)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sandlot-bench-") as folder:
        ways, figures = asyncio.run(measure(max(10, options.n), Path(folder)))
    medians = {name: statistics.median(values) for name, values in figures.items()}
    if options.json:
        told = {name: {"what": way.what, "beside": way.beside, "n": len(figures[name]), "median_ms": medians[name]} for name, way in ways.items()}
        print(json.dumps(told, indent=2))
        return
    for name, way in ways.items():
        added = "" if way.beside is None else f"{medians[name] - medians[way.beside]:+8.2f} to {way.beside}"
        print(f"{name:20}{medians[name]:9.2f} {min(figures[name]):9.2f} {max(figures[name]):9.2f}  {added:28} {way.what}")
    print("milliseconds: median, least, most")


if __name__ == "__main__":
    main()
