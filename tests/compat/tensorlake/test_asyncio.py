"""Tensorlake's classes for asyncio, call by call: each is awaited against the service, and what it did is looked at there or inside the sandbox."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import websocket
from tensorlake.sandbox import (
    AsyncSandbox,
    AsyncSandboxClient,
    PoolInUseError,
    PoolNotFoundError,
    Sandbox,
    SandboxClient,
    SandboxError,
    SandboxNotFoundError,
    SandboxStatus,
    SnapshotType,
)

from tests.compat.tensorlake.asking import MIB, exit_code_of, status, status_of, until_so_there
from tests.support.tcpservice import TcpService

Here = dict[str, str]


@pytest.fixture
def here(url: str, key: str) -> Here:
    """Where the service is, and who asks."""
    return {"api_url": url, "api_key": key}


@pytest.fixture
async def client_there(here: Here) -> AsyncGenerator[AsyncSandboxClient]:
    with pytest.deprecated_call():
        client = AsyncSandboxClient(**here)
    yield client
    await client.close()


@pytest.fixture
async def same(box: Sandbox, here: Here) -> AsyncGenerator[AsyncSandbox]:
    """The sandbox that tests share, reached by the other class; leaving it does not end it."""
    async with await AsyncSandbox.connect(box.sandbox_id, **here) as connected:
        yield connected
    assert box.info().status == SandboxStatus.RUNNING


# -------------------------------------------------------------------------------------------------------------- processes


async def test_process_is_found_read_and_followed(same: AsyncSandbox) -> None:
    script = "echo out; echo err >&2; echo end"
    started = await same.start_process("sh", ["-c", script], name="async-both")
    assert [event.line for event in await same.follow_stdout("async-both")] == ["out", "end"]
    assert [event.line for event in await same.follow_stderr(started.pid)] == ["err"]
    assert (await same.get_stderr(started.pid)).lines == ["err"]
    assert sorted((await same.get_output("async-both")).lines) == ["end", "err", "out"]
    found = await same.get_process("async-both")
    assert (found.pid, found.args, found.status.value, found.exit_code) == (started.pid, ["-c", script], "exited", 0)
    assert await status_of(same.get_process("async-nobody")) == 404
    fed = await same.start_process("cat", stdin_mode="pipe", name="kitty")
    await same.write_stdin("kitty", b"one\n")
    await same.close_stdin(fed.pid)
    assert [event.line for event in await same.follow_output("kitty")] == ["one"]
    assert (await same.get_stdout("kitty")).lines == ["one"]
    done = await asyncio.gather(*(same.run("echo", [str(number)]) for number in range(5)))
    assert [each.stdout for each in done] == list("01234")


async def test_process_is_signalled_restarted_and_killed(same: AsyncSandbox) -> None:
    async def ready() -> bool:
        return bool((await same.get_stdout("async-looper")).lines == ["ready"])

    script = "trap 'echo term; exit 7' TERM; echo ready; while :; do sleep 0.05; done"
    first = await same.start_process("sh", ["-c", script], name="async-looper")
    await until_so_there(ready)
    assert (await same.send_signal("async-looper", 15)).success
    assert [event.line for event in await same.follow_stdout(first.pid)] == ["ready", "term"]
    assert (await same.get_process(first.pid)).exit_code == 7
    second = await same.restart_process("async-looper")
    assert second.pid != first.pid
    assert {first.pid, second.pid} <= {each.pid for each in await same.list_processes()}
    await until_so_there(ready)
    await same.kill_process(second.pid)
    await same.follow_output(second.pid)
    killed = await same.get_process("async-looper")
    assert (killed.pid, killed.status.value, killed.signal) == (second.pid, "signaled", 9)
    assert not (await same.send_signal(second.pid, 15)).success


async def test_terminal_is_reached_at_its_address(same: AsyncSandbox, key: str) -> None:
    made = (await same.create_pty_session("sh", ["-c", "read word; echo got-$word; exit 3"])).value
    address = same.pty_ws_url(made["session_id"], made["token"])
    headers = [f"Authorization: Bearer {key}", f"X-PTY-Token: {made['token']}"]
    (await asyncio.to_thread(websocket.create_connection, address, header=headers)).close()
    seen: list[bytes] = []
    pty = await same.connect_pty(made["session_id"], made["token"], on_data=seen.append)
    await pty.send_input("it\n")
    assert await exit_code_of(pty) == 3
    assert b"got-it" in b"".join(seen)
    assert await exit_code_of(await same.create_pty("sh", ["-c", "exit 4"])) == 4


# ----------------------------------------------------------------------------------------------------- files and tunnels


async def test_files_are_uploaded_listed_and_deleted(same: AsyncSandbox, tmp_path: Path) -> None:
    content = os.urandom(2 * MIB)
    local = tmp_path / "local.bin"
    local.write_bytes(content)
    await same.write_file("/workspace/async/small", b"small")
    await same.upload_file(local, "/workspace/async/large")
    assert bytes((await same.read_file("/workspace/async/large")).value) == content
    listed = await same.list_directory("/workspace/async")
    assert [(entry.name, entry.is_dir, entry.size) for entry in listed.entries] == [("large", False, 2 * MIB), ("small", False, 5)]
    await same.delete_file("/workspace/async/large")
    assert [entry.name for entry in (await same.list_directory("/workspace/async")).entries] == ["small"]
    assert await status_of(same.delete_file("/workspace/async/large")) == 404
    assert (await same.run("ls", ["/workspace/async"])).stdout == "small"


async def test_port_is_reached_through_a_tunnel(same: AsyncSandbox) -> None:
    async def listens() -> bool:
        return ":1F7C 00000000:0000 0A" in (await same.run("cat", ["/proc/net/tcp"])).stdout

    await same.write_file("/workspace/async-site/index.html", b"from the inside")
    server = await same.start_process("python3", ["-m", "http.server", "8060", "--directory", "/workspace/async-site"])
    await until_so_there(listens)
    tunnel = await same.create_tunnel(8060, local_port=0)
    async with tunnel:
        reader, writer = await asyncio.open_connection(tunnel.local_host, tunnel.local_port)
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        assert (await reader.read()).endswith(b"\r\n\r\nfrom the inside")
        writer.close()
        await writer.wait_closed()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(tunnel.local_host, tunnel.local_port)
    await same.kill_process(server.pid)
    with pytest.raises(SandboxError):
        await same.create_tunnel(0)


async def test_health_info_and_logs_are_read(same: AsyncSandbox, box: Sandbox) -> None:
    assert (await same.health()).healthy
    await same.run("sh", ["-c", "echo said-async"])
    told = await same.daemon_info()
    assert told.total_processes > told.running_processes >= 0
    assert (await same.info()).sandbox_id == same.sandbox_id == box.sandbox_id
    (line,) = (await same.get_logs(body="said-async")).logs
    assert line.body == "said-async"
    assert (await same.list_log_processes()).processes


# -------------------------------------------------------------------------------------------------------------- sandboxes


async def test_named_sandbox_is_reconnected_and_woken(here: Here) -> None:
    box = await AsyncSandbox.get_or_create("async-worker", memory_mb=256, timeout_secs=300, **here)
    try:
        assert (box.bind_outcome, bool(box.trace_id), await box.list_file_systems()) == ("created", True, [])
        changed = await box.update(memory_mb=320)
        assert (await box.wait_for_resource_resize(changed.resource_resize.generation)).resources.memory_mb == 320
        await box.run("sh", ["-c", "echo here > state"])
        other = await AsyncSandbox.get_or_create("async-worker", **here)
        assert (other.bind_outcome, (await other.run("cat", ["state"])).stdout) == ("attached", "here")
        await box.suspend()
        assert await other.status() == SandboxStatus.SUSPENDED
        woken = await AsyncSandbox.get_or_create("async-worker", **here)
        assert (woken.bind_outcome, (await woken.run("cat", ["state"])).stdout) == ("resumed", "here")
        await box.suspend()
        await box.resume()
        (copied,) = (await box.copy()).sandboxes
        copy = await AsyncSandbox.connect(copied.sandbox_id, **here)
        assert (await copy.run("cat", ["state"])).stdout == "here"
        await copy.terminate()
    finally:
        await box.terminate()
    with pytest.raises(SandboxNotFoundError):
        await AsyncSandbox.connect("async-worker", **here)


async def test_client_creates_lists_updates_and_deletes_sandboxes(client_there: AsyncSandboxClient, service: TcpService) -> None:
    client = client_there
    pending = await client.create(memory_mb=256, wait=False)
    id_ = pending.sandbox_id
    box = await pending.ready(timeout=60)
    try:
        assert id_ in {each.sandbox_id for each in await client.list()}
        await box.run("sh", ["-c", "echo written; echo kept > state"])
        assert [each.log_count for each in (await client.list_log_processes(id_)).processes] == [1]
        changed = await client.update_sandbox(id_, memory_mb=320, wait=False)
        resized = await client.wait_for_resource_resize(id_, changed.resource_resize.generation, timeout=5)
        assert (resized.resources.memory_mb, service.client.sandboxes.get(id_).limits.memory_bytes) == (320, 320 * MIB)
        assert (await client.update_sandbox(id_, name="async-renamed")).name == "async-renamed"
        assert (await client.get("async-renamed")).sandbox_id == id_
        assert (await (await client.connect("async-renamed")).run("cat", ["state"])).stdout == "kept"
        assert [line.body for line in (await client.get_logs(id_, head=1)).logs] == ["written"]
        (copied,) = (await client.copy(id_)).sandboxes
        await client.delete(copied.sandbox_id)
        await client.suspend(id_)
        await client.resume(id_)
        assert (await client.get_port_access(id_)).exposed_ports == []
        assert (await client.expose_ports(id_, [8080])).exposed_ports == [8080]
        assert (await client.unexpose_ports(id_, [8080])).exposed_ports == []
    finally:
        await client.delete(id_)

    async def archived() -> bool:
        return id_ in {each.sandbox_id for each in (await client.list_archived(limit=1000)).sandboxes}

    await until_so_there(archived)
    assert id_ not in {each.sandbox_id for each in await client.list()}
    assert (await client.get_archived(id_)).sandbox_id == id_
    with pytest.raises(SandboxNotFoundError):
        await client.get("async-renamed")
    assert await status_of(client.list_archived(direction="backward")) == 400


async def test_snapshots_are_created_awaited_listed_and_restored(client_there: AsyncSandboxClient, here: Here) -> None:
    client = client_there
    async with await client.create_and_connect(memory_mb=256) as box:
        await box.run("sh", ["-c", "echo kept > state"])
        begun = await client.snapshot(box.sandbox_id, snapshot_type=SnapshotType.MEMORY)
        checkpoint = await box.checkpoint()
        assert checkpoint is not None
        assert sorted(each.snapshot_id for each in await box.list_snapshots()) == sorted([begun.snapshot_id, checkpoint.snapshot_id])
        await client.delete_snapshot(checkpoint.snapshot_id)
        waited = await client.snapshot_and_wait(box.sandbox_id, snapshot_type=SnapshotType.FILESYSTEM)
        assert (waited.snapshot_type, waited.sandbox_id) == (SnapshotType.FILESYSTEM, box.sandbox_id)
        taken = [begun.snapshot_id, waited.snapshot_id]
        assert sorted(each.snapshot_id for each in await client.list_sandbox_snapshots(box.sandbox_id)) == sorted(taken)
    assert {*taken} <= {each.snapshot_id for each in await client.list_snapshots()}
    assert (await client.get_snapshot(begun.snapshot_id)).snapshot_type == SnapshotType.MEMORY
    async with await client.create_and_connect(snapshot_id=waited.snapshot_id) as again:
        assert (await again.run("cat", ["state"])).stdout == "kept"
    restored = await AsyncSandbox.create(snapshot_id=begun.snapshot_id, **here)
    assert (await restored.run("cat", ["state"])).stdout == "kept"
    await restored.terminate()
    for id_ in taken:
        await client.delete_snapshot(id_)
        assert await status_of(client.get_snapshot(id_)) == 404


async def test_pool_is_created_inspected_updated_claimed_and_deleted(client_there: AsyncSandboxClient, service: TcpService) -> None:
    client = client_there
    asked = {"image": "base", "cpus": 1.0, "memory_mb": 208}
    pool = (await client.create_pool(**asked, timeout_secs=88, warm_containers=0, max_containers=1)).pool_id
    assert (await client.get_pool(pool)).max_containers == 1
    assert pool in {each.pool_id for each in await client.list_pools()}
    claimed = (await client.claim(pool)).sandbox_id
    told = await client.get(claimed)
    assert (told.pool_id, told.timeout_secs, told.image, told.resources.memory_mb) == (pool, 88, "base", 208)
    assert (await (await client.connect(claimed)).run("hostname")).stdout == claimed
    with pytest.raises(PoolInUseError):
        await client.delete_pool(pool)
    await client.delete(claimed)
    kept = await client.update_pool(pool, **asked, timeout_secs=99, warm_containers=0, max_containers=3)
    assert (kept.timeout_secs, kept.warm_containers, kept.max_containers) == (99, 0, 3)
    assert (service.client.pools.get(pool).warm, service.client.pools.get(pool).max) == (0, 3)
    await client.delete_pool(pool)
    with pytest.raises(PoolNotFoundError):
        await client.get_pool(pool)
    assert await status_of(client.claim(pool)) == 404


# ---------------------------------------------------------------------------------------------------------------- clients


async def test_client_is_created_for_localhost_or_a_service(url: str, key: str, box: Sandbox) -> None:
    program = f"""
