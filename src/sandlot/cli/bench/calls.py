"""Rows of existing sandboxes: requests, code, commands, kernels, files and packages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from sandlot.cli.bench.harness import BASE, CODE, PRINT, BenchHarness, RowFailedError, expect_ok, expect_success

MB = 1_000_000
MOVED_BYTES = 64 * MB
QUICK_BYTES = 8 * MB
PIECE = bytes(range(256)) * 256
TURN = 10
"""Calls in a series of native operations, and then of ours. If they alternated one by one, each would find the processor caches full of the other."""
REFILL_S = 3.0
"""Seconds of idle time after which a sandbox has a spare kernel again; it starts one after a second without activity."""
PACKAGE = "pandas"


async def noop(harness: BenchHarness) -> None:
    """Measure a request that does nothing: the cost of every call."""
    await harness.client.service.version()
    for _ in range(harness.times(30, 2)):
        for _ in range(TURN):
            await harness.native("noop", harness.baselines.http)
        for _ in range(TURN):
            with harness.timed("noop"):
                await harness.client.transport.request("GET", "/healthz")


async def stat(harness: BenchHarness) -> None:
    """Measure the smallest request that reaches the guest: the status of a directory."""
    sandbox = await harness.kept_sandbox(CODE)
    for _ in range(harness.times(30, 2)):
        for _ in range(TURN):
            await harness.native("stat", harness.baselines.http)
        for _ in range(TURN):
            with harness.timed("stat"):
                await sandbox.files.stat("/workspace")


async def run_code(harness: BenchHarness) -> None:
    """Measure code in a kernel that has run code before."""
    sandbox = await harness.kept_sandbox(CODE)
    for _ in range(harness.times(30, 2)):
        for _ in range(TURN):
            await harness.native("run_code", harness.baselines.execute)
        for _ in range(TURN):
            with harness.timed("run_code"):
                run = await sandbox.run_code(PRINT)
            expect_ok(run)


async def command(harness: BenchHarness) -> None:
    """Measure a shell that does nothing; part ``inside``: the time that the guest took."""
    sandbox = await harness.kept_sandbox(CODE)
    for _ in range(harness.times(10, 1)):
        for _ in range(TURN):
            await harness.native("command", harness.baselines.shell)
        for _ in range(TURN):
            with harness.timed("command"):
                run = await sandbox.commands.run("true")
            harness.add("command", expect_success(run).duration_s * 1000, part="inside")


async def kernel_new(harness: BenchHarness) -> None:
    """Measure a new context until the end of its first code, while the sandbox has a spare kernel; part ``create``: the context alone."""
    sandbox = await harness.kept_sandbox(CODE)
    # A restored sandbox has no spare kernel; the process from which spares are forked starts with the first request for one.
    await sandbox.contexts.delete(await sandbox.contexts.create())
    for _ in range(harness.times(20)):
        await asyncio.sleep(REFILL_S)
        await harness.native("kernel_new", harness.baselines.python)
        with harness.timed("kernel_new"):
            with harness.timed("kernel_new", part="create"):
                context = await sandbox.contexts.create()
            run = await sandbox.run_code(PRINT, context=context)
        expect_ok(run)
        await sandbox.contexts.delete(context)


async def transfer(harness: BenchHarness) -> None:
    """Measure the upload and download of a file, in megabytes (10^6 bytes) per second."""
    sandbox = await harness.kept_sandbox(BASE)
    size = QUICK_BYTES if harness.quick else MOVED_BYTES
    size = size // len(PIECE) * len(PIECE)
    path = "/workspace/moved"
    for _ in range(harness.times(7, 2)):
        began_s = time.perf_counter()
        await harness.baselines.upload(_content(size), size)
        harness.add_native("upload_mb_s", size / MB / (time.perf_counter() - began_s))
        began_s = time.perf_counter()
        await sandbox.files.write(path, _content(size))
        harness.add("upload_mb_s", size / MB / (time.perf_counter() - began_s))
        began_s = time.perf_counter()
        await harness.baselines.download()
        harness.add_native("download_mb_s", size / MB / (time.perf_counter() - began_s))
        began_s, taken = time.perf_counter(), 0
        async with await sandbox.files.read(path, "stream") as stream:
            async for piece in stream:
                taken += len(piece)
        harness.add("download_mb_s", size / MB / (time.perf_counter() - began_s))
        if taken != size:
            raise RowFailedError(f"{taken} of {size} bytes were downloaded.")
        await sandbox.files.remove(path)


async def install_pandas(harness: BenchHarness) -> None:
    """Measure an installation in a new sandbox; part ``first``: the first installation, which may fill the service's cache."""
    for turn in range(harness.times(4, 1) + 1):
        native_s = await harness.baselines.install(PACKAGE) if turn else None
        if native_s is not None:
            harness.add_native("install_pandas", native_s * 1000)
        sandbox = await harness.create(BASE)
        try:
            with harness.timed("install_pandas", part=None if turn else "first"):
                run = await sandbox.install(PACKAGE)
            expect_success(run)
        finally:
            await harness.kill(sandbox)


async def _content(size_bytes: int) -> AsyncIterator[bytes]:
    for _ in range(size_bytes // len(PIECE)):
        yield PIECE
