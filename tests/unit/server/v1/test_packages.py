"""Installing over HTTP: what is refused, what a package manager says, and when the indexes are open."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest

from sandlot.link.services import GuestStream
from sandlot.model.access import OPERATOR, Principal, Quota
from sandlot.model.network import NetworkMode, NetworkPolicy
from sandlot.model.sandboxes import CreateSandboxParams
from sandlot.protocol.schema import PACKAGES_PORT
from tests.support.cases import cases
from tests.support.http import events, output, problem, told
from tests.support.service import BASE, Bench, bench, client, tcp_client
from tests.support.until import until

SAYS = f"""import sys, urllib.request as r
print(r.build_opener(r.ProxyHandler({{}})).open("http://127.0.0.1:{PACKAGES_PORT}/").read().decode(), flush=True)"""
"""A program that asks the index."""


class Index:
    """Answers whether it may: in place of the cache, whose own affair indexes are."""

    def __init__(self) -> None:
        self.answers: list[bool] = []
        self.asked_by: set[str] = set()

    async def serve(self, stream: GuestStream, *, sandbox: str, allowed: Callable[[], bool]) -> None:
        self.asked_by.add(sandbox)
        asked = b""
        async for piece in stream:
            asked += piece
            while b"\r\n\r\n" in asked:
                asked = asked.partition(b"\r\n\r\n")[2]
                self.answers.append(allowed())
                body = b"open" if allowed() else b"closed"
                await stream.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))


@pytest.fixture
def index() -> Index:
    return Index()


@pytest.fixture
async def at(tmp_path: Path, index: Index) -> AsyncIterator[Bench]:
    async with bench(tmp_path, packages=index) as opened:
        yield opened


@pytest.fixture
async def http(at: Bench) -> AsyncIterator[httpx.AsyncClient]:
    async with client(at.service) as asking:
        yield asking


async def put_manager(http: httpx.AsyncClient, url: str, name: str, script: str) -> None:
    """A program in a package manager's place: what real ones do is tested on real sandboxes."""
    path = f"/usr/local/bin/{name}"
    made = await http.post(f"{url}/processes", json={"command": f"cat > {path}; chmod 755 {path}", "stdin": script, "user": "root"})
    assert made.json()["exit_code"] == 0


@pytest.mark.real_guest
async def test_what_a_manager_says_is_the_answer_whatever_came_of_it(http: httpx.AsyncClient, url: str) -> None:
    await put_manager(http, url, "uv", '#!/bin/sh\npwd; id -un; for word; do echo "<$word>"; done; echo "no such thing" >&2; exit 7\n')
    body = {"manager": "pip", "packages": ["requests>=2, <3", "tabulate[widechars]"]}
    done = (await http.post(f"{url}/packages", json=body)).json()
    assert (done["exit_code"], done["reason"], done["stderr"]) == (7, "exited", "no such thing\n")
    lines = done["stdout"].splitlines()
    assert lines[:2] == ["/", "user"]
    assert lines[-3:] == ["<-->", "<requests>=2, <3>", "<tabulate[widechars]>"]
    all_told = await told(http, f"{url}/packages", {**body, "user": "root"})
    assert [name for name, _ in all_told if name != "output"] == ["started", "exit"]
    assert output(all_told).splitlines()[1] == b"root"
    assert all_told[-1][1]["exit_code"] == 7
    ndjson = await http.post(f"{url}/packages", json=body, headers={"Accept": "application/x-ndjson"})
    assert ndjson.headers["content-type"].startswith("application/x-ndjson")
    assert '"exit"' in ndjson.text.splitlines()[-1]
    logged = (await http.get("/v1/executions", params={"limit": 2})).json()["executions"]
    assert [(run["kind"], run["argv"], run["exit_code"]) for run in logged] == [("command", ["pip", "install", *body["packages"]], 7)] * 2


