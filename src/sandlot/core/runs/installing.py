"""Packages for a sandbox: the service that its guest asks, and installing them.

Laws:
- A sandbox of network ``packages`` may read the indexes at any time. One of network ``none`` may do so only while an install of a key that may
  runs in it; that is asked again for each request, so an install that is over closes them.
- An install is a run like any other: counted, logged, killed when its client goes away. One that fails is a result, in its package manager's words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sandlot.core.records.executions import NATIVE, Label
from sandlot.core.runs import processes
from sandlot.core.runs.outcomes import Finished
from sandlot.core.runs.processes import Run
from sandlot.core.runs.requirements import Installing
from sandlot.link.services import GuestStream, Service
from sandlot.model.access import Quota
from sandlot.model.specs import Network
from sandlot.protocol import schema

if TYPE_CHECKING:
    from sandlot.core.ports import Packages
    from sandlot.core.sandbox import Sandbox


def services_of(packages: Packages | None, box: Sandbox) -> Mapping[str, Service]:
    """What the guest of a sandbox may ask of the host, by name."""
    if packages is None:
        return {}

    async def serve(stream: GuestStream, _args: Mapping[str, Any]) -> None:
        await packages.serve(stream, sandbox=box.id, allowed=lambda: may_read(box))

    return {schema.PACKAGES: serve}


def may_read(box: Sandbox) -> bool:
    """Whether what runs in a sandbox may read package indexes now."""
    return box.spec.network is Network.PACKAGES or box.installs > 0


class Install:
    """An install that somebody follows. Close it in the end.

    Args:
        box: Where it runs.
        run: Its process.
        opens: Whether it opens the indexes while it runs; that it does is counted already.
    """

    __slots__ = ("_box", "_opens", "run")

    def __init__(self, box: Sandbox, run: Run, *, opens: bool) -> None:
        self.run = run
        self._box = box
        self._opens = opens

    async def close(self) -> None:
        """End it where it still runs, and close what it opened. Idempotent."""
        if self._opens:
            self._opens = False
            self._box.installs -= 1
        await self.run.close()


async def start(box: Sandbox, what: Installing, quota: Quota, *, label: Label = NATIVE) -> Install:
    """Begin to install, and follow it.

    Args:
        box: Where.
        what: What.
        quota: Of who asks.
        label: What the log says of it beyond what it is.

    Raises:
        SandlotError: It could not be started, or the sandbox has ended.
    """
    box.installs += quota.installs
    try:
        run = await processes.start(box, what.spec(), label=replace(label, argv=what.shown))
    except BaseException:
        box.installs -= quota.installs
        raise
    return Install(box, run, opens=quota.installs)


async def install(box: Sandbox, what: Installing, quota: Quota, *, label: Label = NATIVE) -> Finished:
    """Install, and collect what is written. Cancelling ends it.

    Args:
        box: Where.
        what: What.
        quota: Of who asks.
        label: What the log says of it beyond what it is.

    Raises:
        SandlotError: It could not be started, or the sandbox ended.
    """
    box.installs += quota.installs
    try:
        return await processes.run(box, what.spec(), label=replace(label, argv=what.shown))
    finally:
        box.installs -= quota.installs
