"""Install packages in a sandbox.

``pip`` installs for the Python of the kernel (``python3`` of the image). If the image has uv, uv installs the packages: uv reads the same index as
pip and is faster. ``npm`` installs under npm's global prefix, so that the working directory stays unchanged; the images make ``require`` and
``import`` find the packages there. ``apt`` always runs as root, because no other user can install Debian packages. The script updates the package
lists if there are none or if they are older than a day. It also completes an installation that a killed apt left unfinished, because apt installs
nothing else until then.

Invariants:
- Requirements reach the package manager as separate arguments after ``--``, and names of requirements files before it; no shell reads them.
- One command installs all packages. A Python package that a failed installation has installed only in part is removed, because pip and uv would take
  it for installed. If the installation was killed, the next one does this first.
- An installation is an execution: it is counted and logged, and it is ended when its client disconnects. The package manager then gets SIGTERM first,
  so that it can clean up. If the package manager fails, no error is raised: the result has the output of the package manager.
- A client can choose the id of an installation. Further requests with this id join the installation, which continues as long as any client is
  connected to it, and for 3 s after that (:mod:`sandlot.core.execution.state`).
- An installation has access to the package indexes until it ends, if the quota of the client's key allows the installation of packages. An
  installation that continues after a restart of the service keeps the access.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from sandlot.core.access.idempotency import execution_id
from sandlot.core.execution.processes import ProcessExecution, ProcessService, ProcessStream
from sandlot.core.execution.state import Kind
from sandlot.core.registry import SandboxRegistry
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import Principal, Quota
from sandlot.model.executions import NATIVE, CommandResult, ExecutionOptions, Output, ProcessEvent
from sandlot.model.packages import InstallParams, Manager, requirements_file
from sandlot.model.records import FOREGROUND, INSTALL
from sandlot.model.specs import ProcessSpec, User
from sandlot.model.streams import Stream
from sandlot.protocol.schema import PACKAGES_PORT

INDEX: Final = f"http://127.0.0.1:{PACKAGES_PORT}"
"""Address inside the sandbox at which the guest serves the package indexes."""

_SHOWN: Final[Mapping[Manager, str]] = {Manager.PIP: "pip", Manager.NPM: "npm", Manager.APT: "apt-get"}

_SCRIPTS: Final[Mapping[Manager, str]] = {
    Manager.PIP: """\
python=$(command -v python3 || command -v python) || { echo "This image has no python." >&2; exit 127; }
if command -v uv >/dev/null; then
    install() { uv pip install --python "$python" --break-system-packages "$@"; }
    uninstall() { uv pip uninstall --quiet --python "$python" --break-system-packages "$@"; }
else
    install() { "$python" -m pip install --no-input "$@"; }
    uninstall() { "$python" -m pip uninstall --quiet --yes "$@"; }
