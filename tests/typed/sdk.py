"""The SDK as a type checker of its users sees it. Checked by scripts/lint (mypy), never run: an ignore that is not needed is an error as well."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, assert_type

from sandlot import (
    AsyncClient,
    AsyncSandbox,
    Client,
    Execution,
    Network,
    NotFoundError,
    ProgramResult,
    Sandbox,
    SandboxInfo,
    SandlotError,
)
from sandlot.sdk import (
    AsyncCodeHandle,
    AsyncCommandHandle,
    CodeEvent,
    CodeHandle,
    CommandHandle,
    CommandResult,
    Context,
    ErrorCode,
    FileEntry,
    ForkBatch,
    ForkTree,
    SnapshotInfo,
    Usage,
)


def synchronous(client: Client) -> None:
    sandbox = Sandbox.create(
        "base",
        timeout=60,
        idle_timeout=10.5,
        persistent=False,
        envs={"A": "b"},
        metadata={"user": "alice"},
        cpus=0.5,
        memory="512M",
        disk=1 << 30,
        pids=100,
        isolation="auto",
        network=Network("none"),
        name="mine",
        file_ids=["file-1"],
        idempotency_key="k",
        client=client,
    )
    assert_type(sandbox, Sandbox)
    assert_type(Sandbox.connect(sandbox.id), Sandbox)
    assert_type(Sandbox.list(state=["running"], metadata={"a": "b"}, limit=5), list[SandboxInfo])
    assert_type(client.sandboxes.iter(state="running"), Iterator[SandboxInfo])
    assert_type(sandbox.run_code("1", on_stdout=print), Execution)
    assert_type(sandbox.run_code("1", "bash", context=sandbox.contexts.create(), background=True), CodeHandle)
    assert_type(sandbox.connect_code("e1").wait(), Execution)
    assert_type(sandbox.contexts.list(), list[Context])
    for event in sandbox.stream_code("1"):
        assert_type(event, CodeEvent)
    assert_type(sandbox.commands.run("true"), CommandResult)
    assert_type(sandbox.commands.run(["sleep", "1"], background=True), CommandHandle)
    assert_type(sandbox.install("six", on_stdout=print), CommandResult)
    assert_type(sandbox.files.list("/workspace"), list[FileEntry])
    assert_type(sandbox.files.read("/x"), str)
    assert_type(sandbox.update(memory="1G"), SandboxInfo)
    assert_type(sandbox.usage(), Usage)
    assert_type(sandbox.snapshot("mine", kind="files"), SnapshotInfo)
    assert_type(sandbox.fork(2, envs={"A": "b"}, timeout=60), ForkBatch)
    assert_type(sandbox.fork_tree(), ForkTree)
    assert_type(sandbox.promote(), list[str])
    assert_type(Sandbox.create(snapshot="mine", on_timeout="hibernate", auto_resume=False), Sandbox)
    assert_type(client.snapshots.list(limit=5), list[SnapshotInfo])
    assert_type(client.service.capacity(), dict[str, Any])
    assert_type(client.programs.run("python", "1", stdin="x", files={"a": b"b"}, comparison="numeric", memory="64M"), ProgramResult)
    assert_type(client.programs.run_batch([{"language": "bash", "code": "true"}], concurrency=2)[0].error, SandlotError | None)
    with sandbox as entered:
        assert_type(entered, Sandbox)
    sandbox.kill()
    Sandbox.kill("sb-1")


async def asynchronous(client: AsyncClient) -> None:
    async with AsyncSandbox.create("base", persistent=True, client=client) as sandbox:
        assert_type(sandbox, AsyncSandbox)
        assert_type(await sandbox.run_code("1"), Execution)
        assert_type(await sandbox.run_code("1", background=True), AsyncCodeHandle)
        assert_type(await sandbox.contexts.create(), Context)
        async for event in sandbox.stream_code("1"):
            assert_type(event, CodeEvent)
        assert_type(await sandbox.commands.run("true", background=True), AsyncCommandHandle)
        assert_type(await sandbox.install(manager="npm", packages=["left-pad"]), CommandResult)
        assert_type(await sandbox.files.stat("/x"), FileEntry)
        assert_type(await sandbox.info(), SandboxInfo)
    assert_type(await AsyncSandbox.list(), list[SandboxInfo])
    assert_type(client.sandboxes.iter(), AsyncIterator[SandboxInfo])


def errors() -> None:
    try:
        Sandbox.connect("sb-1")
    except NotFoundError as error:
        assert_type(error.code, ErrorCode)
        assert_type(error.hint, str)
    except SandlotError as error:
        assert_type(error.retryable, bool)


def mistakes(client: Client) -> None:
    Sandbox.create(tiemout=5)  # type: ignore[call-arg]
    Sandbox.create(metadata={"a": 1})  # type: ignore[dict-item]
    Sandbox.create(timeout="soon")  # type: ignore[arg-type]
    client.sandboxes.get(5)  # type: ignore[arg-type]
    client.programs.run("bash", "true", tiemout=5)  # type: ignore[call-arg]
    client.programs.run("bash", "true", comparison="fuzzy")  # type: ignore[arg-type]
    client.programs.run_batch([{"language": "bash"}])  # type: ignore[typeddict-item]
