"""What Tensorlake's client has beside its plain calls: a sandbox's own methods, its ports, checkpoints, and the same again for asyncio.

Each public method of its classes is called by some test of this folder; what there is not is refused in the service's words.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import httpx
import pytest
from tensorlake.sandbox import (
    AsyncSandbox,
    AsyncSandboxClient,
    CheckpointType,
    RemoteAPIError,
    Sandbox,
    SandboxClient,
    SandboxError,
    SandboxNotFoundError,
    SandboxStatus,
    SnapshotType,
)

from tests.compat.tensorlake.asking import MIB, until_so
from tests.support.cases import cases
from tests.support.tcpservice import TcpService

HERE = Path(__file__).parent
DESKTOP = r"""
import contextlib, socket, struct
listener = socket.create_server(("127.0.0.1", 5901))
print("listens", flush=True)
def serve(there):
    stream = there.makefile("rb")
    def say(*pieces):
        there.sendall(b"".join(pieces))
    say(b"RFB 003.008\n"); stream.read(12)
    say(b"\x01\x01"); stream.read(1)
    say(struct.pack(">I", 0)); stream.read(1)
    say(struct.pack(">HH", 4, 2), struct.pack(">BBBBHHHBBBxxx", 32, 24, 0, 1, 255, 255, 255, 16, 8, 0), struct.pack(">I", 4), b"test")
    while kind := stream.read(1):
        if kind == b"\x00":
            stream.read(19)
        elif kind == b"\x02":
            stream.read(4 * struct.unpack(">xH", stream.read(3))[0])
        elif kind == b"\x03":
            stream.read(9)
            say(struct.pack(">BxH", 0, 1), struct.pack(">HHHHi", 0, 0, 4, 2, 0), b"\x10\x20\x30\x00" * 8)
        elif kind == b"\x04":
            print("key", struct.unpack(">BxxI", stream.read(7))[1], flush=True)
        elif kind == b"\x05":
            print("pointer", *struct.unpack(">BHH", stream.read(5))[1:], flush=True)
while True:
    there, _ = listener.accept()
    with there, contextlib.suppress(OSError):  # the first one only asks whether somebody listens
        serve(there)
