"""Install packages in a sandbox.

Invariants:
- An installation is an execution: it is counted and logged, and it is ended when its client disconnects. The package manager then gets SIGTERM first,
  so that it can clean up. If the package manager fails, no error is raised: the result has the output of the package manager.
- A client can choose the id of an installation. Further requests with this id join the installation, which continues as long as any client is
  connected to it, and for 3 s after that (:mod:`sandlot.core.execution.state`).
- An installation has access to the package indexes until it ends, if the quota of the client's key allows the installation of packages. An
  installation that continues after a restart of the service keeps the access.
"""

from __future__ import annotations

from dataclasses import replace

from sandlot.core.execution.output import CommandResult
from sandlot.core.execution.processes import ProcessExecution, ProcessService
from sandlot.core.execution.requirements import InstallParams
from sandlot.core.execution.state import Kind
from sandlot.core.records.execution_log import NATIVE, ExecutionDescription
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import Quota
from sandlot.model.records import FOREGROUND, INSTALL


class PackageInstaller:
    """Installs packages in sandboxes."""

    def __init__(self, processes: ProcessService) -> None:
        self._processes = processes

    async def install(self, sandbox: Sandbox, params: InstallParams, quota: Quota, description: ExecutionDescription = NATIVE) -> CommandResult:
        """Install packages and collect the output. If the caller is cancelled, the installation is closed; see :meth:`ProcessExecution.close`.

        If an installation with the id that the client chose runs or is being started, no new installation is started, and the result is that of the
        existing installation.

        Raises:
            SandlotError: The installation could not be started, or the sandbox ended.
        """
        run = await self.start(sandbox, params, quota, description)
        try:
            return await run.collect(params.timeout_s)
        finally:
            await run.close()

    async def start(self, sandbox: Sandbox, params: InstallParams, quota: Quota, description: ExecutionDescription = NATIVE) -> ProcessExecution:
        """Start to install packages, or join the installation with the id that the client chose. See :meth:`install`.

        If the client chose the id, the start continues even if the caller is cancelled.
        """
        description = replace(description, argv=params.shown, mode=INSTALL if quota.installs else FOREGROUND)
        return await self._processes.start(sandbox, params.spec(), description=description, kind=Kind.INSTALL)
