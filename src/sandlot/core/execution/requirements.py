"""Packages to install, and the command that installs them. Pure.

Invariants:
- A requirement names a package of an index and, optionally, its versions. A requirement that a package manager would read as an option, a path, a
  URL, an archive or an alias is refused before any process starts.
- Requirements reach the package manager as separate arguments after ``--``; no shell reads them.
- One command installs all packages. After a failure, the packages stay in the state in which the package manager left them.

``pip`` installs for the Python of the kernel (``python3`` of the image). If the image has uv, uv installs the packages: uv reads the same index as
pip and is faster. ``npm`` installs under npm's global prefix, so that the working directory stays unchanged; ``require`` finds the packages through
``NODE_PATH``. ``apt`` always runs as root, because no other user can install Debian packages. The script updates the package lists if there are none
or if they are older than a day. It also completes an installation that a killed apt left unfinished, because apt installs nothing else until then.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement

from sandlot.model.errors import InvalidRequestError
from sandlot.model.specs import DEFAULT_INSTALL_TIMEOUT_S, ProcessSpec, User, check_text
from sandlot.protocol.schema import PACKAGES_PORT

MAX_PACKAGES: Final = 100
"""Maximum number of packages in one request to install packages."""
MAX_CHARS: Final = 500
"""Maximum length of one requirement, in characters. Environment markers are the longest part of a requirement."""

INDEX: Final = f"http://127.0.0.1:{PACKAGES_PORT}"
"""Address inside the sandbox at which the guest serves the package indexes."""


class Manager(StrEnum):
    """Package manager."""

    PIP = "pip"
    NPM = "npm"
    APT = "apt"


@dataclass(frozen=True, slots=True)
class InstallParams:
    """Packages to install.

    Args:
        manager: Package manager.
        packages: 1 to 100 requirements in the syntax of the package manager.
        user: User that the package manager runs as; apt always runs as root.
        timeout_s: Seconds until the package manager is killed; None sets no timeout.
    """

    manager: Manager
    packages: tuple[str, ...]
    user: User = User.USER
    timeout_s: float | None = DEFAULT_INSTALL_TIMEOUT_S

    def __post_init__(self) -> None:
        """Refuse requirements that do not name packages."""
        if not 1 <= len(self.packages) <= MAX_PACKAGES:
            raise InvalidRequestError(f"`packages` has {len(self.packages)} entries; 1 to {MAX_PACKAGES} are allowed.", fields={"field": "packages"})
        for package in self.packages:
            check_package(self.manager, package)

    @property
    def shown(self) -> tuple[str, ...]:
        """Command line that the execution log shows for the installation."""
        return (_SHOWN[self.manager], "install", *self.packages)

    def spec(self) -> ProcessSpec:
        """Return the process that installs the packages."""
        return ProcessSpec(
            argv=("/bin/sh", "-c", _SCRIPTS[self.manager], f"install-{self.manager}", *self.packages),
            env=_ENV[self.manager],
            cwd="/",  # not the workspace, because a project there could contain settings for the package manager
            user=User.ROOT if self.manager is Manager.APT else self.user,
            timeout_s=self.timeout_s,
        )


def choose_manager(name: str) -> Manager:
    """Return the package manager with the given name.

    Raises:
        InvalidRequestError: There is no such package manager.
    """
    try:
        return Manager(name)
    except ValueError:
        raise InvalidRequestError(
            f"There is no package manager {name[:32]!r}.", hint=f"Use one of: {', '.join(Manager)}.", fields={"field": "manager"}
        ) from None


def check_package(manager: Manager, package: str) -> None:
    """Refuse a requirement that does not name a package of an index.

    Raises:
        InvalidRequestError: The requirement is an option, a path or a URL, or is not a valid name.
    """
    check_text("package", package)
    if len(package) > MAX_CHARS:
        raise _refused(manager, package, f"it has {len(package)} characters, and {MAX_CHARS} are allowed")
    if package.startswith("-"):
        raise _refused(manager, package, "it begins like an option")
    if reason := _CHECKS[manager](package):
        raise _refused(manager, package, reason)


def _refused(manager: Manager, package: str, reason: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{package[:80]!r} is not a package that {manager} can install: {reason}.",
        hint=_HINTS[manager],
        fields={"field": "packages", "package": package[:80]},
    )


def _pip(package: str) -> str:
    if any(not character.isprintable() for character in package):
        return "it has invisible characters"
    try:
        requirement = Requirement(package)
    except InvalidRequirement as error:
        return "it is a path or a URL" if re.search(r"[/\\]|^\.", package) else str(error).splitlines()[0][:200].rstrip(".")
    if _PIP_ARCHIVE.search(requirement.name):
        return "pip reads it as the name of a file"
    return "it is a URL" if requirement.url is not None else ""


_PIP_ARCHIVE = re.compile(r"\.(?:whl|zip|tar|tgz|tbz|txz|tlz|tar\.[a-z0-9]+)$", re.IGNORECASE)
"""Endings with which pip and uv read a requirement as the name of a file, if the file exists (``ARCHIVE_EXTENSIONS`` of pip, source distributions
of uv)."""

_NPM_NAME = re.compile(r"(?:@[a-z0-9~-][a-z0-9._~-]*/)?[A-Za-z0-9~][A-Za-z0-9._~-]*")
_NPM_RANGE = re.compile(r"[A-Za-z0-9^~<>=*][A-Za-z0-9 .*^~<>=|+_-]*")
_NPM_ARCHIVE = re.compile(r"\.(?:tgz|tar|tar\.gz)$", re.IGNORECASE)
"""Endings with which npm always reads a requirement as the name of a file (npm-package-arg)."""
_NPM_NAME_CHARS = 214


def _npm(package: str) -> str:
    scope = "@" if package.startswith("@") else ""
    name, at, version = package.removeprefix(scope).partition("@")
    name = scope + name
    if _NPM_ARCHIVE.search(package):
        return "npm reads it as the name of a file"
    if not _NPM_NAME.fullmatch(name) or len(name) > _NPM_NAME_CHARS:
        return "it is a path, a URL or a repository" if re.search(r"[/\\:]|^\.", name.removeprefix("@")) else "it is not a name"
    if at and not _NPM_RANGE.fullmatch(version):
        return "the text after '@' is not a version, range or tag"
    return ""


_APT = re.compile(r"[a-z0-9][a-z0-9+.-]*[a-z0-9+](?::[a-z0-9-]+)?(?:=[0-9A-Za-z][0-9A-Za-z.+:~-]*)?")
"""Package with optional architecture and version (Debian Policy 5.6.1, 5.6.8, 5.6.12). apt-get(8) removes a package whose name ends in '-'."""


def _apt(package: str) -> str:
    if _APT.fullmatch(package):
        return ""
    return "it is a path" if "/" in package else "apt removes a package whose name ends in '-'" if package.endswith("-") else "it is not a name"


_CHECKS: Final[Mapping[Manager, Callable[[str], str]]] = {Manager.PIP: _pip, Manager.NPM: _npm, Manager.APT: _apt}
_HINTS: Final[Mapping[Manager, str]] = {
    Manager.PIP: "Pass a requirement such as 'requests', 'requests>=2.31' or 'uvicorn[standard]==0.30.*'.",
    Manager.NPM: "Pass a name with or without a version, such as 'lodash', 'lodash@^4' or '@types/node@20'.",
    Manager.APT: "Pass a name with or without architecture and version, such as 'tree', 'tree=2.1.0-1' or 'libc6:amd64'.",
}
_SHOWN: Final[Mapping[Manager, str]] = {Manager.PIP: "pip", Manager.NPM: "npm", Manager.APT: "apt-get"}

_SCRIPTS: Final[Mapping[Manager, str]] = {
    Manager.PIP: """\
python=$(command -v python3 || command -v python) || { echo "This image has no python." >&2; exit 127; }
if command -v uv >/dev/null; then exec uv pip install --python "$python" --break-system-packages -- "$@"; fi
exec "$python" -m pip install --no-input -- "$@"
""",
    Manager.NPM: """\
command -v npm >/dev/null || { echo "This image has no npm." >&2; exit 127; }
exec npm install --global --no-audit --no-fund --no-update-notifier -- "$@"
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
exec apt-get -q -y --no-install-recommends -o Acquire::Retries=3 -o Dpkg::Use-Pty=false -o DPkg::Lock::Timeout=60 install -- "$@"
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
