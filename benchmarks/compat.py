"""Cost of a compatibility API: the same work through a vendor's API and through the native API, in the same sandbox, in turn.

Each call of a vendor is compared with native calls that do the same work. They alternate in every round, and the order changes from round to
round. The results are the median of each, and the median of the differences of the rounds. Both use the sandbox of the vendor and one keep-alive
connection on the unix socket, because sandboxes differ by more than the cost of an API. A pause before each call keeps the remaining work of a
call out of the time of the next. A file is read because nothing in a sandbox takes less time: a difference of a tenth of a millisecond is visible,
which the start of a process in gVisor hides.

AgentSandbox runs a program in a file and returns the files that it created. It is compared with the native calls for that (write, run, list the
directories) and, as a second figure, with the run alone. Run ``python benchmarks/compat.py`` as root.
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
PAUSE_S = 0.02
"""Pause before each call, in which the remaining work of the last call is done."""
REFILL_S = 2.0
"""Pause before each call that takes a sandbox out of a pool, in which the pool is refilled."""
SLOW_ROUNDS = 10
"""Slow calls are measured in one round of this number."""

Call = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Comparison:
    """One call of a vendor and native calls that do the same work.

    Args:
        what: Call of the vendor, for display.
        call: Makes the call and checks its result.
        native: Native calls for display -> native calls in the same sandbox.
        is_slow: Whether the call is measured in one round of ten only.
    """

    what: str
    call: Call
    native: Mapping[str, Call]
    is_slow: bool = False


class Client:
    """Client of one service."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def request(self, method: str, path: str, *, headers: Mapping[str, str] | None = None, **content: Any) -> httpx.Response:  # noqa: ANN401 - httpx's own
        """Send a request that has to succeed."""
        response = await self.http.request(method, path, headers=headers, **content)
        assert response.is_success, f"{method} {path}: {response.status_code} {response.text[:300]}"
        return response

    async def create(self, path: str, field: str, **body: Any) -> str:  # noqa: ANN401 - JSON
        """Create an object and return its id."""
        id_: str = (await self.request("POST", path, json=body)).json()[field]
        return id_

    def reading(self, path: str, query: str = "path", headers: Mapping[str, str] | None = None) -> Call:
        """Return a call that reads the file."""

        async def call() -> None:
            assert (await self.request("GET", path, params={query: FILE}, headers=headers)).content == CONTENT

        return call

    def posting(self, path: str, body: Mapping[str, Any], expected: str, headers: Mapping[str, str] | None = None) -> Call:
        """Return a call that posts JSON; the response has to contain a text."""

        async def call() -> None:
            assert expected in (await self.request("POST", path, json=body, headers=headers)).text

        return call


class Native:
    """Native calls in one sandbox."""

    EVENTS: Mapping[str, str] = {"Accept": "text/event-stream"}

    def __init__(self, client: Client, id_: str) -> None:
        self._client = client
        self._at = f"/v1/sandboxes/{id_}"

    def read(self) -> Mapping[str, Call]:
        """Return a call that reads a file of 1 KiB."""
        return {"read": self._client.reading(f"{self._at}/files/content")}

    def run(self, *argv: str, streamed: bool = False) -> Mapping[str, Call]:
        """Return a call that runs a process."""
        if streamed:
            return {"run, as events": self._client.posting(f"{self._at}/processes", {"argv": argv}, "event: exit", self.EVENTS)}
        return {"run": self._client.posting(f"{self._at}/processes", {"argv": argv}, '"exit_code":0')}

    def cell(self, *, streamed: bool = False) -> Mapping[str, Call]:
        """Return a call that runs code in a context."""
        if streamed:
            return {"cell, as events": self._client.posting(f"{self._at}/code", {"code": PYTHON}, "event: exit", self.EVENTS)}
        return {"cell": self._client.posting(f"{self._at}/code", {"code": PYTHON}, '"1\\n"')}

    def program(self, interpreter: str, code: str) -> Mapping[str, Call]:
        """Return calls that run a program in a file and list its files, and that run a process only."""
        path = f"/tmp/program.{interpreter}"
        alone = self.run(interpreter, "-c", code)["run"]

        async def whole() -> None:
            await self._client.request("PUT", f"{self._at}/files/content", params={"path": path}, content=code.encode())
            await self._client.request("POST", f"{self._at}/processes", json={"argv": [interpreter, path]})
            for folder in ("/workspace", "/output"):
                await self._client.request("GET", f"{self._at}/files", params={"path": folder})

        return {"write, run, list twice": whole, "run alone": alone}


