"""A program that uses a driver, as the service does, until a test kills the program with SIGKILL. This simulates a crash of the service.

The program is ``python -m sandlot.testing.drivers.crashing_service MODE DRIVER NODE DATA_DIR DIGEST TREE IMAGE INDEX``. ``TREE``, or ``IMAGE`` and
``INDEX``, is an empty text. The modes:

- ``live``: boot a sandbox, write a file into the sandbox, print the sandbox's reference and wait.
- ``prepared``: prepare a sandbox, print ``ready`` and wait.
- ``churn``: print ``ready``, then prepare, boot and destroy sandboxes without end, three at a time.
- ``snapshots``: boot a sandbox and print its reference. Then take snapshots of the sandbox without end, running and paused. At the same time, restore
  copies from a snapshot, take snapshots of the copies and destroy the copies.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from sandlot.model.ids import NodeId
from sandlot.model.specs import RootFs
from sandlot.testing.drivers.harness import DriverHarness, connect_sandbox, restore_snapshot, take_snapshot

MARKER_PATH = "/tmp/marker"  # noqa: S108 - inside the sandbox
"""File that the modes ``live`` and ``snapshots`` write into their sandbox."""
MARKER_TEXT = "written by the killed service\n"
_TASKS = 3


@contextmanager
def crashing_service(harness: DriverHarness, mode: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run this module as a program. Yield the process and the first line of its output; kill the process at the end of the block.

    Args:
        harness: Driver that the program uses.
        mode: Mode of the program: ``live``, ``prepared``, ``churn`` or ``snapshots``.
    """
    root = harness.root
    paths = [str(path or "") for path in (root.tree, root.image, root.index)]
    arguments = [mode, harness.driver_name, harness.node, str(harness.data_dir), root.digest, *paths]
    service = subprocess.Popen([sys.executable, "-m", __name__, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        if service.stdout is None:
            raise AssertionError("the crashing service has no pipe as standard output")
        line = service.stdout.readline().strip()
        assert line, "the service failed"
        yield service, line
    finally:
        service.kill()
        service.communicate()


async def live(harness: DriverHarness) -> None:
    """Boot one sandbox, print its reference and wait. If the program is killed, a live sandbox remains."""
    instance = await harness.boot(harness.new_driver())
    async with connect_sandbox(instance) as sandbox:
        await sandbox.link.files.write(MARKER_PATH, MARKER_TEXT.encode())
    _print(instance.ref)
    await asyncio.Event().wait()


async def prepared(harness: DriverHarness) -> None:
    """Prepare one sandbox and wait. If the program is killed, a prepared sandbox remains."""
    sandbox = await harness.new_driver().prepare(harness.shape())
    _print("ready")
    await asyncio.Event().wait()
    await sandbox.destroy()


async def churn(harness: DriverHarness) -> None:
    """Prepare, boot and destroy sandboxes without end. The program can be killed during any of these steps."""
    driver = harness.new_driver()

    async def create_and_destroy() -> None:
        while True:
            sandbox = await driver.prepare(harness.shape())
            instance = await sandbox.boot(harness.spec())
            await instance.destroy()

    _print("ready")
    await asyncio.gather(*(create_and_destroy() for _ in range(_TASKS)))


async def snapshots(harness: DriverHarness) -> None:
    """Take and restore snapshots without end. The program can be killed during any step of a snapshot or restore."""
    driver, saved = harness.new_driver(), harness.data_dir / "saved"
    source, first = await harness.boot(driver), saved / "first" / "image"
    async with connect_sandbox(source) as sandbox:
        await sandbox.link.files.write(MARKER_PATH, MARKER_TEXT.encode())
        await sandbox.link.checkpoint(armed=True)
        await take_snapshot(source, first, keep_running=True)

    async def save_source() -> None:
        for number in count():
            if number % 2:
                await source.pause()
            await take_snapshot(source, saved / f"source-{number}" / "image", keep_running=True, durable=number % 3 == 0)
            await source.resume()

    async def restore_and_save(task: int) -> None:
        for number in count():
            sandbox = await driver.prepare(harness.shape(), snapshot=first)
            if (task + number) % 2:
                await sandbox.warm()
            instance = await restore_snapshot(driver, sandbox, first, harness.spec())
            await take_snapshot(instance, saved / f"copy-{task}-{number}" / "image", keep_running=False, durable=False)
            await instance.destroy()

    _print(source.ref)
    await asyncio.gather(save_source(), *(restore_and_save(task) for task in range(_TASKS - 1)))


def main(arguments: list[str]) -> None:
    """Use the driver as the mode in the first argument says, until a test kills this program.

    Args:
        arguments: Mode of the program, name of the driver, node id, state directory, and the fields of the root file system.
    """
    mode, driver_name, node, data_dir, digest, *paths = arguments
    root = RootFs(digest, *(Path(path) if path else None for path in paths))
    harness = DriverHarness(driver_name, root, NodeId(node), Path(data_dir))
    asyncio.run({"live": live, "prepared": prepared, "churn": churn, "snapshots": snapshots}[mode](harness))


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
