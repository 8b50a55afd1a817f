"""Promise: each network setting of a vendor's client has its effect inside the sandbox. The clients are the vendors' own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import requests
from e2b import Sandbox as E2BSandbox
from e2b import SandboxNetworkUpdate
from tensorlake.sandbox import NetworkConfig, SandboxClient

from tests.support.environments import create_environment
from tests.support.internet import RESOLVER, Internet, http_reply
from tests.support.internet_service import NETNS, RESOLV_CONF
from tests.support.tcpservice import TcpService, tcp_service

ADDRESS, OTHER = "23.10.0.1", "23.10.0.2"
HOSTS = ("a.example.com", "b.example.com", "x.a.example.com", ADDRESS, OTHER)
COMMAND = f"for host in {' '.join(HOSTS)}; do curl -s -o /dev/null -m 20 -w '%{{http_code}} ' http://$host/; done; true"
ALL = {"a.example.com", "b.example.com", "x.a.example.com", ADDRESS, OTHER}
EVERYWHERE = "0.0.0.0/0"
CREATED: Sequence[tuple[str, Mapping[str, Any], set[str]]] = [
    ("nothing", {}, ALL),
    ("open", {"allow_internet_access": True}, ALL),
    ("closed", {"allow_internet_access": False}, set()),
    ("all denied", {"network": {"deny_out": [EVERYWHERE]}}, set()),
    ("one name allowed", {"network": {"allow_out": ["a.example.com"], "deny_out": [EVERYWHERE]}}, {"a.example.com"}),
    ("subdomains allowed", {"network": {"allow_out": ["*.a.example.com"], "deny_out": [EVERYWHERE]}}, {"x.a.example.com"}),
    ("address denied", {"network": {"deny_out": [ADDRESS]}}, {"b.example.com", OTHER}),
    ("allow before deny", {"network": {"allow_out": [ADDRESS], "deny_out": ["23.10.0.0/16"]}}, {ADDRESS, "a.example.com", "x.a.example.com"}),
]
"""Arguments of E2B's ``Sandbox.create``, and the hosts that can be reached."""
CHANGED: Sequence[tuple[SandboxNetworkUpdate, set[str]]] = (
    ({"allow_out": ["a.example.com"], "deny_out": [EVERYWHERE]}, {"a.example.com"}),
    ({"deny_out": [OTHER]}, {"a.example.com", "x.a.example.com", ADDRESS}),
    ({"allow_internet_access": False}, set()),
    ({}, ALL),
)
"""Arguments of ``update_network`` in this order, and the hosts that can then be reached."""
OLDEST = "tests/environments/clients/e2b-2.31.lock"
"""Lock of the oldest supported release of E2B's package. This release sends ``allow_internet_access: true`` unless a program says otherwise."""
PROGRAM = Path(__file__).with_name("e2b_program.py")


@pytest.fixture(scope="module")
def service(net: Internet) -> Iterator[TcpService]:
    """A service on TCP that allows all modes. The clients reach it by the same port of the host."""
    net.names |= {"a.example.com": [ADDRESS], "b.example.com": [OTHER], "x.a.example.com": [ADDRESS]}
    net.serve((ADDRESS, 80), (OTHER, 80), reply=http_reply)
    with tempfile.TemporaryDirectory() as folder:
        resolv_conf = Path(folder) / "resolv.conf"
        resolv_conf.write_text(f"nameserver {RESOLVER}\noptions timeout:2 attempts:1\n")
        env = {NETNS: net.inside.path, RESOLV_CONF: str(resolv_conf), "SANDLOT_NETWORK_ALLOWED": "none,packages,allowlist,internet"}
        with tcp_service(env, program="tests.support.internet_service") as running:
            port = running.port
            net.forward(socket.create_server(("127.0.0.1", port)), lambda: net.inside.call(lambda: socket.create_connection(("127.0.0.1", port))))
            yield running


@pytest.fixture(scope="module")
def key(service: TcpService) -> str:
    return service.key("clients")