fi
# The file is locked while an installation runs, and is not empty from the start of an installation until it has succeeded or been cleaned up.
state=/var/tmp/.sandlot-install-pip
[ -e "$state" ] || (umask 0; : >>"$state")
exec 9>>"$state"
command -v flock >/dev/null && flock 9
remove_unfinished() {
    site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    find "$site" -maxdepth 1 -name '*.dist-info' -newer "$state" | while read -r folder; do
        # pip and uv write the list of files last, and it then names this file.
        grep -qs '/INSTALLER,' "$folder/RECORD" && continue
        package=${folder##*/}
        package=${package%%-*}
        echo "$package was installed only in part and is removed." >&2
        uninstall "$package" </dev/null
        rm -rf "$folder"
    done 9>&-
    : >"$state"
}
[ ! -s "$state" ] || remove_unfinished
echo running >"$state"
trap : INT TERM
install "$@" 9>&-
status=$?
if [ "$status" = 0 ]; then : >"$state"; else remove_unfinished; fi
exit "$status"
""",
    Manager.NPM: """\
command -v npm >/dev/null || { echo "This image has no npm." >&2; exit 127; }
exec npm install --global --no-audit --no-fund --no-update-notifier "$@"
""",
    Manager.APT: """\
command -v apt-get >/dev/null || { echo "This image has no apt-get." >&2; exit 127; }
read_on=/var/lib/apt/periodic/update-success-stamp
if [ -z "$(find "$read_on" -mmin -1440 2>/dev/null)" ] || [ -z "$(find /var/lib/apt/lists -maxdepth 1 -name '*Packages*' -print -quit)" ]; then
    apt-get -q update && mkdir -p "${read_on%/*}" && touch "$read_on" || exit
fi
if [ -n "$(ls -A /var/lib/dpkg/updates 2>/dev/null)" ] || [ -n "$(dpkg --audit 2>/dev/null)" ]; then
    echo "An earlier installation is incomplete. It is completed first."
    dpkg --configure -a
    [ -z "$(dpkg --audit)" ] || apt-get -q -y --no-install-recommends -o Dpkg::Use-Pty=false -o DPkg::Lock::Timeout=60 --fix-broken install
fi
exec apt-get -q -y --no-install-recommends -o Acquire::Retries=3 -o Dpkg::Use-Pty=false -o DPkg::Lock::Timeout=60 install "$@"
""",
}
_ENV: Final[Mapping[Manager, Mapping[str, str]]] = {
    # Settings of the package managers for every installation. Sandlot's own images set these variables anyway; other images do not.
    Manager.PIP: {
        "UV_DEFAULT_INDEX": f"{INDEX}/pypi/simple/",
        "UV_NO_PROGRESS": "1",
        # In gVisor, a copy of a file takes 1.5 ms and a hard link 0.05 ms. For a wheel of 4,000 files, copies take 6 s and hard links take 0.2 s.
        # The cache is kept, because deleting it would also take time.
        "UV_LINK_MODE": "hardlink",
        "UV_NO_CACHE": "0",
        "PIP_INDEX_URL": f"{INDEX}/pypi/simple/",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_ROOT_USER_ACTION": "ignore",
        "PIP_BREAK_SYSTEM_PACKAGES": "1",
        "PIP_PROGRESS_BAR": "off",
    },
    Manager.NPM: {"npm_config_registry": f"{INDEX}/npm/", "npm_config_progress": "false"},
    Manager.APT: {"DEBIAN_FRONTEND": "noninteractive"},
}


class PackageInstaller:
    """Installs packages in sandboxes."""

    def __init__(self, registry: SandboxRegistry, processes: ProcessService) -> None:
        self._registry = registry
        self._processes = processes

    async def install(
        self,
        principal: Principal,
        sandbox: str,
        params: InstallParams,
        options: ExecutionOptions = NATIVE,
        *,
        idempotency_key: str | None = None,
        on_output: Callable[[Output], object] | None = None,
    ) -> CommandResult:
        """Install packages and collect the output.

        If an installation with the id that the client chose runs or is being started, no new installation is started, and the result is that of the
        existing installation. If the caller is cancelled, the installation is ended; if the client chose the id or an idempotency key, only once the
        installation has had no client for 3 s.

        Args:
            principal: Caller. The quota of its key decides whether the package indexes can be reached.
            sandbox: Id of the sandbox.
            params: Packages.
            options: Id of the installation, and its description for the execution log.
            idempotency_key: Key of the request. An equal request with the same key joins the installation.
            on_output: Called with each piece of output as it arrives.
        """
        run = await self._start(principal, sandbox, params, options, idempotency_key)
        try:
            return await run.collect(params.timeout_s, on_output)
        finally:
            await run.close()

    async def stream(
        self,
        principal: Principal,
        sandbox: str,
        params: InstallParams,
        options: ExecutionOptions = NATIVE,
        *,
        idempotency_key: str | None = None,
    ) -> Stream[ProcessEvent]:
        """Start to install packages and return the events of the package manager. See :meth:`install`."""
        run = await self._start(principal, sandbox, params, options, idempotency_key)
        return ProcessStream(run, self._processes.executions.log, detaches=False)

    async def _start(self, principal: Principal, sandbox: str, params: InstallParams, options: ExecutionOptions, key: str | None) -> ProcessExecution:
        live = self._registry.find(sandbox, principal)
        if key is not None:
            options = replace(options, id=execution_id(live.id, key, "packages", params))
        return await start_install(self._processes, live, params, principal.quota, options)


async def start_install(
    processes: ProcessService, sandbox: Sandbox, params: InstallParams, quota: Quota, options: ExecutionOptions = NATIVE
) -> ProcessExecution:
    """Start to install packages in a sandbox, or join the installation with the id that the client chose. See :meth:`PackageInstaller.install`.

    If the client chose the id, the start continues even if the caller is cancelled.
    """
    return await processes.start(
        sandbox,
        install_spec(params),
        options=replace(options, argv=(_SHOWN[params.manager], "install", *params.packages)),
        kind=Kind.INSTALL,
        mode=INSTALL if quota.installs else FOREGROUND,
    )


def install_spec(params: InstallParams) -> ProcessSpec:
    """Return the process that installs packages."""
    files = [file for file in map(requirements_file, params.packages) if file is not None]
    names = [package for package in params.packages if requirements_file(package) is None]
    arguments = (*(f"--requirement={file}" for file in files), "--", *names)
    return ProcessSpec(
        argv=("/bin/sh", "-c", _SCRIPTS[params.manager], f"install-{params.manager}", *arguments),
        env=_ENV[params.manager],
        # A project in the working directory could contain settings for the package manager. They apply only if a file of the project is named.
        cwd=None if files else "/",
        user=User.ROOT if params.manager is Manager.APT else params.user,
        timeout_s=params.timeout_s,
    )
