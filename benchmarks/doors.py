"""What a door adds: the same run through a vendor's API and through the native one, on the same sandboxes.

Every variant takes its turn in every round; medians are what counts. Both ways go over the unix socket, so that the difference is the door's
own: of AgentSandbox's its program file, its look for files that the run made and its translation, of SandboxAPI's its translation alone.
``python benchmarks/doors.py`` as root.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx

from sandlot.sdk import AsyncClient
from sandlot.sdk.config import SOCKET

PYTHON = "print(1)"
BASH = "echo 1"

#: figure -> (what it is, the figure that it is compared with).
FIGURES: dict[str, tuple[str, str | None]] = {
    "native bash": ("POST .../processes: bash -c 'echo 1'", None),
    "door bash": ("POST /agentsandbox/v1/execute in a session, the same", "native bash"),
    "native python": ("POST .../processes: python3 -c 'print(1)'", None),
    "door python": ("POST /agentsandbox/v1/execute in a session, the same", "native python"),
    "door python, files": ("the same, where the run makes two files of 1 KiB, which are kept", "native python"),
    "native new": ("create, run python, delete", None),
    "door new": ("POST /agentsandbox/v1/execute without a session", "native new"),
    "native cell": ("POST .../code: print(1) in the default context", None),
    "sandboxapi cell": ("POST /sandboxapi/v1/sessions/{session}/execute, the same", "native cell"),
    "native once": ("POST /v1/execute: python, print(1)", "native new"),
    "sandboxapi once": ("POST /sandboxapi/v1/execute, the same", "native once"),
}


class Ways:
    """Each variant, as one call.

    Args:
        http: The service.
        sandbox: One that waits, for the native way.
        session: One that waits, for AgentSandbox's door.
        interpreter: One that waits, for SandboxAPI's.
    """

    def __init__(self, http: httpx.AsyncClient, sandbox: str, session: str, interpreter: str) -> None:
        self._http = http
        self._sandbox = sandbox
        self._session = session
        self._interpreter = interpreter

    async def native(self, *argv: str, sandbox: str | None = None) -> None:
        """A process by the native API."""
        answer = await self._http.post(f"/v1/sandboxes/{sandbox or self._sandbox}/processes", json={"argv": list(argv)})
        assert answer.json()["exit_code"] == 0, answer.text

    async def door(self, code: str, language: str, *, session: bool = True) -> None:
        """The same by the door."""
        body = {"code": code, "language": language, **({"session_id": self._session} if session else {})}
        answer = await self._http.post("/agentsandbox/v1/execute", json=body)
        assert answer.json()["return_code"] == 0, answer.text

    async def ask(self, path: str, **body: str) -> None:
        """Python that prints a line, by whoever answers there."""
        answer = await self._http.post(path, json={"code": PYTHON, **body})
        assert answer.json()["stdout"] == "1\n", answer.text

    async def new(self) -> None:
        """A sandbox for one run, by the native API."""
        made = (await self._http.post("/v1/sandboxes", json={})).json()["id"]
        await self.native("python3", "-c", PYTHON, sandbox=made)
        await self._http.delete(f"/v1/sandboxes/{made}")

    def all(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """By the name of their figure."""
        makes = "for name in 'ab': open(name, 'w').write('x' * 1024)"
        return {
            "native bash": lambda: self.native("bash", "-c", BASH),
            "door bash": lambda: self.door(BASH, "bash"),
            "native python": lambda: self.native("python3", "-c", PYTHON),
            "door python": lambda: self.door(PYTHON, "python"),
            "door python, files": lambda: self.door(makes, "python"),
            "native new": self.new,
            "door new": lambda: self.door(PYTHON, "python", session=False),
            "native cell": lambda: self.ask(f"/v1/sandboxes/{self._sandbox}/code"),
            "sandboxapi cell": lambda: self.ask(f"/sandboxapi/v1/sessions/{self._interpreter}/execute"),
            "native once": lambda: self.ask("/v1/execute", language="python"),
            "sandboxapi once": lambda: self.ask("/sandboxapi/v1/execute", language="python3"),
        }


async def measure(count: int, folder: Path) -> dict[str, list[float]]:
    """Milliseconds of every variant, round by round."""
    figures: dict[str, list[float]] = {name: [] for name in FIGURES}
    async with AsyncClient(data_dir=folder) as client:
        await client.version()
        transport = httpx.AsyncHTTPTransport(uds=str(folder / SOCKET))
        async with httpx.AsyncClient(transport=transport, base_url="http://sandlot", timeout=300) as http:
            try:
                sandbox = (await http.post("/v1/sandboxes", json={"timeout": 3600})).json()["id"]
                session = (await http.post("/agentsandbox/v1/sessions", json={})).json()["session_id"]
                interpreter = (await http.post("/sandboxapi/v1/sessions", json={"language": "python3"})).json()["id"]
                ways = Ways(http, sandbox, session, interpreter).all()
                for number in range(count + 1):
                    for name, way in ways.items():
                        started_s = time.perf_counter()
                        await way()
                        if number:  # what only the first one pays for is in no figure
                            figures[name].append((time.perf_counter() - started_s) * 1000)
                await http.delete(f"/v1/sandboxes/{sandbox}")
                await http.delete(f"/agentsandbox/v1/sessions/{session}")
                await http.delete(f"/sandboxapi/v1/sessions/{interpreter}")
            finally:
                await client.stop_service()
    return figures


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--n", type=int, default=15, help="rounds (default 15, about a minute)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sandlot-bench-") as folder:
        figures = asyncio.run(measure(options.n, Path(folder)))
    medians = {name: statistics.median(values) for name, values in figures.items()}
    if options.json:
        print(
            json.dumps(
                {name: {"what": FIGURES[name][0], "n": options.n, "median_ms": round(median, 2)} for name, median in medians.items()}, indent=2
            )
        )
        return
    for name, (what, beside) in FIGURES.items():
        added = "" if beside is None else f"{medians[name] - medians[beside]:+8.1f} to {beside}"
        print(f"{name:20}{medians[name]:9.1f} {min(figures[name]):9.1f} {max(figures[name]):9.1f}  {added:28} {what}")
    print("milliseconds: median, least, most")


if __name__ == "__main__":
    main()