@pytest.fixture
def e2b(service: TcpService, key: str) -> Iterator[Callable[..., E2BSandbox]]:
    """Create sandboxes by E2B's client."""
    made = []

    def create(**options: Any) -> E2BSandbox:  # noqa: ANN401 - arguments of the client
        made.append(E2BSandbox.create(template="base", api_key=key, api_url=f"{service.url}/e2b", sandbox_url=f"{service.url}/e2b", **options))
        return made[-1]

    yield create
    for sandbox in made:
        sandbox.kill()


@pytest.fixture(scope="module")
def tensorlake(service: TcpService, key: str) -> Iterator[SandboxClient]:
    with pytest.deprecated_call(), SandboxClient(api_url=f"{service.url}/tensorlake", api_key=key) as made:
        yield made


@pytest.fixture(scope="module")
def oldest_e2b(service: TcpService, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[list[set[str]]]]:
    """Run the program with the oldest package: return the hosts that each sandbox reaches, after its create and after each change."""
    python = create_environment(OLDEST, tmp_path_factory.mktemp("oldest") / "venv")

    def run(key: str, *entries: tuple[Mapping[str, Any], Sequence[SandboxNetworkUpdate]]) -> list[list[set[str]]]:
        url = f"{service.url}/e2b"
        env = {**os.environ, "E2B_API_KEY": key, "E2B_API_URL": url, "E2B_SANDBOX_URL": url}
        argv = [str(python), str(PROGRAM), json.dumps([COMMAND, entries])]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=500, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return [[hosts_of(output) for output in outputs] for outputs in json.loads(done.stdout)]

    return run


def reached(run: Callable[[str], str]) -> set[str]:
    """Return the hosts that a sandbox reaches, by a function that runs a shell command in it."""
    return hosts_of(run(COMMAND))


def hosts_of(output: str) -> set[str]:
    """Return the hosts that a sandbox reaches, from the output of the command."""
    statuses = output.split()
    assert len(statuses) == len(HOSTS), statuses
    return {host for host, status in zip(HOSTS, statuses, strict=True) if status == "200"}


@pytest.mark.parametrize("options, hosts", [pytest.param(options, hosts, id=name) for name, options, hosts in CREATED])
def test_network_of_an_e2b_sandbox(e2b: Callable[..., E2BSandbox], options: dict[str, Any], hosts: set[str]) -> None:
    sandbox = e2b(**options)
    assert reached(lambda command: sandbox.commands.run(command, timeout=120).stdout) == hosts


def test_network_of_an_e2b_sandbox_is_replaced(e2b: Callable[..., E2BSandbox]) -> None:
    sandbox = e2b()
    for change, hosts in CHANGED:
        sandbox.update_network(change)
        assert reached(lambda command: sandbox.commands.run(command, timeout=120).stdout) == hosts, change


def test_refusal_of_an_e2b_sandbox_is_approved_by_the_command_line(service: TcpService, e2b: Callable[..., E2BSandbox]) -> None:
    def sandlot(*arguments: str) -> Any:  # noqa: ANN401 - JSON
        argv = [sys.executable, "-m", "sandlot.cli", "network", *arguments, "--json"]
        return json.loads(subprocess.run(argv, env=service.environ, check=True, capture_output=True, timeout=60).stdout)

    sandbox = e2b(network={"allow_out": ["a.example.com"], "deny_out": [EVERYWHERE]})
    assert reached(lambda command: sandbox.commands.run(command, timeout=120).stdout) == {"a.example.com"}
    refusals = {each["host"]: each["id"] for each in sandlot("info", sandbox.sandbox_id)["refusals"]}
    assert set(refusals) == ALL - {"a.example.com"}

    sandlot("approve", sandbox.sandbox_id, refusals["b.example.com"])
    assert reached(lambda command: sandbox.commands.run(command, timeout=120).stdout) == {"a.example.com", "b.example.com"}

    sandbox.update_network({"allow_out": ["a.example.com"], "deny_out": [EVERYWHERE]})
    assert reached(lambda command: sandbox.commands.run(command, timeout=120).stdout) == {"a.example.com"}


