"""Install packages in a sandbox.

Invariants:
- An installation is an execution: it is counted and logged, and it is ended when its client disconnects. The package manager then gets SIGTERM first,
  so that it can clean up. If the package manager fails, no error is raised: the result has the output of the package manager.
- A client can choose the id of an installation. Further requests with this id join the installation, which continues as long as any client is
  connected to it (:mod:`sandlot.core.execution.followers`).
- An installation has access to the package indexes while it runs, if the quota of the client's key allows the installation of packages. An
  installation that continues after a restart of the service keeps the access (:mod:`sandlot.core.execution.unattended`).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Final

from sandlot.core.execution.followers import ExecutionFollowers, join
from sandlot.core.execution.output import CommandResult
from sandlot.core.execution.package_access import PackageAccess
from sandlot.core.execution.processes import ProcessExecution, ProcessService
from sandlot.core.execution.requirements import InstallParams
from sandlot.core.records.execution_log import NATIVE, ExecutionDescription
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import Quota
from sandlot.model.errors import NotFoundError, SandlotError
from sandlot.model.ids import ProcessId
from sandlot.model.records import FOREGROUND, INSTALL

GRACE_S: Final = 10.0
"""Seconds between SIGTERM and SIGKILL in which a package manager without clients can clean up."""


class Install:
    """One client's connection to an installation of packages. Call :meth:`close` at the end.

    Args:
        sandbox: Sandbox of the installation.
        run: Process of the package manager.
        access: Package access that was opened for this installation and is closed at its end. None if no access was opened.
        followers: All clients that are connected to the installation; None if other clients cannot join the installation.
    """

    __slots__ = ("_access", "_attends", "_closed", "_followers", "_sandbox", "run")

    def __init__(
        self, sandbox: Sandbox, run: ProcessExecution, *, access: PackageAccess | None = None, followers: ExecutionFollowers | None = None
    ) -> None:
        self.run = run
        self._sandbox = sandbox
        self._access = access
        self._closed = False
        self._followers = followers
        self._attends = followers is None or followers.enter(attend=True)

    async def close(self) -> None:
        """Stop reading the output of the package manager. Idempotent.

        An unfinished installation is ended, unless other clients are connected to it or a client joins it within ``followers.AWAY_S`` seconds.
        """
        if self._closed:
            return
        self._closed = True
        if self._followers is not None:
            self._followers.leave()
        if not self._attends:
            await self.run.detach()
        elif self._followers is not None and not self.run.is_over:
            self._sandbox.tasks.spawn(self._attend(self._followers))
        else:
            await self._end()

    async def _attend(self, followers: ExecutionFollowers) -> None:
        try:
            await followers.attend(self._read())
        finally:
            await self._end()

    async def _read(self) -> None:
        with suppress(SandlotError):
            async for _ in self.run:
                pass
            await self.run.outcome()

    async def _end(self) -> None:
        if self._access is not None:
            self._access.close(self._sandbox)
        if self._followers is not None:
            self._followers.forget()
        await self.run.close(GRACE_S)


class PackageInstaller:
    """Installs packages in sandboxes.

    Args:
        processes: Runs the package managers.
        access: Access to the package indexes.

    Attributes:
        access: Access to the package indexes.
    """

    def __init__(self, processes: ProcessService, access: PackageAccess) -> None:
        self._processes = processes
        self.access = access

    async def install(self, sandbox: Sandbox, params: InstallParams, quota: Quota, description: ExecutionDescription = NATIVE) -> CommandResult:
        """Install packages and collect the output. If the caller is cancelled, the installation is closed; see :meth:`Install.close`.

        Args:
            sandbox: Sandbox to install in.
            params: Packages to install.
            quota: Quota of the client's key.
            description: Description for the execution log, with an optional id that the client chose. If an installation with this id runs or is
                being started, no new installation is started, and the result is that of the existing installation.

        Raises:
            SandlotError: The installation could not be started, or the sandbox ended.
        """
        install = await self.start(sandbox, params, quota, description)
        try:
            return await install.run.collect(params.timeout_s)
        finally:
            await install.close()

    async def start(self, sandbox: Sandbox, params: InstallParams, quota: Quota, description: ExecutionDescription = NATIVE) -> Install:
        """Start to install packages.

        If the client chose an id, the start continues even if the caller is cancelled.

        Args:
            sandbox: Sandbox to install in.
            params: Packages to install.
            quota: Quota of the client's key.
            description: Description for the execution log, with an optional id that the client chose. If an installation with this id runs or is
                being started, no new installation is started, and the result is that of the existing installation.

        Raises:
            SandlotError: The installation could not be started, or the sandbox has ended.
        """
        if description.id is None:
            return await self._begin(sandbox, params, quota, description)
        joining = asyncio.create_task(self._join(sandbox, params, quota, description, description.id))
        try:
            return await asyncio.shield(joining)
        except asyncio.CancelledError:
            sandbox.tasks.spawn(_close_when_joined(joining))
            raise

    async def _join(self, sandbox: Sandbox, params: InstallParams, quota: Quota, description: ExecutionDescription, id_: ProcessId) -> Install:
        """Join the installation with the id ``id_``. If the guest has no such process, start the installation.

        The caller runs this method in a task, so that the start lock is held until the guest responds, even if the client disconnects during the
        start. A second client with the same id then waits for the start, and joins the installation.
        """
        async with join(sandbox, id_) as followers:
            try:
                run = await self._processes.follow(sandbox, id_, stdout_from=0, stderr_from=0)
            except NotFoundError:
                return await self._begin(sandbox, params, quota, description, followers)
            return Install(sandbox, run, followers=followers)

    async def _begin(
        self,
        sandbox: Sandbox,
        params: InstallParams,
        quota: Quota,
        description: ExecutionDescription,
        followers: ExecutionFollowers | None = None,
    ) -> Install:
        description = replace(description, argv=params.shown, mode=INSTALL if quota.installs else FOREGROUND)
        access = self.access if quota.installs else None
        if access is not None:
            access.open(sandbox)
        try:
            run = await self._processes.start(sandbox, params.spec(), description=description)
        except BaseException:
            if access is not None:
                access.close(sandbox)
            raise
        return Install(sandbox, run, access=access, followers=followers)


async def _close_when_joined(joining: asyncio.Task[Install]) -> None:
    """Close the :class:`Install` of a client that disconnected during the start."""
    with suppress(SandlotError):
        await (await joining).close()
