"""Packages for a sandbox: the service that its guest asks, and installing them.

Laws:
- A sandbox of network ``packages`` may read the indexes at any time. One of network ``none`` may do so only while an install of a key that may
  runs in it; that is asked again for each request, so an install that is over closes them. One that goes on under the next service has them
  open there as well (:mod:`sandlot.core.runs.inherited`).
- An install is a run like any other: counted, logged, ended when its client goes away, but by SIGTERM first, so that its package manager may
  clean up. One that fails is a result, in its package manager's words.
- One that can be asked for again, because its client chose its id, goes on for whoever comes back, as a cell does
  (:mod:`sandlot.core.runs.execution`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from sandlot.core.activity import Presence
from sandlot.core.records.executions import NATIVE, Label
from sandlot.core.runs import execution, processes
from sandlot.core.runs.outcomes import Finished
from sandlot.core.runs.processes import Run
from sandlot.core.runs.requirements import Installing
from sandlot.link.services import GuestStream, Service
from sandlot.model.access import Quota
from sandlot.model.errors import NotFoundError, SandlotError
from sandlot.model.ids import ProcessId
from sandlot.model.records import FOREGROUND, INSTALL
from sandlot.model.specs import Network
from sandlot.protocol import schema

if TYPE_CHECKING:
    from sandlot.core.ports import Packages
    from sandlot.core.sandbox import Sandbox

GRACE_S: Final = 10.0
"""How long a package manager that nobody waits for may clean up until it is killed."""


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
        presence: Who else is there for it; None where nobody else can be.
    """

    __slots__ = ("_attends", "_box", "_closed", "_opens", "_presence", "run")

    def __init__(self, box: Sandbox, run: Run, *, opens: bool = False, presence: Presence | None = None) -> None:
        self.run = run
        self._box = box
        self._opens = opens
        self._closed = False
        self._presence = presence
        self._attends = presence is None or not presence.attended
        if presence is not None:
            presence.enter()
            presence.attended = True

    async def close(self) -> None:
        """Leave it: it is ended where it still runs, unless somebody else is there for it, or comes back in time. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._presence is not None:
            self._presence.leave()
        if not self._attends:
            await self.run.detach()
        elif self._presence is not None and not self.run.over:
            self._box.spawn(self._linger(self._presence))
        else:
            await self._end()

    async def _linger(self, presence: Presence) -> None:
        reading = asyncio.create_task(self._read())
        away = asyncio.create_task(presence.away(execution.AWAY_S))
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
            self._box.installs -= 1
        if self._presence is not None and self._box.present.get(self.run.id) is self._presence:
            del self._box.present[self.run.id]
        await self.run.close(GRACE_S)


async def start(box: Sandbox, what: Installing, quota: Quota, *, label: Label = NATIVE, id: ProcessId | None = None) -> Install:  # noqa: A002 - the word
    """Begin to install, and follow it.

    Args:
        box: Where.
        what: What.
        quota: Of who asks.
        label: What the log says of it beyond what it is.
        id: Its id, where the caller chose one; one that the guest knows, or that is being started, is joined, and not begun again.

    Raises:
        SandlotError: It could not be started, or the sandbox has ended.
    """
    if id is None:
        return await _begun(box, what, quota, label)
    joining = asyncio.create_task(_joined(box, what, quota, label, id))
    try:
        return await asyncio.shield(joining)
    except asyncio.CancelledError:
        box.spawn(_left(joining))
        raise


async def install(box: Sandbox, what: Installing, quota: Quota, *, label: Label = NATIVE, id: ProcessId | None = None) -> Finished:  # noqa: A002 - the word
    """Install, and collect what is written. Cancelling leaves it, as :meth:`Install.close` says.

    Args:
        box: Where.
        what: What.
        quota: Of who asks.
        label: What the log says of it beyond what it is.
        id: As in :func:`start`.

    Raises:
        SandlotError: It could not be started, or the sandbox ended.
    """
    begun = await start(box, what, quota, label=label, id=id)
    try:
        return await processes.collected(box, begun.run, what.timeout_s)
    finally:
        await begun.close()


async def _joined(box: Sandbox, what: Installing, quota: Quota, label: Label, id_: ProcessId) -> Install:
    """Follow the install of an id, or start it where the guest does not know it.

    It runs in a task of its own, which holds the turn until the guest has responded, also when its client leaves during the start. So a second
    client finds the presence of the first one, waits for the start and joins.
    """
    presence = box.present.setdefault(id_, Presence())
    presence.enter()
    try:
        async with presence.turn:
            try:
                return Install(box, await processes.follow(box, id_, stdout_from=0, stderr_from=0), presence=presence)
            except NotFoundError:
                return await _begun(box, what, quota, label, id_, presence)
    finally:
        presence.leave()
        if not presence.attended and not presence.people and box.present.get(id_) is presence:
            del box.present[id_]


async def _begun(
    box: Sandbox, what: Installing, quota: Quota, label: Label, id_: ProcessId | None = None, presence: Presence | None = None
) -> Install:
    label = replace(label, argv=what.shown, mode=INSTALL if quota.installs else FOREGROUND)
    box.installs += quota.installs
    try:
        run = await processes.start(box, what.spec(), label=label, chosen=id_)
    except BaseException:
        box.installs -= quota.installs
        raise
    return Install(box, run, opens=quota.installs, presence=presence)


async def _left(joining: asyncio.Task[Install]) -> None:
    """Close the install of a client that left before it had it."""
    with suppress(SandlotError):
        await (await joining).close()
