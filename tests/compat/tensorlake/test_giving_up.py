"""Clients of Tensorlake's API that give up while their sandbox is made: none is left behind. Plain HTTP, since a client of theirs waits."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Iterator, Mapping

import httpx
import pytest

from tests.compat.tensorlake.asking import until_so
from tests.support.tcpservice import TcpService
from tests.support.traces import settle

SANDBOXES = "/tensorlake/v1/namespaces/default/sandboxes"
NONE: list[str] = []
TIMES = 5
RESOURCES = {"cpus": 1.0, "memory_mb": 304}
"""Nothing that waits in a pool is like it: it is made while its client looks on."""


@pytest.fixture(scope="module")
def its(service: TcpService) -> Iterator[httpx.Client]:
    """Of a key that has nothing else."""
    headers = {"Authorization": f"Bearer {service.key('giving-up')}"}
    with httpx.Client(base_url=service.url, headers=headers, timeout=60) as made:
        yield made


def listed(its: httpx.Client) -> list[str]:
    """The ids of all sandboxes that the key has."""
    return [each["id"] for each in its.get(SANDBOXES).json()["sandboxes"]]


def given_up(service: TcpService, its: httpx.Client, path: str, body: Mapping[str, object], there: list[str]) -> None:
    """Ask for what makes sandboxes, and hang up once one is in the making; again where the answer was quicker."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: {its.headers['authorization']}\r\ncontent-type: application/json\r\n"
    for _ in range(TIMES):
        with socket.create_connection(("127.0.0.1", service.port)) as client:
            client.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
            until_so(lambda: listed(its) != there)
            if not select.select([client], [], [], 0)[0]:
                return
        for id_ in {*listed(its)} - {*there}:
            assert its.delete(f"{SANDBOXES}/{id_}").status_code < 300
        settle(lambda: listed(its), there)
    raise AssertionError("it was made too quickly, each time")


def test_aborted_create_leaves_no_sandbox(service: TcpService, its: httpx.Client) -> None:
    asked = {"resources": RESOURCES, "name": "given-up"}
    given_up(service, its, SANDBOXES, asked, NONE)
    settle(lambda: listed(its), NONE)
    made = its.post(SANDBOXES, json=asked)
    assert made.status_code == 200, made.text  # the name is free
    assert its.delete(f"{SANDBOXES}/{made.json()['sandbox_id']}").status_code < 300


def test_aborted_claim_leaves_no_sandbox(service: TcpService, its: httpx.Client) -> None:
    pools = SANDBOXES.replace("sandboxes", "sandbox-pools")
    pool = its.post(pools, json={"image": "base", "resources": RESOURCES, "warm_containers": 0}).json()["pool_id"]
    given_up(service, its, f"{pools}/{pool}/sandboxes", {}, NONE)
    settle(lambda: listed(its), NONE)
    assert its.delete(f"{pools}/{pool}").status_code < 300


def test_aborted_copy_leaves_only_its_running_parent(service: TcpService, its: httpx.Client) -> None:
    parent = its.post(SANDBOXES, json={"resources": RESOURCES}).json()["sandbox_id"]
    given_up(service, its, f"{SANDBOXES}/{parent}/copy?times=2", {}, [parent])
    settle(lambda: listed(its), [parent])
    ran = its.post(f"/tensorlake/sbx/{parent}/api/v1/processes/run", json={"command": "hostname"})
    assert parent in ran.text
    assert its.delete(f"{SANDBOXES}/{parent}").status_code < 300


def test_aborted_restore_leaves_no_sandbox(service: TcpService, its: httpx.Client) -> None:
    parent = its.post(SANDBOXES, json={"resources": RESOURCES}).json()["sandbox_id"]
    taken = its.post(f"{SANDBOXES}/{parent}/snapshot", json={"snapshot_type": "filesystem"}).json()["snapshot_id"]
    assert its.delete(f"{SANDBOXES}/{parent}").status_code < 300
    settle(lambda: listed(its), NONE)
    given_up(service, its, SANDBOXES, {"snapshot_id": taken}, NONE)
    settle(lambda: listed(its), NONE)
    assert its.delete(SANDBOXES.replace("sandboxes", f"snapshots/{taken}")).status_code < 300
