"""What a door adds: the same work asked for through a vendor's API and through the native one, in the same sandbox, in turn.

Each way of a door has beside it the native calls that do the same work, and takes its turn with them in every round, now before and now after them:
what is told is the median of each, and the median of the differences of the rounds. Both go to the door's own sandbox, over one keep-alive
connection on the unix socket, so that the difference is the door's own: another sandbox, or one that has rested longer, differs by more than a
door does. A breath between calls keeps what one leaves to be done out of the next one's time. A file is read because nothing in a sandbox takes less
time: there a difference of a tenth of a millisecond can be seen, which the start of a process in gVisor hides.

AgentSandbox's run is a program in a file, and tells which files it made: beside it is what a native client does for that (write it, run it, list the
folders), and, as a second figure, the native run alone. ``python benchmarks/doors.py`` as root.
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
BREATH_S = 0.02
"""Before every call: a door, or the log of runs, may have something left to do when it has answered."""
REFILL_S = 2.0
"""Before every one that takes a sandbox out of a pool: it would wait for the next one where the last one was just taken."""
SELDOM = 10
"""What takes long has its turn in one round of so many."""

Call = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Way:
    """One way to do something.

    Args:
        what: The request, for people.
        call: It does it once, and sees to it that it was done.
        native: What does the same work: words for people -> native calls in the same sandbox. The first is what the door is compared with.
        seldom: Whether it takes so long that it has its turn in one round of ten.
    """

    what: str
    call: Call
    native: Mapping[str, Call]
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

    def posting(self, path: str, body: Mapping[str, Any], holds: str, headers: Mapping[str, str] | None = None) -> Call:
        """Posts JSON; what is answered holds a text."""

        async def call() -> None:
            assert holds in (await self.ask("POST", path, json=body, headers=headers)).text

        return call


class Native:
    """The native calls of one sandbox.

    Args:
        client: Who asks.
        id_: The sandbox.
    """

    EVENTS: Mapping[str, str] = {"Accept": "text/event-stream"}

    def __init__(self, client: Client, id_: str) -> None:
        self._client = client
        self._at = f"/v1/sandboxes/{id_}"

    def read(self) -> Mapping[str, Call]:
        """A file of 1 KiB."""
        return {"read": self._client.reading(f"{self._at}/files/content")}

    def run(self, *argv: str, streamed: bool = False) -> Mapping[str, Call]:
        """A process."""
        if streamed:
            return {"run, as events": self._client.posting(f"{self._at}/processes", {"argv": argv}, "event: exit", self.EVENTS)}
        return {"run": self._client.posting(f"{self._at}/processes", {"argv": argv}, '"exit_code":0')}

    def cell(self, *, streamed: bool = False) -> Mapping[str, Call]:
        """A cell."""
        if streamed:
            return {"cell, as events": self._client.posting(f"{self._at}/code", {"code": PYTHON}, "event: exit", self.EVENTS)}
        return {"cell": self._client.posting(f"{self._at}/code", {"code": PYTHON}, '"1\\n"')}

    def program(self, interpreter: str, code: str) -> Mapping[str, Call]:
        """A program in a file, and which files are there then; and a process alone."""
        path = f"/tmp/program.{interpreter}"
        alone = self.run(interpreter, "-c", code)["run"]

        async def whole() -> None:
            await self._client.ask("PUT", f"{self._at}/files/content", params={"path": path}, content=code.encode())
            await self._client.ask("POST", f"{self._at}/processes", json={"argv": [interpreter, path]})
            for folder in ("/workspace", "/output"):
                await self._client.ask("GET", f"{self._at}/files", params={"path": folder})

        return {"write, run, list twice": whole, "run alone": alone}


def thrown_away(client: Client) -> Mapping[str, Call]:
    """A sandbox for one program."""

    async def new() -> None:
        made = await client.made("/v1/sandboxes", "id")
        await client.ask("POST", f"/v1/sandboxes/{made}/processes", json={"argv": ["python3", "-c", PYTHON]})
        await client.ask("DELETE", f"/v1/sandboxes/{made}")

    return {"create, run, delete": new}


async def agentsandbox(client: Client) -> dict[str, Way]:
    """AgentSandbox's."""
    id_ = await client.made("/agentsandbox/v1/sessions", "session_id")
    run, there = "/agentsandbox/v1/execute", Native(client, id_)
    session, python = {"session_id": id_}, {"code": PYTHON, "language": "python"}
    bash = client.posting(run, {"code": "true", "language": "bash"} | session, '"return_code":0')
    return {
        "agentsandbox bash": Way(f"POST {run}", bash, there.program("bash", "true")),
        "agentsandbox python": Way(f"POST {run}", client.posting(run, python | session, '"return_code":0'), there.program("python3", PYTHON)),
        "agentsandbox new": Way("without a session", client.posting(run, python, '"return_code":0'), thrown_away(client), seldom=True),
    }


