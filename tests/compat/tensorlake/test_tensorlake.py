"""Tensorlake's own client against a real service: what its page on agents does not show.

The client is the vendor's package from PyPI, unmodified, over TCP with a key; sandboxes are real, on gVisor.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
import websocket
from tensorlake.sandbox import (
    RemoteAPIError,
    Sandbox,
    SandboxClient,
    SandboxConnectionError,
    SandboxNotFoundError,
    SnapshotType,
    StdinMode,
)
from tensorlake.sandbox.models import CLEAR_NETWORK_POLICY, CommandExitReason, NetworkConfig, SandboxStatus

from tests.compat.tensorlake.asking import MIB, status, until_so
from tests.support.cases import cases
from tests.support.tcpservice import TcpService

# -------------------------------------------------------------------------------------------------------------- processes


@pytest.mark.smoke
def test_command_runs_to_its_end(box: Sandbox) -> None:
    done = box.run("sh", ["-c", "echo out; echo; echo err >&2; printf end; exit 3"])
    assert (done.exit_code, done.stdout, done.stderr, done.reason) == (3, "out\n\nend", "err", CommandExitReason.EXITED)
    where = box.run("sh", ["-c", "echo $PWD $A; id -un"], env={"A": "b c"}, working_dir="/tmp", user="root")
    assert where.stdout == "/tmp b c\nroot"
    assert box.run("id", ["-u"], user={"uid": 1000, "gid": 1000}).stdout == box.run("id", ["-u"]).stdout == "1000"
    assert box.run("python", ["--version"]).stdout.startswith("Python 3")
    long = box.run("python", ["-c", "print('x' * 3_000_000); print('\\u00e9')"])
    assert (len(long.stdout), long.stdout[-2:]) == (3_000_002, "\n\u00e9")


def test_signalled_and_timed_out_commands_report_their_end(box: Sandbox) -> None:
    killed = box.run("sh", ["-c", "kill -9 $$"])
    assert (killed.exit_code, killed.reason) == (-9, CommandExitReason.SIGNALED)
    late = box.run("sh", ["-c", "echo before; sleep 60"], timeout=2.0)
    assert (late.exit_code, late.stdout, late.timed_out) == (-9, "before", True)
    assert status(lambda: box.run("no-such-program")) == 404
    assert status(lambda: box.run("true", user="nobody-there")) == 400
    assert status(lambda: box.run("true", working_dir="")) == 400


def test_process_is_started_found_fed_and_followed(box: Sandbox) -> None:
    began = datetime.now(UTC)
    cat = box.start_process("cat", ["-"], stdin_mode=StdinMode.PIPE, name="kitty", env={"A": "1"})
    assert (cat.command, cat.args, cat.status.value, cat.stdin_writable, cat.managed.name) == ("cat", ["-"], "running", True, "kitty")
    assert abs((cat.started_at - began).total_seconds()) < 60
    assert cat.pid in {each.pid for each in box.list_processes()}
    assert box.get_process("kitty").pid == box.get_process(cat.pid).pid == cat.pid
    box.write_stdin("kitty", b"one\ntw")
    box.write_stdin(cat.pid, b"o\n")
    box.close_stdin("kitty")
    assert [(event.line, event.stream) for event in box.follow_output("kitty")] == [("one", "stdout"), ("two", "stdout")]
    assert [event.line for event in box.follow_stdout(cat.pid)] == ["one", "two"]
    assert list(box.follow_stderr(cat.pid)) == []
    assert (box.get_stdout(cat.pid).lines, box.get_output("kitty").line_count, box.get_stderr(cat.pid).lines) == (["one", "two"], 2, [])
    done = box.get_process(cat.pid)
    assert (done.status.value, done.exit_code, done.managed.status.value) == ("exited", 0, "stopped")
    assert done.ended_at is not None
    assert status(lambda: box.get_process("nobody")) == status(lambda: box.get_process(99999)) == 404


def test_process_is_signalled_killed_and_restarted(box: Sandbox) -> None:
    script = "trap 'echo term; exit 7' TERM; echo $A; pwd; while :; do sleep 0.05; done"
    first = box.start_process("sh", ["-c", script], env={"A": "again"}, working_dir="/tmp", name="looper")
    until_so(lambda: box.get_stdout("looper").lines == ["again", "/tmp"])
    assert box.send_signal("looper", 15).success
    assert [event.line for event in box.follow_stdout("looper")] == ["again", "/tmp", "term"]
    assert box.get_process("looper").exit_code == 7
    second = box.restart_process("looper")
    assert second.pid != first.pid
    third = box.restart_process(second.pid)
    until_so(lambda: box.get_stdout("looper").lines == ["again", "/tmp"])
    assert box.get_process(second.pid).signal == 9
    box.kill_process("looper")
    box.follow_output(third.pid)
    assert (box.get_process(third.pid).status.value, box.get_process(third.pid).signal) == ("signaled", 9)
    assert not box.send_signal(third.pid, 15).success


def test_invalid_process_requests_are_refused(box: Sandbox) -> None:
    assert status(lambda: box.start_process("true", restart={"policy": "always"})) == 400
    assert status(lambda: box.start_process("true", health_check={"type": "tcp", "port": 80})) == 400
    assert status(lambda: box.start_process("true", stdout_mode="discard")) == 400


def test_terminal_takes_input_is_resized_and_reconnected(box: Sandbox) -> None:
    shown: list[bytes] = []
    pty = box.create_pty("bash", ["--norc"], env={"PS1": "$ "}, working_dir="/tmp", rows=20, cols=70, on_data=shown.append)
    pty.send_input("stty size; pwd\n")
    until_so(lambda: b"20 70\r\n/tmp" in b"".join(shown))
    pty.resize(100, 30)
    pty.send_input("stty size\n")
    until_so(lambda: b"30 100" in b"".join(shown))
    pty.disconnect()
    again: list[bytes] = []
    back = box.connect_pty(pty.session_id, pty.token, on_data=again.append)
    until_so(lambda: b"30 100" in b"".join(again))
    back.send_input("exit 5\n")
    assert back.wait(20) == 5
    killed = box.create_pty("sleep", ["100"])
    killed.kill()
    assert killed.wait(20) == 137
    with pytest.raises(SandboxConnectionError, match="404"):
        box.connect_pty("0" * 32, pty.token)


def test_missing_terminal_is_refused_before_the_upgrade(box: Sandbox, key: str) -> None:
    address = f"{box.info().sandbox_url}/api/v1/pty/x/ws"
    with pytest.raises(websocket.WebSocketBadStatusException) as refused:
        websocket.create_connection(address.replace("http", "ws", 1), header=[f"Authorization: Bearer {key}"])
    assert refused.value.status_code == 404
    assert json.loads(refused.value.resp_body or b"")["error"]


# ------------------------------------------------------------------------------------------------------------------ files


@pytest.mark.smoke
def test_files_are_written_and_read(box: Sandbox, tmp_path: Path) -> None:
    content = os.urandom(3 * MIB)
    box.write_file("/workspace/deep/er/a.bin", content)
    assert bytes(box.read_file("/workspace/deep/er/a.bin").value) == content
    local = tmp_path / "local.bin"
    local.write_bytes(content[::-1])
    box.upload_file(str(local), "/workspace/deep/b.bin")
    assert box.run("sha256sum", ["deep/b.bin"]).stdout.split()[0] == box.run("sh", ["-c", "sha256sum < /workspace/deep/b.bin"]).stdout.split()[0]
    assert bytes(box.read_file("/workspace/deep/b.bin").value) == content[::-1]
    listed = box.list_directory("/workspace/deep")
    assert listed.path == "/workspace/deep"
    assert [(entry.name, entry.is_dir, entry.size) for entry in listed.entries] == [("b.bin", False, 3 * MIB), ("er", True, None)]
    assert abs((listed.entries[0].modified_at - datetime.now(UTC)).total_seconds()) < 60
    box.delete_file("/workspace/deep/b.bin")
    assert status(lambda: box.read_file("/workspace/deep/b.bin")) == 404
    assert status(lambda: box.read_file("/etc/shadow")) == status(lambda: box.write_file("/etc/x", b"")) == 403
    assert status(lambda: box.list_directory("/nowhere")) == 404


@pytest.mark.smoke
def test_health_and_info_are_reported(box: Sandbox) -> None:
    assert box.health().healthy
    box.run("true")
    told = box.daemon_info()
    assert told.total_processes > told.running_processes >= 0
    assert told.uptime_secs >= 0


# -------------------------------------------------------------------------------------------------------------- sandboxes


def test_sandbox_response_has_all_requested_options(client: SandboxClient, service: TcpService) -> None:
    made = client.create(image="tensorlake/ubuntu-minimal", cpus=0.5, memory_mb=300, disk_mb=64, timeout_secs=77, auto_resume=False)
    try:
        told = client.get(made.sandbox_id)
        assert (told.status, told.image, told.timeout_secs, told.namespace) == (SandboxStatus.RUNNING, "tensorlake/ubuntu-minimal", 77, "default")
        assert (told.resources.cpus, told.resources.memory_mb, told.resources.disk_mb) == (0.5, 300, 64)
        assert (told.auto_resume, told.pool_id, told.runtime) == (False, None, "gvisor")
        assert told.network_policy.allow_internet_access is False, "the key may have no more than an allowlist"
        assert told.sandbox_url == f"{service.url}/tensorlake/sbx/{made.sandbox_id}"
        native = service.client.sandboxes.get(made.sandbox_id)
        assert (native.limits.cpus, native.limits.memory_bytes, native.limits.disk_bytes) == (0.5, 300 * MIB, 64 * MIB)
        box = client.connect(made.sandbox_id)
        assert 250 < int(box.run("sh", ["-c", "grep MemTotal /proc/meminfo"]).stdout.split()[1]) // 1024 <= 300
        full = box.run("sh", ["-c", "head -c 200M /dev/zero > /workspace/big"])
        assert (full.exit_code, "No space left" in full.stderr) == (1, True)
        assert made.sandbox_id in {each.sandbox_id for each in client.list()}
    finally:
        client.delete(made.sandbox_id)


@cases(
    "asked",
    [{"image": "no-such-image"}, {"memory_mb": 1}, {"timeout_secs": 8 * 24 * 3600}, {"name": "no name"}],
)
def test_unsupported_requests_are_refused_with_the_reason(client: SandboxClient, asked: dict[str, object]) -> None:
    before = len(list(client.list()))
    assert status(lambda: client.create(**asked)) == 400
    assert len(list(client.list())) == before


def test_timeout_ends_a_closed_sandbox(client: SandboxClient) -> None:
    box = client.create_and_connect(timeout_secs=1)
    id_ = box.sandbox_id
    box.close()
    until_so(lambda: client.get(id_).status == SandboxStatus.TERMINATED)
    assert client.get_archived(id_).archived_at is not None
    until_so(lambda: id_ in {each.sandbox_id for each in client.list_archived(limit=1000).sandboxes})
    page = client.list_archived(limit=1)
    assert len(page.sandboxes) == 1
    assert status(lambda: client.list_archived(direction="backward")) == 400
    with pytest.raises(SandboxNotFoundError):
        client.delete("sb-aaaa-aaaaaaaaaaaaaaaa")


def test_unique_name_works_like_an_id(client: SandboxClient, url: str, key: str) -> None:
    def named() -> Sandbox:
        return Sandbox.get_or_create("worker", api_url=url, api_key=key, timeout_secs=300)

    box = named()
    try:
        assert (box.bind_outcome, client.get("worker").sandbox_id) == ("created", box.sandbox_id)
        assert status(lambda: client.create(name="worker")) == 409
        box.run("sh", ["-c", "echo here > state; sleep 1000 >/dev/null 2>&1 &"])
        other = named()
        assert (other.bind_outcome, other.run("cat", ["state"]).stdout) == ("attached", "here")
        client.suspend("worker")
        assert client.get("worker").status == SandboxStatus.SUSPENDED
        woken = named()
        assert (woken.bind_outcome, woken.run("pgrep", ["-x", "sleep"]).exit_code) == ("resumed", 0)
        assert client.update_sandbox("worker", name="renamed").name == "renamed"
        with pytest.raises(SandboxNotFoundError):
            client.get("worker")
        assert client.update_sandbox("renamed", auto_resume=False).auto_resume is False
        client.suspend("renamed", wait=False)
        assert status(lambda: woken.run("true")) == 409
        client.resume("renamed")
        assert woken.run("cat", ["state"]).stdout == "here"
        assert client.connect("renamed").run("true").exit_code == 0
    finally:
        client.delete(box.sandbox_id)
    assert [each for each in client.list() if each.name] == []


def test_limits_are_updated_while_running_or_refused(client: SandboxClient, service: TcpService) -> None:
    box = client.create_and_connect(cpus=1.0, memory_mb=256)
    try:
        for memory_mb in (384, 512):
            changed = client.update_sandbox(box.sandbox_id, memory_mb=memory_mb)
            assert (changed.resources.memory_mb, changed.resource_resize.status.value) == (memory_mb, "succeeded")
            assert service.client.sandboxes.get(box.sandbox_id).limits.memory_bytes == memory_mb * MIB
        assert client.update_sandbox(box.sandbox_id, network=NetworkConfig(allow_out=["a.example.com"])).network_policy.allow_out == ["a.example.com"]
        cleared = client.update_sandbox(box.sandbox_id, network=CLEAR_NETWORK_POLICY).network_policy
        assert (cleared.allow_internet_access, cleared.allow_out) == (False, []), "the key may have no more than an allowlist"
        assert client.update_sandbox(box.sandbox_id, exposed_ports=[80], allow_unauthenticated_access=False).exposed_ports == [80]
        assert status(lambda: client.update_sandbox(box.sandbox_id, allow_unauthenticated_access=True)) == 403
        assert client.update_sandbox(box.sandbox_id, name="some-name").name == "some-name"
    finally:
        client.delete(box.sandbox_id)


def test_copies_continue_from_the_parents_state(client: SandboxClient) -> None:
    box = client.create_and_connect(memory_mb=256)
    ids = [box.sandbox_id]
    try:
        box.run("sh", ["-c", "echo common > state; sleep 1000 >/dev/null 2>&1 &"])
        copied = client.copy(box.sandbox_id, times=2)
        ids += [each.sandbox_id for each in copied.sandboxes]
        assert (copied.source_sandbox_id, len(set(ids))) == (ids[0], 3)
        for number, id_ in enumerate(ids[1:]):
            copy = client.connect(id_)
            assert copy.run("sh", ["-c", "pgrep -x sleep >/dev/null && cat state"]).stdout == "common"
            copy.run("sh", ["-c", f"echo {number} > state"])
        assert box.run("cat", ["state"]).stdout == "common"
        assert status(lambda: client.copy(box.sandbox_id, times=1000)) == 400
    finally:
        for id_ in ids:
            client.delete(id_)


@cases("kind, processes", [(None, 1), (SnapshotType.FILESYSTEM, 0)])
def test_snapshot_outlives_its_sandbox(client: SandboxClient, kind: SnapshotType | None, processes: int) -> None:
    box = client.create_and_connect(memory_mb=256)
    box.run("sh", ["-c", "echo kept > state; sleep 1000 >/dev/null 2>&1 &"])
    taken = client.snapshot_and_wait(box.sandbox_id, snapshot_type=kind, wait_until="completed")
    try:
        assert (taken.sandbox_id, taken.snapshot_type, taken.error) == (box.sandbox_id, kind or SnapshotType.MEMORY, None)
        assert (taken.size_bytes or 0) > 0
        client.delete(box.sandbox_id)
        assert taken.snapshot_id in {each.snapshot_id for each in client.list_snapshots()}
        assert [each.snapshot_id for each in client.list_sandbox_snapshots(box.sandbox_id)] == [taken.snapshot_id]
        with client.create_and_connect(snapshot_id=taken.snapshot_id, timeout_secs=100) as again:
            assert again.run("sh", ["-c", "cat state; pgrep -cx sleep"]).stdout == f"kept\n{processes}"
            assert client.get(again.sandbox_id).timeout_secs == 100
            assert status(lambda: client.create(snapshot_id=taken.snapshot_id, image="base")) == 400
    finally:
        client.delete_snapshot(taken.snapshot_id)
    with pytest.raises(RemoteAPIError, match="404"):
        client.get_snapshot(taken.snapshot_id)


# ------------------------------------------------------------------------------------------------- strangers, and other ways


def test_sandboxes_of_another_owner_are_not_found(stranger: SandboxClient, client: SandboxClient, box: Sandbox) -> None:
    client.update_sandbox(box.sandbox_id, name="shared-by-tests")
    for word in (box.sandbox_id, "shared-by-tests"):
        for asked in (stranger.get, stranger.delete, stranger.suspend, stranger.resume, stranger.copy, stranger.snapshot, stranger.get_logs):
            with pytest.raises(SandboxNotFoundError):
                asked(word)
    url = client.get(box.sandbox_id).sandbox_url
    inside = Sandbox(box.sandbox_id, proxy_url=url, api_key=stranger._api_key)  # noqa: SLF001 - whoever knows the address has a key of his own
    for told in (lambda: inside.run("id"), inside.health, lambda: inside.read_file("/etc/hostname"), inside.list_processes):
        assert status(told) == 404
    assert list(stranger.list()) == list(stranger.list_snapshots()) == []
    assert stranger.create(name="shared-by-tests", memory_mb=256).name == "shared-by-tests"


ELSEWHERE = """
import sys
from tensorlake.sandbox import SandboxClient

