"""A service that attaches a volume to a sandbox, or detaches one, and ends itself by SIGKILL in the middle of it, at a step that a test names.

    python -m tests.support.halfmoved DATA_DIR DEED STEP

As :mod:`tests.support.forsaken`, for volumes of sandboxes that run.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

from sandlot.core.lifecycle import mounts
from sandlot.core.records.sandboxes import SandboxRecorder
from sandlot.core.volumes.mounter import VolumeMounter
from sandlot.drivers.oci.instance import OciInstance
from sandlot.model.access import OPERATOR
from sandlot.model.specs import MIB, VolumeMount
from tests.support.forsaken import after, amid, say
from tests.support.saving import make, real_service, shell

STEPS: dict[str, Callable[[], None]] = {
    "intended": lambda: after(SandboxRecorder, "save"),
    "mounted": lambda: after(VolumeMounter, "attach"),
    "asking": lambda: amid(mounts, "ask"),
    "asked": lambda: after(mounts, "ask"),
    "seen": lambda: after(OciInstance, "configure"),
    "recorded": lambda: after(SandboxRecorder, "save_update"),
}
"""Where to die."""


async def main(data_dir: Path, deed: str, step: str) -> None:
    async with real_service(data_dir, keep=True) as service:
        made = await service.node.volumes.create(OPERATOR, name="data", size_bytes=16 * MIB)
        sandbox = await make(service)
        say(box=sandbox.id, volume=made.id)
        if deed == "detach":
            await service.internals.mounts.attach(OPERATOR, sandbox.id, VolumeMount("data", "/data"))
            await shell(service.node, sandbox, "echo kept > /data/word")
        STEPS[step]()
        if deed == "detach":
            await service.internals.mounts.detach(OPERATOR, sandbox.id, "/data")
        else:
            await service.internals.mounts.attach(OPERATOR, sandbox.id, VolumeMount("data", "/data"))
        say(done=deed)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