async def sandboxapi(client: Client) -> dict[str, Way]:
    """SandboxAPI's."""
    id_ = await client.made("/sandboxapi/v1/sessions", "id", language="python3")
    cell, once = f"/sandboxapi/v1/sessions/{id_}/execute", "/sandboxapi/v1/execute"
    natively = {"POST /v1/programs": client.posting("/v1/programs", {"code": PYTHON, "language": "python"}, '"1\\n"')}
    one = client.posting(once, {"code": PYTHON, "language": "python3"}, '"1\\n"')
    return {
        "sandboxapi cell": Way("POST .../execute", client.posting(cell, {"code": PYTHON}, '"1\\n"'), Native(client, id_).cell()),
        "sandboxapi once": Way(f"POST {once}", one, natively, seldom=True),
    }


async def sandbase(client: Client) -> dict[str, Way]:
    """Sandbase's."""
    id_ = await client.made("/sandbase/sandboxes", "sandboxID", templateID="code_interpreter", timeout=3600)
    at, there = f"/sandbase/sandboxes/{id_}", Native(client, id_)
    await client.ask("POST", f"{at}/files", files={"file": ("one", CONTENT)}, data={"path": FILE})
    return {
        "sandbase read": Way("GET .../files", client.reading(f"{at}/files"), there.read()),
        "sandbase run": Way("POST .../processes", client.posting(f"{at}/processes", {"cmd": "true"}, '"exitCode":0'), there.run("true")),
    }


async def pandastack(client: Client) -> dict[str, Way]:
    """PandaStack's."""
    id_ = await client.made("/pandastack/v1/sandboxes", "id", template="code-interpreter", ttl_seconds=3600)
    at, there = f"/pandastack/v1/sandboxes/{id_}", Native(client, id_)
    await client.ask("PUT", f"{at}/fs", params={"path": FILE}, content=CONTENT)
    return {
        "pandastack read": Way("GET .../fs", client.reading(f"{at}/fs"), there.read()),
        "pandastack run": Way("POST .../exec", client.posting(f"{at}/exec", {"cmd": "true"}, '"exit_code":0'), there.run("sh", "-c", "true")),
    }


async def tensorlake(client: Client) -> dict[str, Way]:
    """Tensorlake's."""
    spaces = "/tensorlake/v1/namespaces/default/sandboxes"
    id_ = await client.made(spaces, "sandbox_id", resources={"cpus": 1.0, "memory_mb": 1024}, timeout_secs=3600)
    at, there = f"/tensorlake/sbx/{id_}/api/v1", Native(client, id_)
    await client.ask("PUT", f"{at}/files", params={"path": FILE}, content=CONTENT)
    run = client.posting(f"{at}/processes/run", {"command": "true"}, '"exit_code":')
    return {
        "tensorlake read": Way("GET .../files", client.reading(f"{at}/files"), there.read()),
        "tensorlake run": Way("POST .../processes/run", run, there.run("true", streamed=True)),
    }


