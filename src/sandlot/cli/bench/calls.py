"""Rows of a sandbox that is there: requests, cells, commands, kernels, files, packages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from sandlot.cli.bench.harness import BASE, CODE, PRINT, CannotError, Rig, done, good

MB = 1_000_000
MOVED_BYTES = 64 * MB
QUICK_BYTES = 8 * MB
PIECE = bytes(range(256)) * 256
TURN = 10
"""Calls of a kind one after the other, then as many of the other: one by one, each would find the processors' caches full of the other."""
REFILL_S = 3.0
"""How long a sandbox is left alone until it has a spare kernel again, which it makes after a second of quiet."""
PACKAGE = "pandas"


async def noop(rig: Rig) -> None:
    """The service's own word that it is there: what any call costs."""
    await rig.client.service.version()
    for _ in range(rig.times(30, 2)):
        for _ in range(TURN):
            await rig.native("noop", rig.natives.http)
        for _ in range(TURN):
            with rig.clock("noop"):
                await rig.client.transport.request("GET", "/healthz")


async def stat(rig: Rig) -> None:
    """The smallest request that reaches the guest: the status of a directory."""
    sandbox = await rig.warm(CODE)
    for _ in range(rig.times(30, 2)):
        for _ in range(TURN):
            await rig.native("stat", rig.natives.http)
        for _ in range(TURN):
            with rig.clock("stat"):
                await sandbox.files.stat("/workspace")


async def run_code(rig: Rig) -> None:
    """A cell in a kernel that has run one before."""
    box = await rig.warm(CODE)
    for _ in range(rig.times(30, 2)):
        for _ in range(TURN):
            await rig.native("run_code", rig.natives.execute)
        for _ in range(TURN):
            with rig.clock("run_code"):
                run = await box.run_code(PRINT)
            good(run)


async def command(rig: Rig) -> None:
    """A shell that does nothing; ``inside`` is what the guest itself took for it."""
    box = await rig.warm(CODE)
    for _ in range(rig.times(10, 1)):
        for _ in range(TURN):
            await rig.native("command", rig.natives.shell)
        for _ in range(TURN):
            with rig.clock("command"):
                run = await box.commands.run("true")
            rig.add("command", done(run).duration_s * 1000, part="inside")


async def kernel_new(rig: Rig) -> None:
    """A new context until its first cell is answered, while the sandbox has a spare; ``create`` is the context alone."""
    box = await rig.warm(CODE)
    # One that was restored has no spare any more, and what spares are made of is made when the first is asked for.
    await box.contexts.delete(await box.contexts.create())
    for _ in range(rig.times(20)):
        await asyncio.sleep(REFILL_S)
        await rig.native("kernel_new", rig.natives.python)
        with rig.clock("kernel_new"):
            with rig.clock("kernel_new", part="create"):
                context = await box.contexts.create()
            run = await box.run_code(PRINT, context=context)
        good(run)
        await box.contexts.delete(context)


async def moved(rig: Rig) -> None:
    """A file there and back, in megabytes (10^6 bytes) a second, through the API as the SDK does it."""
    box = await rig.warm(BASE)
    size = QUICK_BYTES if rig.quick else MOVED_BYTES
    size = size // len(PIECE) * len(PIECE)
    path = "/workspace/moved"
    for _ in range(rig.times(7, 2)):
        began_s = time.perf_counter()
        await rig.natives.upload(_content(size), size)
        rig.add_native("upload_mb_s", size / MB / (time.perf_counter() - began_s))
        began_s = time.perf_counter()
        await box.files.write(path, _content(size))
        rig.add("upload_mb_s", size / MB / (time.perf_counter() - began_s))
        began_s = time.perf_counter()
        await rig.natives.download()
        rig.add_native("download_mb_s", size / MB / (time.perf_counter() - began_s))
        began_s, taken = time.perf_counter(), 0
        async with await box.files.read(path, "stream") as stream:
            async for piece in stream:
                taken += len(piece)
        rig.add("download_mb_s", size / MB / (time.perf_counter() - began_s))
        if taken != size:
            raise CannotError(f"{taken} bytes of {size} came back.")
        await box.files.remove(path)


async def install_pandas(rig: Rig) -> None:
    """Into a sandbox that has it not; the first one, which may fill the service's cache, is a part of its own."""
    for turn in range(rig.times(4, 1) + 1):
        native_s = await rig.natives.install(PACKAGE) if turn else None
        if native_s is not None:
            rig.add_native("install_pandas", native_s * 1000)
        box = await rig.create(BASE)
        try:
            with rig.clock("install_pandas", part=None if turn else "first"):
                run = await box.install(PACKAGE)
            done(run)
        finally:
            await rig.kill(box)


async def _content(size_bytes: int) -> AsyncIterator[bytes]:
    for _ in range(size_bytes // len(PIECE)):
        yield PIECE