"""
"""The least of a program that serves a desktop: RFC 6143, without a password."""


@cases("its", [Sandbox, SandboxClient])
def test_every_client_method_is_called_by_a_test(its: type) -> None:
    said = "\n".join(path.read_text(encoding="utf-8") for path in HERE.glob("*.py"))
    assert [name for name in vars(its) if not name.startswith("_") and not re.search(rf"\.{name}\b", said)] == []


@cases("its, receiver", [(AsyncSandbox, r"(?<!client)(?<!AsyncSandboxClient)"), (AsyncSandboxClient, "(?:client|AsyncSandboxClient)")])
def test_every_async_client_method_is_called_by_an_async_test(its: type, receiver: str) -> None:
    """Both classes have methods of the same names: in those tests the client is called ``client``, and nothing else is."""
    sources = [path.read_text(encoding="utf-8") for path in HERE.glob("*.py")]
    tests = [(source, node) for source in sources for node in ast.walk(ast.parse(source)) if isinstance(node, ast.AsyncFunctionDef)]
    said = "\n".join(ast.get_source_segment(source, node) or "" for source, node in tests)
    assert [name for name in vars(its) if not name.startswith("_") and not re.search(rf"{receiver}\.{name}\b", said)] == []


def test_sandbox_methods_work_without_a_client(url: str, key: str, service: TcpService) -> None:
    here = {"api_url": url, "api_key": key}
    box = Sandbox.create(memory_mb=256, timeout_secs=300, **here)
    ids = [box.sandbox_id]
    try:
        assert (box.status, box.name, bool(box.trace_id)) == (SandboxStatus.RUNNING, None, True)
        box.name = "by-itself"
        assert Sandbox.connect("by-itself", **here).info().sandbox_id == box.sandbox_id
        assert box.sandbox_id in {each.sandbox_id for each in Sandbox.list(**here)}
        changed = box.update(memory_mb=320)
        waited = box.wait_for_resource_resize(changed.resource_resize.generation, timeout=5)
        assert (waited.resources.memory_mb, service.client.sandboxes.get(box.sandbox_id).limits.memory_bytes) == (320, 320 * MIB)
        box.run("sh", ["-c", "echo written; echo kept > state"])
        assert [line.body for line in box.get_logs().logs] == ["written"]
        assert [each.log_count for each in box.list_log_processes().processes] == [1]
        ids += [each.sandbox_id for each in box.copy(times=1).sandboxes]
        assert Sandbox.connect(ids[1], **here).run("cat", ["state"]).stdout == "kept"
        box.suspend()
        assert box.status == SandboxStatus.SUSPENDED
        box.resume()
        assert (box.run("cat", ["state"]).stdout, box.list_file_systems()) == ("kept", [])
    finally:
        box.terminate()
        for id_ in ids[1:]:
            Sandbox.connect(id_, **here).terminate()
    assert not {*ids} & {each.sandbox_id for each in Sandbox.list(**here)}
    with pytest.raises(SandboxNotFoundError):
        Sandbox.connect("by-itself", **here)


def test_checkpoint_is_a_snapshot_of_its_sandbox(client: SandboxClient, url: str, key: str) -> None:
    here = {"api_url": url, "api_key": key}
    with client.create_and_connect(memory_mb=256) as box:
        box.run("sh", ["-c", "echo kept > state"])
        taken = box.checkpoint(checkpoint_type=CheckpointType.FILESYSTEM)
        assert taken is not None
        assert (taken.snapshot_type, taken.sandbox_id) == (SnapshotType.FILESYSTEM, box.sandbox_id)
        assert box.checkpoint(wait=False) is None
        both = [each.snapshot_id for each in box.list_snapshots()]
        assert (len(both), both[0]) == (2, taken.snapshot_id)
    assert Sandbox.get_snapshot(both[1], **here).snapshot_type == SnapshotType.MEMORY
    with client.create_and_connect(snapshot_id=taken.snapshot_id) as again:
        assert again.run("cat", ["state"]).stdout == "kept"
    for id_ in both:
        Sandbox.delete_snapshot(id_, **here)
        with pytest.raises(RemoteAPIError, match="404"):
            Sandbox.get_snapshot(id_, **here)


def test_ports_are_exposed_and_unexposed(client: SandboxClient, box: Sandbox) -> None:
    access = client.get_port_access(box.sandbox_id)
    assert (access.exposed_ports, access.allow_unauthenticated_access, access.sandbox_url) == ([], False, box.info().sandbox_url)
    assert client.expose_ports(box.sandbox_id, [8080, 80]).exposed_ports == [80, 8080]
    assert client.expose_ports(box.sandbox_id, [81]).exposed_ports == [80, 81, 8080]
    assert client.unexpose_ports(box.sandbox_id, [80, 81]).exposed_ports == [8080]
    (copied,) = client.copy(box.sandbox_id).sandboxes
    assert client.get_port_access(copied.sandbox_id).exposed_ports == [8080]
    client.delete(copied.sandbox_id)
    assert client.unexpose_ports(box.sandbox_id, [8080]).exposed_ports == []


def test_terminal_is_created_and_listed(box: Sandbox) -> None:
    made = box.create_pty_session("sh", ["-c", "read word; exit $word"], rows=10, cols=40).value
    pty = box.connect_pty(made["session_id"], made["token"])
    pty.send_input("6\n")
    assert pty.wait(20) == 6


def test_desktop_of_a_program_is_seen_and_controlled(box: Sandbox) -> None:
    with pytest.raises(SandboxError):
        box.connect_desktop(connect_timeout=1)
    server = box.start_process("python", ["-c", DESKTOP])
    until_so(lambda: box.get_stdout(server.pid).lines == ["listens"])
    with box.connect_desktop(connect_timeout=20) as desktop:
        assert (desktop.width, desktop.height) == (4, 2)
        assert desktop.screenshot().startswith(b"\x89PNG")
        desktop.move_mouse(3, 1)
        until_so(lambda: "pointer 3 1" in box.get_stdout(server.pid).lines)
        desktop.press("a")
        until_so(lambda: "key 97" in box.get_stdout(server.pid).lines)


def test_create_without_waiting_is_polled_until_ready(client: SandboxClient) -> None:
    pending = client.create(memory_mb=256, wait=False)
    assert pending.status().status in {SandboxStatus.PENDING, SandboxStatus.RUNNING}
    with pending.ready(timeout=60) as box:
        assert (box.sandbox_id, box.run("echo", ["up"]).stdout) == (pending.sandbox_id, "up")


def test_polling_calls_of_older_clients_are_served(box: Sandbox, service: TcpService, key: str) -> None:
    """What version 0.4 does to run a command."""
    inside = f"{service.url}/tensorlake/sbx/{box.sandbox_id}/api/v1/processes"
    with httpx.Client(headers={"Authorization": f"Bearer {key}"}) as http:
        pid = http.post(inside, json={"command": "sh", "args": ["-c", "echo out; sleep 0.3; echo err >&2; exit 3"]}).json()["pid"]
        until_so(lambda: http.get(f"{inside}/{pid}").json()["status"] == "exited")
        assert http.get(f"{inside}/{pid}").json()["exit_code"] == 3
        read = [http.get(f"{inside}/{pid}/{which}").json() for which in ("stdout", "stderr", "output")]
        assert [sorted(each["lines"]) for each in read] == [["out"], ["err"], ["err", "out"]]