async def e2b(client: Client) -> dict[str, Way]:
    """E2B's."""
    id_ = await client.made("/e2b/v2/sandboxes", "sandboxID", templateID="code-interpreter-v1", timeout=3600)
    envd, there = {"E2b-Sandbox-Id": id_, "E2b-Sandbox-Port": "49983"}, Native(client, id_)
    await client.ask("POST", "/e2b/files", params={"path": FILE}, files={"file": ("one", CONTENT)}, headers=envd)
    start = json.dumps({"process": {"cmd": "true", "args": []}, "stdin": False}).encode()
    connect = envd | {"Content-Type": "application/connect+json", "Connect-Protocol-Version": "1"}

    async def run() -> None:
        content = struct.pack(">BI", 0, len(start)) + start
        assert b'"end"' in (await client.ask("POST", "/e2b/process.Process/Start", content=content, headers=connect)).content

    cell = {"code": PYTHON, "context_id": None, "language": None, "env_vars": None}
    execute = client.posting("/e2b/execute", cell, '"1\\n"', headers=envd | {"E2b-Sandbox-Port": "49999"})
    return {
        "e2b read": Way("GET /files", client.reading("/e2b/files", headers=envd), there.read()),
        "e2b run": Way("POST /process.Process/Start", run, there.run("true", streamed=True)),
        "e2b cell": Way("POST /execute", execute, there.cell(streamed=True)),
    }


DOORS = (agentsandbox, sandboxapi, sandbase, pandastack, tensorlake, e2b)

Rounds = dict[str, list[tuple[float, ...]]]
"""Way -> round by round the milliseconds of the door, and of each of the native ways beside it."""


async def measure(count: int, folder: Path, only: str) -> tuple[dict[str, Way], Rounds]:
    """All ways, and what they took."""
    async with AsyncClient(data_dir=folder) as service:
        await service.service.version()
        transport = httpx.AsyncHTTPTransport(uds=str(folder / SOCKET))
        async with httpx.AsyncClient(transport=transport, base_url="http://sandlot", timeout=300) as http:
            try:
                chosen = [door for door in DOORS if only in door.__name__]
                ways = {name: way for door in chosen for name, way in (await door(Client(http))).items()}
                rounds: Rounds = {name: [] for name in ways}
                for number in range(count + 1):
                    for name, way in ways.items():
                        if way.seldom and number % SELDOM:
                            continue
                        taken = await _round(way, number)
                        if number:  # what only the first one pays for is in no figure
                            rounds[name].append(taken)
            finally:
                for made in (await http.get("/v1/sandboxes")).json()["sandboxes"]:
                    await http.delete(f"/v1/sandboxes/{made['id']}")
                await service.service.stop()
    return ways, rounds


async def _round(way: Way, number: int) -> tuple[float, ...]:
    """The milliseconds of the door and of what is beside it, which go first by turns."""
    calls = [way.call, *way.native.values()]
    taken = [0.0] * len(calls)
    first = number // SELDOM if way.seldom else number
    for turn in range(len(calls)):
        which = (first + turn) % len(calls)
        await asyncio.sleep(REFILL_S if way.seldom else BREATH_S)
        started_s = time.perf_counter()
        await calls[which]()
        taken[which] = (time.perf_counter() - started_s) * 1000
    return tuple(taken)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--n", type=int, default=100, help="rounds (default 100, some three minutes)")
    parser.add_argument("--only", default="", help="the doors with this in their names")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    # What is left of the last sandboxes may be removed by the service itself at that moment.
    with tempfile.TemporaryDirectory(prefix="sandlot-bench-", ignore_cleanup_errors=True) as folder:
        ways, rounds = asyncio.run(measure(max(10, options.n), Path(folder), options.only))
    told = [_told(name, way, rounds[name]) for name, way in ways.items()]
    if options.json:
        print(json.dumps(told, indent=2))
        return
    print(f"{'':20}{'door':>9}{'native':>9}{'added':>9}{'ratio':>7}  medians in milliseconds; added: of the differences of the rounds")
    for each in told:
        for beside in each["beside"]:
            figures = f"{each['median_ms']:9.2f}{beside['median_ms']:9.2f}{beside['added_ms']:+9.2f}{each['median_ms'] / beside['median_ms']:7.2f}"
            print(f"{each['way']:20}{figures}  {each['what']}, beside: {beside['what']}")


def _told(name: str, way: Way, rounds: list[tuple[float, ...]]) -> dict[str, Any]:
    """What there is to say of one way."""
    median = statistics.median
    beside = [
        {"what": what, "median_ms": median(each[at] for each in rounds), "added_ms": median(each[0] - each[at] for each in rounds)}
        for at, what in enumerate(way.native, 1)
    ]
    return {"way": name, "what": way.what, "n": len(rounds), "median_ms": median(each[0] for each in rounds), "beside": beside}


if __name__ == "__main__":
    main()