@pytest.mark.real_guest
async def test_one_that_takes_too_long_is_ended(http: httpx.AsyncClient, url: str) -> None:
    await put_manager(http, url, "uv", "#!/bin/sh\necho begun; sleep 60\n")
    done = (await http.post(f"{url}/packages", json={"packages": ["a"], "timeout": 1})).json()
    assert (done["reason"], done["timed_out"], done["exit_code"], done["stdout"]) == ("timeout", True, 124, "begun\n")


@cases(
    "body",
    [
        {},
        {"packages": []},
        {"packages": ["-c x"]},
        {"packages": ["https://example.com/x.whl"]},
        {"packages": ["x"], "manager": "cargo"},
        {"packages": ["x"], "user": "nobody"},
        {"packages": ["x"], "options": ["--pre"]},
        {"packages": ["x"] * 101},
        {"packages": "x"},
        {"packages": ["x"], "timeout": 0},
    ],
)
async def test_what_makes_no_sense_is_refused_and_nothing_runs(http: httpx.AsyncClient, url: str, body: dict[str, object]) -> None:
    problem(await http.post(f"{url}/packages", json=body), 400, "invalid_request")
    assert (await http.get(f"{url}/processes")).json()["processes"] == []


@pytest.mark.real_guest
async def test_package_access_without_network_is_open_during_an_install(at: Bench, http: httpx.AsyncClient) -> None:
    sandbox = await at.sandboxes.create(OPERATOR, CreateSandboxParams(template="base", limits=BASE.limits, network=NetworkPolicy(NetworkMode.NONE)))
    url = f"/v1/sandboxes/{sandbox.id}"
    say = {"argv": ["python3", "-c", SAYS]}
    await put_manager(http, url, "uv", f"#!/usr/bin/python3\n{SAYS}\nimport time\nwhile '-fast' not in sys.argv[-1]: time.sleep(0.1)\n")
    assert (await http.post(f"{url}/processes", json=say)).json()["stdout"] == "closed\n"
    assert (await http.post(f"{url}/packages", json={"packages": ["a-fast"]})).json()["stdout"] == "open\n"
    assert (await http.post(f"{url}/processes", json=say)).json()["stdout"] == "closed\n"
    async with http.stream("POST", f"{url}/packages", json={"packages": ["a"]}, headers={"Accept": "text/event-stream"}) as following:
        async for name, told_ in events(following):
            if name == "output":
                assert told_["data"] == "open\n"
                break
    await until(lambda: not at.node.processes.executions.access.is_open(sandbox))
    assert (await http.post(f"{url}/processes", json=say)).json()["stdout"] == "closed\n"


@pytest.mark.real_guest
async def test_key_without_installs_gets_the_managers_output(at: Bench) -> None:
    record, secret = await at.service.api_keys.create("closed", quota=Quota(installs=False))
    principal = Principal(owner=record.id, name="closed", quota=record.quota)
    sandbox = await at.sandboxes.create(principal, CreateSandboxParams(template="base", limits=BASE.limits, network=NetworkPolicy(NetworkMode.NONE)))
    url = f"/v1/sandboxes/{sandbox.id}"
    async with tcp_client(at.service, secret) as http:
        await put_manager(http, url, "uv", f"#!/usr/bin/python3\n{SAYS}\nsys.exit(2)\n")
        done = (await http.post(f"{url}/packages", json={"packages": ["a"]})).json()
    assert (done["exit_code"], done["stdout"]) == (2, "closed\n")


async def test_an_install_is_counted_as_a_run(at: Bench) -> None:
    record, secret = await at.service.api_keys.create("few", quota=Quota(executions_per_month=0))
    sandbox = await at.sandboxes.create(Principal(owner=record.id, name="few", quota=record.quota), BASE)
    async with tcp_client(at.service, secret) as http:
        problem(await http.post(f"/v1/sandboxes/{sandbox.id}/packages", json={"packages": ["a"]}), 429, "quota_exceeded")