def single_use(client: Client) -> Mapping[str, Call]:
    """Return a call that creates a sandbox for one program."""

    async def new() -> None:
        id_ = await client.create("/v1/sandboxes", "id")
        await client.request("POST", f"/v1/sandboxes/{id_}/processes", json={"argv": ["python3", "-c", PYTHON]})
        await client.request("DELETE", f"/v1/sandboxes/{id_}")

    return {"create, run, delete": new}


async def agentsandbox(client: Client) -> dict[str, Comparison]:
    """Return the comparisons of AgentSandbox."""
    id_ = await client.create("/agentsandbox/v1/sessions", "session_id")
    run, native = "/agentsandbox/v1/execute", Native(client, id_)
    session, python = {"session_id": id_}, {"code": PYTHON, "language": "python"}
    bash = client.posting(run, {"code": "true", "language": "bash"} | session, '"return_code":0')
    return {
        "agentsandbox bash": Comparison(f"POST {run}", bash, native.program("bash", "true")),
        "agentsandbox python": Comparison(f"POST {run}", client.posting(run, python | session, '"return_code":0'), native.program("python3", PYTHON)),
        "agentsandbox new": Comparison("without a session", client.posting(run, python, '"return_code":0'), single_use(client), is_slow=True),
    }


async def sandboxapi(client: Client) -> dict[str, Comparison]:
    """Return the comparisons of SandboxAPI."""
    id_ = await client.create("/sandboxapi/v1/sessions", "id", language="python3")
    cell, once = f"/sandboxapi/v1/sessions/{id_}/execute", "/sandboxapi/v1/execute"
    natively = {"POST /v1/programs": client.posting("/v1/programs", {"code": PYTHON, "language": "python"}, '"1\\n"')}
    one = client.posting(once, {"code": PYTHON, "language": "python3"}, '"1\\n"')
    return {
        "sandboxapi cell": Comparison("POST .../execute", client.posting(cell, {"code": PYTHON}, '"1\\n"'), Native(client, id_).cell()),
        "sandboxapi once": Comparison(f"POST {once}", one, natively, is_slow=True),
    }


async def sandbase(client: Client) -> dict[str, Comparison]:
    """Return the comparisons of Sandbase."""
    id_ = await client.create("/sandbase/sandboxes", "sandboxID", templateID="code_interpreter", timeout=3600)
    at, native = f"/sandbase/sandboxes/{id_}", Native(client, id_)
    await client.request("POST", f"{at}/files", files={"file": ("one", CONTENT)}, data={"path": FILE})
    return {
        "sandbase read": Comparison("GET .../files", client.reading(f"{at}/files"), native.read()),
        "sandbase run": Comparison("POST .../processes", client.posting(f"{at}/processes", {"cmd": "true"}, '"exitCode":0'), native.run("true")),
    }


async def pandastack(client: Client) -> dict[str, Comparison]:
    """Return the comparisons of PandaStack."""
    id_ = await client.create("/pandastack/v1/sandboxes", "id", template="code-interpreter", ttl_seconds=3600)
    at, native = f"/pandastack/v1/sandboxes/{id_}", Native(client, id_)
    await client.request("PUT", f"{at}/fs", params={"path": FILE}, content=CONTENT)
    return {
        "pandastack read": Comparison("GET .../fs", client.reading(f"{at}/fs"), native.read()),
        "pandastack run": Comparison("POST .../exec", client.posting(f"{at}/exec", {"cmd": "true"}, '"exit_code":0'), native.run("sh", "-c", "true")),
    }


async def tensorlake(client: Client) -> dict[str, Comparison]:
    """Return the comparisons of Tensorlake."""
    spaces = "/tensorlake/v1/namespaces/default/sandboxes"
    id_ = await client.create(spaces, "sandbox_id", resources={"cpus": 1.0, "memory_mb": 1024}, timeout_secs=3600)
    at, native = f"/tensorlake/sbx/{id_}/api/v1", Native(client, id_)
    await client.request("PUT", f"{at}/files", params={"path": FILE}, content=CONTENT)
    run = client.posting(f"{at}/processes/run", {"command": "true"}, '"exit_code":')
    return {
        "tensorlake read": Comparison("GET .../files", client.reading(f"{at}/files"), native.read()),
        "tensorlake run": Comparison("POST .../processes/run", run, native.run("true", streamed=True)),
    }


