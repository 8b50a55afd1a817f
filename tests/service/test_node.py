"""Capacity of a node, and the control group of its service."""

from __future__ import annotations

import re
import shutil
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from sandlot.host.cgroups import detect_layout
from sandlot.host.service_cgroup import OOM_SCORE, PREFIX, weight
from sandlot.model.specs import MIB
from tests.support.localservice import TEMPLATE, LocalService, local_service
from tests.support.traces import NOTHING, node_of, sandbox_pids, settle

ROOM_BYTES = 640 * MIB


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    """A node that has room for two sandboxes of a little less than half of what it has."""
    found = re.search(r"MemTotal: +(\d+) kB", Path("/proc/meminfo").read_text())
    assert found is not None
    ratio = max(0.01, ROOM_BYTES / 1024 / int(found[1]))
    shares = {"SANDLOT_MEMORY_RATIO": f"{ratio:.4f}", "SANDLOT_MEMORY_RESERVE_BYTES": "0", "SANDLOT_DISK_RATIO": "1"}
    with local_service(shares, isolation="container") as running:
        yield running


def http(service: LocalService) -> httpx.Client:
    return httpx.Client(transport=httpx.HTTPTransport(uds=str(service.data_dir / "sandlot.sock")), base_url="http://sandlot", timeout=120)


def capacity(service: LocalService) -> dict[str, Any]:
    return dict(service.client.transport.request("GET", "/v1/capacity"))


def half(service: LocalService) -> dict[str, Any]:
    return {
        "template": TEMPLATE,
        "isolation": "container",
        "limits": {"memory_bytes": capacity(service)["allocatable"]["memory_bytes"] * 9 // 20, "disk_bytes": 64 * MIB, "pids": 64},
    }


def test_full_node_is_busy_and_the_sdk_retries_until_a_sandbox_is_removed(service: LocalService) -> None:
    body = half(service)
    limits, before = body["limits"], capacity(service)["reserved"]
    with http(service) as client:
        made = [client.post("/v1/sandboxes", json=body).json()["id"] for _ in range(2)]
        found = capacity(service)
        assert found["reserved"]["memory_bytes"] == 2 * limits["memory_bytes"]
        assert found["reserved"]["memory_bytes"] + found["available"]["memory_bytes"] == found["allocatable"]["memory_bytes"]
        assert found["reserved"]["disk_bytes"] >= 2 * limits["disk_bytes"]
        assert found["reserved"]["pids"] >= 2 * limits["pids"]
        assert found["sandboxes"] == 2
        refused = client.post("/v1/sandboxes", json=body)
        assert (refused.status_code, refused.json()["code"], refused.json()["retryable"]) == (503, "busy", True)
        assert int(refused.headers["retry-after"]) > 0
        assert "are not reserved" in refused.json()["detail"]
        with ThreadPoolExecutor(1) as pool:
            third = pool.submit(service.create, memory=limits["memory_bytes"], disk=limits["disk_bytes"], pids=limits["pids"])
            while len([record for record in service.records() if record.get("status") == 503]) < 2:
                assert not third.done()
                time.sleep(0.1)
            for id_ in made:
                assert client.delete(f"/v1/sandboxes/{id_}").status_code == 204
            with third.result() as sandbox:
                assert sandbox.commands.run("echo there").stdout == "there\n"
    settle(service.traces, NOTHING)
    # What the database may still take stays reserved, and becomes less as the database grows.
    settle(lambda: capacity(service)["reserved"]["disk_bytes"] <= before["disk_bytes"], True)
    assert {**capacity(service)["reserved"], "disk_bytes": 0} == {"memory_bytes": 0, "disk_bytes": 0, "pids": 0}


def test_request_above_the_capacity_is_invalid(service: LocalService) -> None:
    with http(service) as client:
        most = {"memory_bytes": capacity(service)["allocatable"]["memory_bytes"], "disk_bytes": shutil.disk_usage(service.data_dir).total}
        for name, has in most.items():
            refused = client.post("/v1/sandboxes", json={"template": TEMPLATE, "limits": {**half(service)["limits"], name: has + MIB}})
            assert (refused.status_code, refused.json()["code"], refused.json()["retryable"]) == (400, "invalid_request", False)
            assert "retry-after" not in refused.headers
            assert refused.json()["fields"]["field"] == f"limits.{name}"
        assert capacity(service)["sandboxes"] == 0


def test_service_has_its_own_control_group_and_children_leave_it(service: LocalService) -> None:
    group = f"/sandlot/{PREFIX}{node_of(service.data_dir)}"
    layout = detect_layout()
    setting = weight(layout.version)
    folder = layout.home("cpu") / group.lstrip("/")
    assert (folder / setting.file).read_text().strip() == setting.value
    assert [line.rpartition(":")[2] for line in Path(f"/proc/{service.pid}/cgroup").read_text().splitlines()].count(group) >= 1
    with service.create(memory=256 * MIB, isolation="gvisor"):
        assert (folder / "cgroup.procs").read_text().split() == [str(service.pid)]
        scores = {int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in sandbox_pids(service.data_dir)}
        assert max(scores) >= 900
        assert min(scores) >= 0
    own = int(Path(f"/proc/{service.pid}/oom_score_adj").read_text())
    missing = [record["missing"] for record in service.records() if record["event"] == "service.unprotected"]
    assert own == OOM_SCORE or any("score" in what for what in missing), missing
    assert not any("group" in what for what in missing), missing


@pytest.mark.slow
def test_control_group_is_removed_also_after_a_kill(service: LocalService) -> None:
    name = f"sandlot/{PREFIX}{node_of(service.data_dir)}"
    groups = [hierarchy.mount / name for hierarchy in detect_layout().hierarchies]
    assert any(group.is_dir() for group in groups)
    service.end(signal.SIGKILL)
    service.start()
    # A child that looks at something for it is there for a moment.
    settle(lambda: any((group / "cgroup.procs").read_text().split() == [str(service.pid)] for group in groups if group.is_dir()), expected=True)
    assert service.end() == 0
    assert not any(group.is_dir() for group in groups)
    service.start()
