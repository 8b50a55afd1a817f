"""The SDK as a type checker of its users sees it: every public method once. Checked by scripts/lint (mypy), never run.

An ignore that is not needed is an error as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import assert_type

from sandlot import (
    AsyncClient,
    AsyncCodeHandle,
    AsyncCommandHandle,
    AsyncFileStream,
    AsyncFileWatch,
    AsyncForkBatch,
    AsyncPortForward,
    AsyncSandbox,
    AsyncTerminal,
    AsyncTunnel,
    BatchItem,
    CapacityInfo,
    Client,
    CodeEvent,
    CodeHandle,
    CommandHandle,
    CommandResult,
    Context,
    CurrentKey,
    DriverInfo,
    ErrorCode,
    EventInfo,
    Execution,
    ExecutionFailedError,
    ExecutionInfo,
    ExecutionResults,
    FileEntry,
    FileEvent,
    FileStream,
    FileWatch,
    ForkBatch,
    ForkTree,
    KeyInfo,
    LanguageInfo,
    Limits,
    ListeningPort,
    LocalService,
    LogEntry,
    Mount,
    Network,
    NewKey,
    NotFoundError,
    Output,
    PoolInfo,
    PortForward,
    ProcessInfo,
    ProgramResult,
    Quota,
    Result,
    Sandbox,
    SandboxInfo,
    SandlotError,
    ServiceStopResult,
    SnapshotInfo,
    StoredFile,
    TemplateInfo,
    Terminal,
    Tunnel,
    Usage,
    VersionInfo,
    VolumeInfo,
    WatcherInfo,
    WebhookInfo,
    parse_size,
)


def starts(client: Client) -> None:
    sandbox = Sandbox.create(
        "base",
        snapshot="s",
        name="mine",
        metadata={"user": "alice"},
        envs={"A": "b"},
        timeout=60,
        persistent=False,
        idle_timeout=10.5,
        on_timeout="hibernate",
        auto_resume=False,
        cpus=0.5,
        memory="512M",
        disk=1 << 30,
        pids=100,
        isolation="auto",
        network=Network("none"),
        volumes={"/a": "sets", "/b": Mount("sets", read_only=True)},
        file_ids=["file-1"],
        idempotency_key="k",
        client=client,
    )
    assert_type(sandbox, Sandbox)
    assert_type(Sandbox.get_or_create("mine", "base", network="none", timeout=5), Sandbox)
    assert_type(Sandbox.connect("mine", timeout=5, resume=False), Sandbox)
    assert_type(Sandbox.list(state=["running"], metadata={"a": "b"}, name="n", ended=True, limit=5), list[SandboxInfo])
    assert_type(Sandbox(client, sandbox.info()), Sandbox)
    Sandbox.kill("sb-1", url="http://host", api_key="k")
    with Sandbox.create() as entered:
        assert_type(entered, Sandbox)


def sandboxes(sandbox: Sandbox) -> None:
    assert_type((sandbox.id, sandbox.sandbox_id, sandbox.template, sandbox.isolation), tuple[str, str, str, str])
    assert_type((sandbox.metadata, sandbox.limits, sandbox.was_created), tuple[Mapping[str, str], Limits, bool])
    assert_type((sandbox.info(), sandbox.get_info()), tuple[SandboxInfo, SandboxInfo])
    assert_type(sandbox.is_running(), bool)
    assert_type(sandbox.usage(), Usage)
    sandbox.set_timeout(5)
    changed = sandbox.update(
        timeout=5,
        persistent=True,
        idle_timeout=0,
        on_timeout="kill",
        auto_resume=True,
        name="n",
        metadata={},
        cpus=1,
        memory="1G",
        disk="2G",
        pids=9,
    )
    assert_type(changed, SandboxInfo)
    sandbox.pause()
    sandbox.resume(timeout=5)
    sandbox.hibernate()
    assert_type(sandbox.snapshot("mine", kind="files", idempotency_key="k"), SnapshotInfo)
    assert_type(sandbox.create_snapshot(), SnapshotInfo)
    assert_type(sandbox.fork_tree(), ForkTree)
    assert_type(sandbox.promote(), list[str])
    with sandbox.fork(2, name="n", metadata={}, envs={"A": "b"}, timeout=60, share_volumes=True, idempotency_key="k") as forks:
        assert_type((forks, forks[0]), tuple[ForkBatch, Sandbox])
        for fork in forks:
            assert_type(fork, Sandbox)
    sandbox.attach_volume("data", "/data", read_only=True)
    sandbox.detach_volume("/data")
    assert_type(sandbox.ports(), list[ListeningPort])
    with sandbox.tunnel(80) as tunnel:
        assert_type(tunnel, Tunnel)
        assert_type((tunnel.port, tunnel.receive()), tuple[int, bytes | None])
        tunnel.send(b"x")
        tunnel.end()
        tunnel.wait()
    with sandbox.forward(80, 8080, host="::1", on_error=print) as forward:
        assert_type(forward, PortForward)
        assert_type((forward.port, forward.local_host, forward.local_port, forward.address), tuple[int, str, int, str])
    assert_type(sandbox.logs("stdout"), list[LogEntry])
    for entry in sandbox.follow_logs():
        assert_type(entry, LogEntry)
    sandbox.close()
    sandbox.kill()


def runs(sandbox: Sandbox) -> None:
    execution = sandbox.run_code(
        "1", "bash", context="c", envs={}, timeout=None, check=True, on_stdout=print, on_stderr=print, on_result=print, on_error=print
    )
    assert_type(execution, Execution)
    assert_type(execution.check(), Execution)
    handle = sandbox.run_code("1", background=True)
    assert_type(handle, CodeHandle)
    assert_type((handle.id, handle.stdout, handle.stderr, handle.results, handle.result), tuple[str, str, str, tuple[Result, ...], Execution | None])
    assert_type(handle.wait(check=True, on_stdout=print), Execution)
    assert_type((handle.poll(), handle.state(), handle.interrupt()), tuple[Execution | None, Execution, bool])
    for event in handle:
        assert_type(event, CodeEvent)
    for event in sandbox.stream_code("1", context=Context("c", "python", "/", "idle")):
        assert_type(event, CodeEvent)
    assert_type(sandbox.connect_code("e1", events_from=1, stdout_from=2, stderr_from=3), CodeHandle)
    assert_type(sandbox.create_code_context("/tmp", "python"), Context)
    assert_type(sandbox.install(["six"], manager="npm", user="root", timeout=5, check=True, on_output=print), CommandResult)
    contexts = sandbox.contexts
    context = contexts.create("bash", cwd="/tmp", envs={})
    assert_type((context, contexts.list(), contexts.get(context), contexts.interrupt()), tuple[Context, list[Context], Context, bool])
    contexts.restart(context)
    contexts.delete(context)


def commands(sandbox: Sandbox) -> None:
    result = sandbox.commands.run(
        "true", envs={}, cwd="/", user="root", stdin=[b"x"], timeout=None, check=True, track=["/"], tag="t", on_output=print
    )
    assert_type(result, CommandResult)
    assert_type(result.check(), CommandResult)
    handle = sandbox.commands.run(["sleep", "1"], background=True, stdin=True)
    assert_type(handle, CommandHandle)
    assert_type((handle.id, handle.pid, handle.stdout, handle.stderr), tuple[str, int | None, str, str])
    assert_type((handle.stdout_offset, handle.stderr_offset, handle.result), tuple[int, int, CommandResult | None])
    assert_type((handle.wait(check=True, on_stdout=print), handle.poll()), tuple[CommandResult, CommandResult | None])
    assert_type((handle.kill("SIGTERM"), handle.send_stdin("x", offset=0)), tuple[bool, int])
    handle.close_stdin()
    for piece in handle.output(follow=False):
        assert_type(piece, Output)
    assert_type((sandbox.commands.list(), sandbox.commands.get("p")), tuple[list[ProcessInfo], ProcessInfo])
    assert_type(sandbox.commands.connect("p", stdout_from=1, stderr_from=2), CommandHandle)
    assert_type((sandbox.commands.kill("p", 9), sandbox.commands.restart("p")), tuple[bool, str])
    assert_type(sandbox.commands.send_stdin("p", b"x", offset=0), int)
    with sandbox.pty.create("bash", rows=24, cols=80, envs={}, cwd="/", user="root", timeout=5, tag="t") as terminal:
        assert_type(terminal, Terminal)
        assert_type((terminal.id, terminal.pid, terminal.offset, terminal.lost_bytes), tuple[str, int | None, int, int])
        assert_type((terminal.read(), terminal.result, terminal.wait()), tuple[bytes | None, CommandResult | None, CommandResult])
        terminal.send("ls\n")
        terminal.resize(30, 100)
        terminal.send_eof()
        assert_type(terminal.kill(), bool)
    assert_type(sandbox.pty.connect("p", offset=5, rows=1, cols=2), Terminal)


def files(sandbox: Sandbox) -> None:
    files = sandbox.files
    assert_type((files.read("/x"), files.read("/x", "bytes")), tuple[str, bytes])
    with files.read("/x", "stream") as stream:
        assert_type(stream, FileStream)
    assert_type(files.write("/x", b"y", user="root", mode=0o600, append=True), FileEntry)
    assert_type(files.write("/x", b"y", in_place=True), FileEntry)
    assert_type(files.write_many({"/x": "y", "/z": b"z"}), list[FileEntry])
    assert_type((files.list("/"), files.stat("/x"), files.exists("/x"), files.make_dir("/d")), tuple[list[FileEntry], FileEntry, bool, bool])
    assert_type((files.move("/x", "/y", overwrite=True), files.rename("/y", "/x"), files.remove("/x")), tuple[FileEntry, FileEntry, int])
    assert_type((files.upload("here", "/there", on_progress=print), files.download("/there", Path("here"))), tuple[int, int])
    assert_type(files.sign_url("/x", method="PUT", expires_in=60), str)
    with files.watch("/d", recursive=True) as watch:
        assert_type((watch, watch.by), tuple[FileWatch, str])
        for event in watch:
            assert_type(event, FileEvent)
    assert_type(
        (files.watchers.create("/d"), files.watchers.list(), files.watchers.take("w")), tuple[WatcherInfo, list[WatcherInfo], list[FileEvent]]
    )
    files.watchers.delete("w")


def clients(client: Client) -> None:
    with Client("http://host", "key", data_dir="/d", autostart=False) as entered:
        assert_type(entered, Client)
    assert_type((client.sandboxes.list(limit=5), client.sandboxes.iter(state="running")), tuple[list[SandboxInfo], Iterator[SandboxInfo]])
    assert_type(client.sandboxes.get("mine"), SandboxInfo)
    client.sandboxes.kill("mine")
    snapshots, volumes, pools, webhooks = client.snapshots, client.volumes, client.pools, client.webhooks
    assert_type((snapshots.list(limit=5), snapshots.iter(), snapshots.get("s")), tuple[list[SnapshotInfo], Iterator[SnapshotInfo], SnapshotInfo])
    snapshots.delete("s")
    assert_type((volumes.create("v", "1G"), volumes.list(), volumes.get("v")), tuple[VolumeInfo, list[VolumeInfo], VolumeInfo])
    volumes.delete("v")
    assert_type((pools.create("base", warm=2, max=4, memory="1G"), pools.list(), pools.get("p")), tuple[PoolInfo, list[PoolInfo], PoolInfo])
    assert_type(pools.update("p", warm=3, metadata={}), PoolInfo)
    pools.delete("p")
    assert_type((webhooks.create("https://x"), webhooks.list(), webhooks.get("w")), tuple[WebhookInfo, list[WebhookInfo], WebhookInfo])
    assert_type(webhooks.update("w", url="https://y", events=["sandbox.ended"], name="n", enabled=False), WebhookInfo)
    webhooks.delete("w")
    assert_type((client.templates.list(), client.templates.get("base")), tuple[list[TemplateInfo], TemplateInfo])
    service = client.service
    assert_type((service.version(), service.capabilities(), service.capacity()), tuple[VersionInfo, list[DriverInfo], CapacityInfo])
    assert_type(service.stop(), ServiceStopResult)


def records(client: Client) -> None:
    keys, store = client.keys, client.file_store
    assert_type(keys.create("k", operator=True, quota=Quota(), expires_at=datetime.now(), format="e2b"), NewKey)  # noqa: DTZ005
    assert_type((keys.list(), keys.iter(), keys.get("k"), keys.get_current()), tuple[list[KeyInfo], Iterator[KeyInfo], KeyInfo, CurrentKey])
    assert_type(keys.update("k", name="n", quota=Quota(), expires_at="never"), KeyInfo)
    keys.delete("k")
    assert_type(store.upload(b"x", filename="x", media_type="text/plain", on_progress=print), StoredFile)
    assert_type(
        (store.list(limit=5), store.iter(), store.get("f"), store.read("f")), tuple[list[StoredFile], Iterator[StoredFile], StoredFile, bytes]
    )
    with store.stream("f") as chunks:
        assert_type(chunks, Iterator[bytes])
    assert_type((store.download("f", "here"), store.import_files("sb-1", ["f"], path="/d")), tuple[Path, list[FileEntry]])
    assert_type(store.export_file("sb-1", "/x", filename="x"), StoredFile)
    store.delete("f")
    assert_type((client.events.list(sandbox="sb-1", limit=5), client.events.iter(after=5)), tuple[list[EventInfo], Iterator[EventInfo]])
    for event in client.events.follow(after=5):
        assert_type(event, EventInfo)
    assert_type(client.executions.list(sandbox="sb-1", limit=5), list[ExecutionInfo])
    assert_type((client.executions.results("e"), client.executions.notebook("sb-1")), tuple[ExecutionResults, str])
    assert_type((client.executions.iter(), client.executions.get("e")), tuple[Iterator[ExecutionInfo], ExecutionInfo])
    programs = client.programs
    assert_type(programs.run("python", "1", stdin="x", files={"a": b"b"}, comparison="numeric", memory="64M"), ProgramResult)
    assert_type(programs.run_batch([{"language": "bash", "code": "true"}], concurrency=2)[0].error, SandlotError | None)
    for item in programs.iter_batch([]):
        assert_type(item, BatchItem)
    assert_type(client.programs.languages(), list[LanguageInfo])
    local = LocalService("/var/lib/sandlot")
    assert_type((local.is_running(), local.has_sandboxes(), parse_size("1G")), tuple[bool, bool, int])


async def asynchronous(client: AsyncClient) -> None:
    async with AsyncSandbox.create("base", persistent=True, client=client) as sandbox:
        assert_type(sandbox, AsyncSandbox)
        assert_type(await sandbox.run_code("1"), Execution)
        assert_type(await sandbox.run_code("1", background=True), AsyncCodeHandle)
        async for event in sandbox.stream_code("1"):
            assert_type(event, CodeEvent)
        assert_type(await sandbox.commands.run("true", background=True), AsyncCommandHandle)
        assert_type(await sandbox.install("left-pad", manager="npm"), CommandResult)
        assert_type(await sandbox.files.stat("/x"), FileEntry)
        async with await sandbox.files.read("/x", "stream") as stream:
            assert_type(stream, AsyncFileStream)
        assert_type(await sandbox.info(), SandboxInfo)
        async with sandbox.fork(2) as forks, sandbox.tunnel(80) as tunnel, sandbox.forward(80) as forward:
            assert_type((forks, forks[0], tunnel, forward), tuple[AsyncForkBatch, AsyncSandbox, AsyncTunnel, AsyncPortForward])
        async with sandbox.pty.create() as terminal, sandbox.files.watch("/d") as watch:
            assert_type((terminal, watch), tuple[AsyncTerminal, AsyncFileWatch])
    assert_type(await AsyncSandbox.connect("sb-1"), AsyncSandbox)
    assert_type(await asyncio.create_task(AsyncSandbox.get_or_create("mine")), AsyncSandbox)
    assert_type(await AsyncSandbox.list(), list[SandboxInfo])
    assert_type(client.sandboxes.iter(), AsyncIterator[SandboxInfo])
    await client.aclose()


def errors() -> None:
    try:
        Sandbox.connect("sb-1").commands.run("x", check=True)
    except NotFoundError as error:
        assert_type((error.code, error.hint), tuple[ErrorCode, str])
    except ExecutionFailedError as error:
        assert_type(error.message, str)
    except SandlotError as error:
        assert_type(error.retryable, bool)


def mistakes(client: Client, sandbox: Sandbox) -> None:
    Sandbox.create(tiemout=5)  # type: ignore[call-arg]
    Sandbox.create(metadata={"a": 1})  # type: ignore[dict-item]
    Sandbox.create(timeout="soon")  # type: ignore[arg-type]
    sandbox.run_code("1", background=True, check=True)  # type: ignore[call-overload]
    client.sandboxes.get(5)  # type: ignore[arg-type]
    client.programs.run("bash", "true", tiemout=5)  # type: ignore[call-arg]
    client.programs.run("bash", "true", comparison="fuzzy")  # type: ignore[arg-type]
    client.programs.run_batch([{"language": "bash"}])  # type: ignore[typeddict-item]
