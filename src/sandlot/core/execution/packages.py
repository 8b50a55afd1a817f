"""Packages for a sandbox: the service that its guest asks, and installing them.

Laws:
- A sandbox of network ``packages`` may read the indexes at any time. One of network ``none`` may do so only while an install of a key that may
  runs in it; that is asked again for each request, so an install that is over closes them. One that goes on under the next service has them
  open there as well (:mod:`sandlot.core.execution.unattended`).
- An install is a run like any other: counted, logged, ended when its client goes away, but by SIGTERM first, so that its package manager may
  clean up. One that fails is a result, in its package manager's words.
- One that can be asked for again, because its client chose its id, goes on for whoever comes back, as a cell does
  (:mod:`sandlot.core.execution.code`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from sandlot.core.execution import code, processes
from sandlot.core.execution.output import CommandResult
from sandlot.core.execution.processes import ProcessExecution
from sandlot.core.execution.requirements import InstallParams
from sandlot.core.records.execution_log import NATIVE, ExecutionDescription
from sandlot.core.sandbox import ExecutionFollowers
from sandlot.link.services import GuestStream, Service
from sandlot.model.access import Quota
from sandlot.model.errors import NotFoundError, SandlotError
from sandlot.model.ids import ProcessId
from sandlot.model.records import FOREGROUND, INSTALL
from sandlot.model.specs import Network
from sandlot.protocol import schema

if TYPE_CHECKING:
    from sandlot.core.ports import PackageIndex
    from sandlot.core.sandbox import Sandbox

GRACE_S: Final = 10.0
"""How long a package manager that nobody waits for may clean up until it is killed."""


def services_of(packages: PackageIndex | None, sandbox: Sandbox) -> Mapping[str, Service]:
    """What the guest of a sandbox may ask of the host, by name."""
    if packages is None:
        return {}

    async def serve(stream: GuestStream, _args: Mapping[str, Any]) -> None:
        await packages.serve(stream, sandbox=sandbox.id, allowed=lambda: may_read(sandbox))

    return {schema.PACKAGES: serve}


def may_read(sandbox: Sandbox) -> bool:
    """Whether what runs in a sandbox may read package indexes now."""
    return sandbox.spec.network is Network.PACKAGES or sandbox.installs > 0


class Install:
    """An install that somebody follows. Close it in the end.

    Args:
        sandbox: Where it runs.
        run: Its process.
        opens: Whether it opens the indexes while it runs; that it does is counted already.
        followers: Who else is there for it; None where nobody else can be.
    """

    __slots__ = ("_attends", "_closed", "_followers", "_opens", "_sandbox", "run")

    def __init__(self, sandbox: Sandbox, run: ProcessExecution, *, opens: bool = False, followers: ExecutionFollowers | None = None) -> None:
        self.run = run
        self._sandbox = sandbox
        self._opens = opens
        self._closed = False
        self._followers = followers
        self._attends = followers is None or not followers.attended
        if followers is not None:
            followers.enter()
            followers.attended = True

    async def close(self) -> None:
        """Leave it: it is ended where it still runs, unless somebody else is there for it, or comes back in time. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._followers is not None:
            self._followers.leave()
        if not self._attends:
            await self.run.detach()
        elif self._followers is not None and not self.run.over:
            self._sandbox.spawn(self._linger(self._followers))
        else:
            await self._end()

    async def _linger(self, followers: ExecutionFollowers) -> None:
        reading = asyncio.create_task(self._read())
        away = asyncio.create_task(followers.away(code.AWAY_S))
        try:
            await asyncio.wait({reading, away}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (reading, away):
                task.cancel()
            await self._end()

    async def _read(self) -> None:
        with suppress(SandlotError):
            async for _ in self.run:
                pass
            await self.run.outcome()

    async def _end(self) -> None:
        if self._opens:
            self._sandbox.installs -= 1
        if self._followers is not None and self._sandbox.present.get(self.run.id) is self._followers:
            del self._sandbox.present[self.run.id]
        await self.run.close(GRACE_S)


async def start(
    sandbox: Sandbox,
    what: InstallParams,
    quota: Quota,
    *,
    description: ExecutionDescription = NATIVE,
    id: ProcessId | None = None,  # noqa: A002 - the word
) -> Install:
    """Begin to install, and follow it.

    Args:
        sandbox: Where.
        what: What.
        quota: Of who asks.
        description: What the log says of it beyond what it is.
        id: Its id, where the caller chose one; one that the guest knows, or that is being started, is joined, and not begun again.

    Raises:
        SandlotError: It could not be started, or the sandbox has ended.
    """
    if id is None:
        return await _begun(sandbox, what, quota, description)
    joining = asyncio.create_task(_joined(sandbox, what, quota, description, id))
    try:
        return await asyncio.shield(joining)
    except asyncio.CancelledError:
        sandbox.spawn(_left(joining))
        raise


async def install(
    sandbox: Sandbox,
    what: InstallParams,
    quota: Quota,
    *,
    description: ExecutionDescription = NATIVE,
    id: ProcessId | None = None,  # noqa: A002 - the word
) -> CommandResult:
    """Install, and collect what is written. Cancelling leaves it, as :meth:`Install.close` says.

    Args:
        sandbox: Where.
        what: What.
        quota: Of who asks.
        description: What the log says of it beyond what it is.
        id: As in :func:`start`.

    Raises:
        SandlotError: It could not be started, or the sandbox ended.
    """
    begun = await start(sandbox, what, quota, description=description, id=id)
    try:
        return await processes.collected(sandbox, begun.run, what.timeout_s)
    finally:
        await begun.close()


async def _joined(sandbox: Sandbox, what: InstallParams, quota: Quota, description: ExecutionDescription, id_: ProcessId) -> Install:
    """Follow the install of an id, or start it where the guest does not know it.

    It runs in a task of its own, which holds the turn until the guest has responded, also when its client leaves during the start. So a second
    client finds the presence of the first one, waits for the start and joins.
    """
    followers = sandbox.present.setdefault(id_, ExecutionFollowers())
    followers.enter()
    try:
        async with followers.turn:
            try:
                return Install(sandbox, await processes.follow(sandbox, id_, stdout_from=0, stderr_from=0), followers=followers)
            except NotFoundError:
                return await _begun(sandbox, what, quota, description, id_, followers)
    finally:
        followers.leave()
        if not followers.attended and not followers.people and sandbox.present.get(id_) is followers:
            del sandbox.present[id_]


async def _begun(
    sandbox: Sandbox,
    what: InstallParams,
    quota: Quota,
    description: ExecutionDescription,
    id_: ProcessId | None = None,
    followers: ExecutionFollowers | None = None,
) -> Install:
    description = replace(description, argv=what.shown, mode=INSTALL if quota.installs else FOREGROUND)
    sandbox.installs += quota.installs
    try:
        run = await processes.start(sandbox, what.spec(), description=description, chosen=id_)
    except BaseException:
        sandbox.installs -= quota.installs
        raise
    return Install(sandbox, run, opens=quota.installs, followers=followers)


async def _left(joining: asyncio.Task[Install]) -> None:
    """Close the install of a client that left before it had it."""
    with suppress(SandlotError):
        await (await joining).close()