import asyncio, os
from tensorlake.sandbox import AsyncSandboxClient, SandboxClient
for client in SandboxClient.for_localhost(api_url={url!r}), SandboxClient.for_cloud(api_url={url!r}):
    print(client.connect({box.sandbox_id!r}).run("echo", ["there"]).stdout, flush=True)
async def main():
    for client in AsyncSandboxClient.for_localhost(api_url={url!r}), AsyncSandboxClient.for_cloud(api_url={url!r}):
        async with client:
            print((await (await client.connect({box.sandbox_id!r})).run("echo", ["there"])).stdout, flush=True)
asyncio.run(main())
os._exit(0)  # its threads outlive its sessions, and may abort an interpreter that ends in order (PyGILState_Release)
"""
    env = {**os.environ, "TENSORLAKE_API_KEY": key, "PYTHONWARNINGS": "ignore"}
    pipe = asyncio.subprocess.PIPE
    done = await asyncio.create_subprocess_exec(sys.executable, "-c", program, env=env, stdout=pipe, stderr=pipe)
    out, err = await done.communicate()
    assert (done.returncode, out) == (0, b"there\n" * 4), err
    with pytest.deprecated_call():
        assert status(lambda: SandboxClient.for_localhost(api_url=url).list()) == 401
    for stranger in (AsyncSandboxClient.for_localhost(api_url=url), AsyncSandboxClient.for_cloud(api_key="wrong", api_url=url)):
        assert await status_of(stranger.list()) == 401
        await stranger.close()
