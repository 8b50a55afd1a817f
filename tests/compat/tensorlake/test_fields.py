"""What the fields of Tensorlake's requests do inside of a sandbox, or that they are refused: those that no other test of its client looks at.

Its client sends them where it can; what it cannot send goes over plain HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import httpx
import pytest
import websocket
from tensorlake.sandbox import OutputMode, RemoteAPIError, Sandbox, SandboxClient, SandboxError
from tensorlake.sandbox.models import CLEAR_NETWORK_POLICY, FileSystemMount, NetworkConfig, SandboxStatus

from tests.compat.tensorlake.asking import MIB, status, until_so
from tests.support.cases import cases
from tests.support.tcpservice import TcpService

NAMED = "/tensorlake/v1/namespaces/default"
REACHES_OUT = "curl -s -o /dev/null -w %{http_code} http://127.0.0.1:4479/nothing"
"""Asks where packages come from, which is all that is reached unless that was closed: 404 there, and 403 where it was closed."""
SPINS = "while True: pass"
CLOSED = {"allow_internet_access": False}
MOUNT = {"file_system_id": "x", "mount_path": "/mnt/x"}


@pytest.fixture
def http(service: TcpService, key: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url, headers={"Authorization": f"Bearer {key}"}, timeout=60) as made:
        yield made


def inside(box: Sandbox) -> str:
    """Where the inside of a sandbox is asked."""
    return f"/tensorlake/sbx/{box.sandbox_id}/api/v1"


# -------------------------------------------------------------------------------------------------------------- sandboxes


@cases(
    "asked, field",
    [
        ({**CLOSED, "allow_out": ["example.com"]}, "allow_out"),
        ({"gpus": 1}, "gpus"),
        ({"entrypoint": ["sleep"]}, "entrypoint"),
        ({"max_pending_secs": 60}, "max_pending_secs"),
        ({"file_systems": [FileSystemMount(**MOUNT, prefetch=True)]}, "prefetch"),
        ({"file_systems": [FileSystemMount(**MOUNT, owner="root")]}, "owner"),
        ({"file_systems": [FileSystemMount(**MOUNT, read_only=True, snapshot_id="s")]}, "snapshot_id"),
    ],
)
def test_unsupported_options_are_refused_by_name(client: SandboxClient, asked: Mapping[str, Any], field: str) -> None:
    before = len(list(client.list()))
    with pytest.raises(RemoteAPIError, match=f"{field}.* is not possible here") as told:
        client.create(**asked)
    assert told.value.status_code == 400
    assert len(list(client.list())) == before


def test_neutral_values_of_unsupported_options_are_accepted(client: SandboxClient) -> None:
    made = client.create(memory_mb=256, max_pending_secs=0)
    client.delete(made.sandbox_id)


def test_unauthenticated_access_without_the_quota_is_refused_by_name(client: SandboxClient, box: Sandbox) -> None:
    before = len(list(client.list()))
    refusals: tuple[Callable[[], object], ...] = (
        lambda: client.create(memory_mb=256, allow_unauthenticated_access=True),
        lambda: client.update_sandbox(box.sandbox_id, allow_unauthenticated_access=True),
        lambda: client.expose_ports(box.sandbox_id, [8080], allow_unauthenticated_access=True),
    )
    for refuse in refusals:
        with pytest.raises(RemoteAPIError, match=r"allow_unauthenticated_access is not possible here.*public_ports") as told:
            refuse()
        assert told.value.status_code == 403
    assert len(list(client.list())) == before
    assert client.get_port_access(box.sandbox_id).exposed_ports == []


def test_ports_are_exposed_and_public_where_the_key_may_have_public_ports(service: TcpService, url: str) -> None:
    key = service.key("public", "--public-ports")
    with pytest.deprecated_call(), SandboxClient(api_url=url, api_key=key) as client:
        made = client.create(memory_mb=256, exposed_ports=[9000, 8000], allow_unauthenticated_access=True)
        try:
            for change, ports, public in (
                ({}, [8000, 9000], True),
                ({"allow_unauthenticated_access": False}, [8000, 9000], False),
                ({"exposed_ports": [80]}, [80], False),
                ({"exposed_ports": [], "allow_unauthenticated_access": True}, [], True),
            ):
                shown = client.update_sandbox(made.sandbox_id, **change) if change else client.get(made.sandbox_id)
                assert (shown.exposed_ports, shown.allow_unauthenticated_access) == (ports, public)
                assert service.client.sandboxes.get(made.sandbox_id).public_ports is public
        finally:
            client.delete(made.sandbox_id)


def test_update_keeps_clears_or_sets_the_network(client: SandboxClient) -> None:
    rules = NetworkConfig(allow_out=["8.8.8.8", "example.com"], deny_out=["8.8.4.4"])
    with client.create_and_connect(memory_mb=256, allow_internet_access=False) as box:
        for change, reaches_index, shown in (
            ({"network": rules}, False, rules),
            ({"auto_resume": True}, False, rules),
            ({"network": CLEAR_NETWORK_POLICY}, True, NetworkConfig(allow_internet_access=False)),
            ({"network": NetworkConfig(allow_internet_access=False)}, False, NetworkConfig(allow_internet_access=False)),
        ):
            updated = client.update_sandbox(box.sandbox_id, **change)
            assert updated.network_policy == shown, "the key may not open the internet"
            assert (box.run("sh", ["-c", REACHES_OUT]).stdout == "404") is reaches_index


def test_sandbox_without_auto_resume_is_not_woken_by_a_request(client: SandboxClient) -> None:
    for auto_resume in (None, False):
        with client.create_and_connect(memory_mb=256, name="sleeper", auto_resume=auto_resume) as box:
            client.suspend("sleeper")
            if auto_resume is None:
                assert box.run("echo", ["woken"]).stdout == "woken"
            else:
                assert status(lambda: box.run("true")) == 409
                assert client.get("sleeper").status == SandboxStatus.SUSPENDED


def test_image_determines_the_template(client: SandboxClient, box: Sandbox) -> None:
    looks = ("python", ["-c", "import importlib.util; print(importlib.util.find_spec('numpy') is not None)"])
    assert box.run(*looks).stdout == "True"  # made without an image
    with client.create_and_connect(memory_mb=256, image="base") as other:
        assert other.run(*looks).stdout == "False"


def test_cpu_limit_is_enforced(client: SandboxClient, service: TcpService) -> None:
    with client.create_and_connect(memory_mb=256, cpus=0.25) as box:
        spinning = box.start_process("python", ["-c", SPINS])

        def cpu_s() -> float:
            return float(service.client.transport.request("GET", f"/v1/sandboxes/{box.sandbox_id}/usage")["cpu_s"])

        before = cpu_s() + 0.5
        until_so(lambda: cpu_s() > before)
        began_s, before = time.monotonic(), cpu_s()
        time.sleep(2)
        used = cpu_s() - before
        # An upper bound: a busy host gives less, and a quota may be used up at both ends of the time looked at.
        assert used <= 0.25 * (time.monotonic() - began_s + 0.3)
        box.kill_process(spinning.pid)


def test_updated_resources_apply_at_once(client: SandboxClient) -> None:
    with client.create_and_connect(memory_mb=128) as box:
        client.update_sandbox(box.sandbox_id, memory_mb=512)
        assert box.run("python", ["-c", "x = b'x' * (256 << 20); print(len(x) >> 20)"]).stdout == "256"
        assert status(lambda: client.update_sandbox(box.sandbox_id, disk_mb=6144)) == 501


def test_request_without_waiting_responds_accepted(http: httpx.Client) -> None:
    for wait, told in (({}, 200), ({"wait": True}, 200), ({"wait": False}, 202)):
        made = http.post(f"{NAMED}/sandboxes", json={"image": "base", "resources": {"memory_mb": 256}, **wait})
        assert (made.status_code, made.json()["status"]) == (told, "running")
        assert http.delete(f"{NAMED}/sandboxes/{made.json()['sandbox_id']}").status_code == 204


def test_suspend_continues_after_its_wait_timeout(client: SandboxClient, http: httpx.Client) -> None:
    with client.create_and_connect(memory_mb=256) as box:
        id_ = box.sandbox_id
        with pytest.raises(SandboxError, match="did not suspend within 0s"):
            client.suspend(id_, timeout=0)
        until_so(lambda: client.get(id_).status == SandboxStatus.SUSPENDED)
        for wait_ms, told in ((0, 202), (30_000, 200)):
            assert http.post(f"{NAMED}/sandboxes/{id_}/resume", params={"wait_ms": wait_ms}).status_code == told
        assert box.run("echo", ["here"]).stdout == "here"
        for word in ("-1", "x", str(1 << 31)):
            assert http.post(f"{NAMED}/sandboxes/{id_}/suspend", params={"wait_ms": word}).status_code == 400


def test_archived_sandboxes_are_listed_in_pages(client: SandboxClient) -> None:
    ids = [client.create(image="base", memory_mb=256).sandbox_id for _ in range(2)]
    for id_ in ids:
        client.delete(id_)
    until_so(lambda: set(ids) <= {each.sandbox_id for each in client.list_archived(limit=1000).sandboxes})
    whole = [each.sandbox_id for each in client.list_archived(limit=1000, direction="forward").sandboxes]
    paged: list[str] = []
    cursor = None
    while not paged or cursor is not None:
        page = client.list_archived(limit=1, cursor=cursor)
        assert len(page.sandboxes) == 1
        paged += [each.sandbox_id for each in page.sandboxes]
        cursor = page.next_cursor
    assert paged == whole
    assert status(lambda: client.list_archived(direction="backward")) == status(lambda: client.list_archived(cursor="nonsense")) == 400
    assert status(lambda: client.list_archived(limit=0)) == 400


def test_logs_contain_the_output_of_processes(client: SandboxClient) -> None:
    with client.create_and_connect(memory_mb=256) as box:
        box.run("sh", ["-c", "echo one; echo two; echo bad >&2"])
        assert [line.body for line in client.get_logs(box.sandbox_id).logs] == ["one", "two", "bad"]
        assert [line.body for line in client.get_logs(box.sandbox_id, levels=["error"]).logs] == ["bad"]
        assert [line.body for line in client.get_logs(box.sandbox_id, head=1).logs] == ["one"]
        assert [line.body for line in client.get_logs(box.sandbox_id, tail=1, levels=["info"]).logs] == ["two"]
        assert [line.body for line in client.get_logs(box.sandbox_id, body="tw").logs] == ["two"]
        (process,) = client.list_log_processes(box.sandbox_id).processes
        assert (process.log_count, process.process_command) == (3, "sh -c echo one; echo two; echo bad >&2")
        assert len(client.get_logs(box.sandbox_id, process_ids=[process.process_id]).logs) == 3
        assert client.get_logs(box.sandbox_id, process_ids=["other"]).logs == []
        assert status(lambda: client.get_logs(box.sandbox_id, next_token="more")) == 400  # noqa: S106 - of a page
    assert [line.body for line in client.get_logs(box.sandbox_id, tail=1).logs] == ["bad"]


# ------------------------------------------------------------------------------------------------------------------ pools


def test_pool_options_hold_inside_claimed_sandboxes(client: SandboxClient, box: Sandbox) -> None:
    asked = {"image": "base", "cpus": 1.0, "memory_mb": 208, "disk_mb": 48}
    with pytest.raises(RemoteAPIError, match="entrypoint is not possible here"):
        client.create_pool(**asked, entrypoint=["sleep"])
    with pytest.raises(RemoteAPIError, match="gpus is not possible here"):
        client.create_pool(**asked, gpus=1)
    pool = client.create_pool(**asked, timeout_secs=4, warm_containers=0, network=NetworkConfig(allow_internet_access=False)).pool_id
    assert box.run("sh", ["-c", REACHES_OUT]).stdout == "404"
    claimed = client.claim(pool).sandbox_id
    try:
        box = client.connect(claimed)
        assert 150 < int(box.run("sh", ["-c", "grep MemTotal /proc/meminfo"]).stdout.split()[1]) // 1024 <= 208
        full = box.run("sh", ["-c", "head -c 100M /dev/zero > /workspace/big"])
        assert "No space left" in full.stderr
        assert "ModuleNotFoundError" in box.run("python", ["-c", "import numpy"]).stderr
        assert box.run("sh", ["-c", REACHES_OUT]).stdout == "403"
        until_so(lambda: client.get(claimed).status == SandboxStatus.TERMINATED)
    finally:
        client.delete(claimed)
        client.delete_pool(pool)


def test_claim_can_mount_file_systems(client: SandboxClient, http: httpx.Client) -> None:
    pool = client.create_pool(image="base", memory_mb=216, warm_containers=0).pool_id
    assert http.post("/v1/volumes", json={"name": "claimed", "size_bytes": 64 * MIB}).status_code == 201
    claimed = client.claim(pool, file_systems=[FileSystemMount(file_system_id="claimed", mount_path="/mnt/here")]).sandbox_id
    try:
        box = client.connect(claimed)
        assert box.run("sh", ["-c", "echo kept > /mnt/here/file; cat /mnt/here/file"], user="root").stdout == "kept"
    finally:
        client.delete(claimed)
        client.delete_pool(pool)
        assert http.delete("/v1/volumes/claimed").status_code == 204


# -------------------------------------------------------------------------------------------------------------- processes


@cases(
    "asked, field",
    [
        ({"restart": {"policy": "always"}}, "restart"),
        ({"health_check": {"type": "tcp", "port": 80}}, "health_check"),
        ({"stdout_mode": OutputMode.DISCARD}, "stdout_mode"),
        ({"stderr_mode": OutputMode.DISCARD}, "stderr_mode"),
    ],
)
def test_unsupported_process_options_are_refused_by_name(box: Sandbox, asked: Mapping[str, Any], field: str) -> None:
    with pytest.raises(RemoteAPIError, match=f"{field}.* is not possible here") as told:
        box.start_process("true", **asked)
    assert told.value.status_code == 400


def test_process_has_its_user_and_stdin_only_on_request(box: Sandbox) -> None:
    for user, name in ((None, "user"), ("root", "root")):
        process = box.start_process("id", ["-un"], user=user, stdout_mode=OutputMode.CAPTURE, stderr_mode=OutputMode.CAPTURE)
        assert [event.line for event in box.follow_output(process.pid)] == [name]
    unfed = box.start_process("cat")
    assert list(box.follow_output(unfed.pid)) == []
    assert status(lambda: box.write_stdin(unfed.pid, b"x")) == 409


def test_timeout_of_desktop_requests_is_accepted(box: Sandbox, http: httpx.Client) -> None:
    late = {"command": "sleep", "args": ["60"], "timeout_secs": 0.5}
    assert '"timed_out"' in http.post(f"{inside(box)}/processes/run", json=late).text
    assert http.post(f"{inside(box)}/processes/run", json={**late, "timeout": 0.5}).status_code == 400


def test_terminal_has_its_user_and_opens_with_its_token(box: Sandbox, http: httpx.Client) -> None:
    made = http.post(f"{inside(box)}/pty", json={"command": "sh", "args": ["-c", "id -un; cat"], "user": "root"}).json()
    address = box.pty_ws_url(made["session_id"], made["token"])
    for query, headers in (("", [f"X-PTY-Token: {made['token']}"]), (f"?token={made['token']}", [])):
        with suppress(websocket.WebSocketConnectionClosedException):
            socket = websocket.create_connection(address + query, header=headers)
            socket.send_binary(b"\x02")
            shown = b""
            while b"root\r\n" not in shown:
                shown += socket.recv()
            socket.close()
    for query, headers in (("", []), ("", ["X-PTY-Token: nonsense"]), ("?token=nonsense", [])):
        with pytest.raises(websocket.WebSocketBadStatusException) as refused:
            websocket.create_connection(address + query, header=headers)
        assert refused.value.status_code == 401
    assert http.delete(f"{inside(box)}/pty/{made['session_id']}").status_code == 204


def test_header_names_the_sandbox_at_root_paths(box: Sandbox, http: httpx.Client) -> None:
    told = http.post("/api/v1/processes/run", json={"command": "hostname"}, headers={"X-Tensorlake-Sandbox-Id": box.sandbox_id})
    assert f'"line":"{box.sandbox_id}"' in told.text.replace(": ", ":")
    assert http.get("/api/v1/info").status_code == 400
