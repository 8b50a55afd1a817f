"""A host that is about to die: it holds a sandbox's link with everything under way, and waits for its SIGKILL.

    python tests/support/doomed.py DATA_DIR NODE ISOLATION [REF]

It makes a sandbox, or takes over the one of that ref, has a flood of output, an upload, a cell and short calls in flight, and
says on its standard output, line by line in JSON, what it has begun and how far it is.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from sandlot.drivers.registry import DriverSettings, open_driver
from sandlot.images.store import ImageStore
from sandlot.link.client import Link
from sandlot.link.processes import ProcessCall
from sandlot.model.access import LOCAL
from sandlot.model.executions import Output
from sandlot.model.ids import NodeId, new_sandbox_id
from sandlot.model.ports import Instance
from sandlot.model.specs import CellSpec, Limits, ProcessSpec, SandboxSpec, Shape, TemplateRef
from sandlot.server.settings import Settings

COUNTER = """
import itertools, os
for start in itertools.count(0, 700):
    text = "".join(f"{n:09d}\\n" for n in range(start, start + 700)).encode()
    while text:
        text = text[os.write(1, text):]
"""
"""Output that says where it stands: line n is at byte 10 n."""
LIMITS = Limits(memory_bytes=512 << 20, disk_bytes=256 << 20, pids=64)


async def boot(data_dir: Path, node: NodeId, isolation: str) -> tuple[Instance, Link]:
    """Make a sandbox and wake its guest."""
    root = ImageStore(Settings.load().cache_dir).root("base")
    driver = open_driver(isolation, DriverSettings(node=node, data_dir=data_dir))
    prepared = await driver.prepare(Shape(root=root, limits=LIMITS))
    spec = SandboxSpec(id=new_sandbox_id(node), template=TemplateRef(LOCAL, "base"), limits=LIMITS)
    instance = await prepared.boot(spec)
    link = await Link.open(await instance.connect())
    await link.wake(identity=spec.id, hostname="inside", env={}, pids=LIMITS.pids, deadline_s=600)
    return instance, link


def say(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


async def read_flood(call: ProcessCall) -> None:
    told = 0
    async for item in call:
        if isinstance(item, Output) and item.offset >= told:
            told = item.offset + 65536
            say(stdout=item.offset + len(item.data))


async def endless() -> AsyncIterator[bytes]:
    for _ in itertools.count():
        yield bytes(65536)
        await asyncio.sleep(0.001)


async def chatter(link: Link) -> None:
    while True:
        await asyncio.gather(*(link.files.stat("/workspace") for _ in range(20)))


async def main(data_dir: Path, node: NodeId, isolation: str, ref: str | None) -> None:
    if ref is None:
        instance, link = await boot(data_dir, node, isolation)
        await (await link.kernels.execute(CellSpec("kept, runs = 'since the first host', 0"))).result()
    else:
        instance = await open_driver(isolation, DriverSettings(node=node, data_dir=data_dir)).adopt(ref)
        link = await Link.open(await instance.connect())
    flood = await link.processes.start(ProcessSpec(("python3", "-c", COUNTER), timeout_s=None))
    cell = await link.kernels.execute(CellSpec("import time\nruns += 1\nprint('begun', flush=True)\ntime.sleep(1.5)\nprint('done')\nruns"))
    say(ref=instance.ref, flood=flood.id, cell=cell.id)
    await asyncio.gather(read_flood(flood), link.files.write("/workspace/half", endless()), chatter(link))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), NodeId(sys.argv[2]), sys.argv[3], sys.argv[4] if len(sys.argv) > 4 else None))