async def e2b(client: Client) -> dict[str, Comparison]:
    """Return the comparisons of E2B."""
    id_ = await client.create("/e2b/v2/sandboxes", "sandboxID", templateID="code-interpreter-v1", timeout=3600)
    envd, native = {"E2b-Sandbox-Id": id_, "E2b-Sandbox-Port": "49983"}, Native(client, id_)
    await client.request("POST", "/e2b/files", params={"path": FILE}, files={"file": ("one", CONTENT)}, headers=envd)
    start = json.dumps({"process": {"cmd": "true", "args": []}, "stdin": False}).encode()
    connect = envd | {"Content-Type": "application/connect+json", "Connect-Protocol-Version": "1"}

    async def run() -> None:
        content = struct.pack(">BI", 0, len(start)) + start
        assert b'"end"' in (await client.request("POST", "/e2b/process.Process/Start", content=content, headers=connect)).content

    cell = {"code": PYTHON, "context_id": None, "language": None, "env_vars": None}
    execute = client.posting("/e2b/execute", cell, '"1\\n"', headers=envd | {"E2b-Sandbox-Port": "49999"})
    return {
        "e2b read": Comparison("GET /files", client.reading("/e2b/files", headers=envd), native.read()),
        "e2b run": Comparison("POST /process.Process/Start", run, native.run("true", streamed=True)),
        "e2b cell": Comparison("POST /execute", execute, native.cell(streamed=True)),
    }


VENDORS = (agentsandbox, sandboxapi, sandbase, pandastack, tensorlake, e2b)

Rounds = dict[str, list[tuple[float, ...]]]
"""Name of a comparison -> milliseconds of the vendor's call and of each native call, round by round."""


async def measure(count: int, folder: Path, only: str) -> tuple[dict[str, Comparison], Rounds]:
    """Return all comparisons and their times."""
    async with AsyncClient(data_dir=folder) as service:
        await service.service.version()
        transport = httpx.AsyncHTTPTransport(uds=str(folder / SOCKET))
        async with httpx.AsyncClient(transport=transport, base_url="http://sandlot", timeout=300) as http:
            try:
                selected = [vendor for vendor in VENDORS if only in vendor.__name__]
                comparisons = {name: each for vendor in selected for name, each in (await vendor(Client(http))).items()}
                rounds: Rounds = {name: [] for name in comparisons}
                for number in range(count + 1):
                    for name, comparison in comparisons.items():
                        if comparison.is_slow and number % SLOW_ROUNDS:
                            continue
                        times_ms = await _round(comparison, number)
                        if number:  # the first round warms up
                            rounds[name].append(times_ms)
            finally:
                for sandbox in (await http.get("/v1/sandboxes")).json()["sandboxes"]:
                    await http.delete(f"/v1/sandboxes/{sandbox['id']}")
                await service.service.stop()
    return comparisons, rounds


async def _round(comparison: Comparison, number: int) -> tuple[float, ...]:
    """Return the milliseconds of the vendor's call and of the native calls, whose order depends on the round."""
    calls = [comparison.call, *comparison.native.values()]
    times_ms = [0.0] * len(calls)
    first = number // SLOW_ROUNDS if comparison.is_slow else number
    for turn in range(len(calls)):
        which = (first + turn) % len(calls)
        await asyncio.sleep(REFILL_S if comparison.is_slow else PAUSE_S)
        started_s = time.perf_counter()
        await calls[which]()
        times_ms[which] = (time.perf_counter() - started_s) * 1000
    return tuple(times_ms)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--n", type=int, default=100, help="rounds (default 100, some three minutes)")
    parser.add_argument("--only", default="", help="vendors whose names contain this text")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    # The service may be removing files of the last sandboxes at that moment.
    with tempfile.TemporaryDirectory(prefix="sandlot-bench-", ignore_cleanup_errors=True) as folder:
        comparisons, rounds = asyncio.run(measure(max(10, options.n), Path(folder), options.only))
    results = [_result(name, comparison, rounds[name]) for name, comparison in comparisons.items()]
    if options.json:
        print(json.dumps(results, indent=2))
        return
    print(f"{'':20}{'vendor':>9}{'native':>9}{'added':>9}{'ratio':>7}  medians in milliseconds; added: of the differences of the rounds")
    for each in results:
        for beside in each["beside"]:
            figures = f"{each['median_ms']:9.2f}{beside['median_ms']:9.2f}{beside['added_ms']:+9.2f}{each['median_ms'] / beside['median_ms']:7.2f}"
            print(f"{each['way']:20}{figures}  {each['what']}, native: {beside['what']}")


def _result(name: str, comparison: Comparison, rounds: list[tuple[float, ...]]) -> dict[str, Any]:
    """Return the result of one comparison."""
    median = statistics.median
    beside = [
        {"what": what, "median_ms": median(each[at] for each in rounds), "added_ms": median(each[0] - each[at] for each in rounds)}
        for at, what in enumerate(comparison.native, 1)
    ]
    return {"way": name, "what": comparison.what, "n": len(rounds), "median_ms": median(each[0] for each in rounds), "beside": beside}


if __name__ == "__main__":
    main()