@pytest.mark.slow
def test_oldest_e2b_client_gets_the_most_open_mode_that_is_allowed(service: TcpService, oldest_e2b: Callable[..., list[list[set[str]]]]) -> None:
    assert oldest_e2b(service.key("oldest", "--e2b"), ({}, ())) == [[ALL]]
    assert oldest_e2b(service.key("oldest-packages", "--e2b", "--max-network", "packages"), ({}, ())) == [[set()]]


@pytest.mark.soak
def test_network_of_a_sandbox_of_the_oldest_e2b_client(service: TcpService, oldest_e2b: Callable[..., list[list[set[str]]]]) -> None:
    entries = [(options, ()) for _, options, _ in CREATED]
    found = oldest_e2b(service.key("oldest-created", "--e2b"), *entries, ({}, [change for change, _ in CHANGED]))
    assert found == [*([hosts] for _, _, hosts in CREATED), [ALL, *(hosts for _, hosts in CHANGED)]]


@pytest.mark.parametrize(
    "options, hosts",
    [
        ({}, ALL),
        ({"allow_internet_access": True}, ALL),
        ({"allow_internet_access": False}, set()),
        ({"allow_out": ["a.example.com"]}, {"a.example.com"}),
        ({"allow_out": ["23.10.0.0/24"]}, {ADDRESS, OTHER}),
        ({"deny_out": ["a.example.com"]}, ALL - {"a.example.com"}),
        ({"deny_out": [OTHER]}, {"a.example.com", "x.a.example.com", ADDRESS}),
    ],
    ids=["nothing", "open", "closed", "name allowed", "network allowed", "name denied", "address denied"],
)
def test_network_of_a_tensorlake_sandbox(tensorlake: SandboxClient, options: dict[str, Any], hosts: set[str]) -> None:
    id_ = tensorlake.create(image="base", **options).sandbox_id
    sandbox = tensorlake.connect(id_)
    try:
        assert reached(lambda command: str(sandbox.run("sh", ["-c", command]).stdout)) == hosts
    finally:
        tensorlake.delete(id_)


def test_network_of_a_tensorlake_sandbox_is_replaced(tensorlake: SandboxClient) -> None:
    id_ = tensorlake.create(image="base", allow_out=["a.example.com"]).sandbox_id
    sandbox = tensorlake.connect(id_)
    try:
        for network, hosts in (
            (NetworkConfig(allow_out=["b.example.com"]), {"b.example.com"}),
            (NetworkConfig(allow_internet_access=False), set()),
            (NetworkConfig(deny_out=["b.example.com"]), ALL - {"b.example.com"}),
        ):
            tensorlake.update_sandbox(id_, network=network)
            assert reached(lambda command: str(sandbox.run("sh", ["-c", command]).stdout)) == hosts
    finally:
        tensorlake.delete(id_)


@pytest.mark.parametrize("options, hosts", [({}, ALL), ({"allowInternetAccess": True}, ALL), ({"allowInternetAccess": False}, set())])
def test_network_of_a_sandbase_sandbox(service: TcpService, key: str, options: dict[str, Any], hosts: set[str]) -> None:
    with requests.Session() as session:
        session.headers["Authorization"] = f"Bearer {key}"
        url = f"{service.url}/sandbase/sandboxes"
        created = session.post(url, json={"templateID": "base", **options}, timeout=60)
        assert created.status_code == 201, created.text
        one = f"{url}/{created.json()['sandboxID']}"

        def run(command: str) -> str:
            done = session.post(f"{one}/processes", json={"cmd": "sh", "args": ["-c", command], "timeout": 120}, timeout=150)
            return str(done.json()["stdout"])

        assert reached(run) == hosts
        session.delete(one, timeout=60)