client = SandboxClient()
pool = sys.argv[1]
with client.create_and_connect(memory_mb=256, name="elsewhere") as box:
    assert box.run("echo", ["there"]).stdout == "there"
    box.write_file("/workspace/x", b"y" * 9_000_000)
    assert len(box.read_file("/workspace/x").value) == 9_000_000
    cat = box.start_process("cat", stdin_mode="pipe", name="cat")
    box.write_stdin("cat", b"line")
    box.close_stdin("cat")
    assert [event.line for event in box.follow_output("cat")] == ["line"]
    assert box.create_pty("sh", ["-c", "exit 4"]).wait(20) == 4
    assert [each.name for each in client.list()] == ["elsewhere"]
    client.suspend("elsewhere")
    client.resume("elsewhere")
    taken = client.snapshot_and_wait("elsewhere")
    client.delete_snapshot(taken.snapshot_id)
claimed = client.claim(pool)
print(client.connect(claimed.sandbox_id).run("hostname").stdout == claimed.sandbox_id)
client.delete(claimed.sandbox_id)
"""


def test_client_on_another_host_uses_other_addresses(service: TcpService, operator: SandboxClient, tmp_path: Path) -> None:
    pool = operator.create_pool(image="base", memory_mb=200, warm_containers=0).pool_id
    with relayed(service.port, "127.0.0.2") as port:
        url = f"http://127.0.0.2:{port}/tensorlake"
        env = {
            "TENSORLAKE_API_URL": url,
            "TENSORLAKE_SANDBOX_API_URL": url,
            "TENSORLAKE_API_KEY": service.key("elsewhere"),
            "PYTHONWARNINGS": "ignore",
        }
        done = subprocess.run(
            [sys.executable, "-c", ELSEWHERE, pool], env={**os.environ, **env}, capture_output=True, text=True, check=False, cwd=tmp_path
        )
    operator.delete_pool(pool)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


@contextmanager
def relayed(port: int, host: str) -> Iterator[int]:
    """Another address of this machine at which a port answers."""
    with socket.create_server((host, 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    near, _ = listener.accept()
                except OSError:
                    return
                far = socket.create_connection(("127.0.0.1", port))
                threading.Thread(target=relay, args=(near, far), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def relay(near: socket.socket, far: socket.socket) -> None:
    """Carry the bytes of both directions until both have ended."""
    with near, far:
        back = threading.Thread(target=pump, args=(far, near), daemon=True)
        back.start()
        pump(near, far)
        back.join()


def pump(one: socket.socket, other: socket.socket) -> None:
    """Carry what one end says to the other, and its end. What the other end says still passes afterwards."""
    with suppress(OSError):
        while data := one.recv(1 << 16):
            other.sendall(data)
    with suppress(OSError):
        other.shutdown(socket.SHUT_WR)
