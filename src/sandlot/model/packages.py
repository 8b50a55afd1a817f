"""Packages to install. The parameters are frozen, and their constructor refuses invalid values.

Invariant: A requirement names a package of an index and, optionally, its versions. A requirement that a package manager would read as an option, a
path, a URL, an archive or an alias is refused before any process starts. The only exception is a requirements file of pip, such as
``-r requirements.txt``, whose content is not checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement

from sandlot.model.errors import InvalidRequestError
from sandlot.model.specs import DEFAULT_INSTALL_TIMEOUT_S, User, check_text

MAX_PACKAGES: Final = 100
"""Maximum number of packages in one request to install packages."""

MAX_PACKAGE_CHARS: Final = 500
"""Maximum length of one requirement, in characters. Environment markers are the longest part of a requirement."""


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
        packages: 1 to 100 requirements in the syntax of the package manager. For pip also ``-r FILE``, with a path in the sandbox.
        user: User that the package manager runs as; None: that of the sandbox. apt always runs as root.
        timeout_s: Seconds until the package manager is killed; None sets no timeout.
    """

    manager: Manager
    packages: tuple[str, ...]
    user: User | None = None
    timeout_s: float | None = DEFAULT_INSTALL_TIMEOUT_S

    def __post_init__(self) -> None:
        """Refuse requirements that do not name packages."""
        if not 1 <= len(self.packages) <= MAX_PACKAGES:
            raise InvalidRequestError(f"`packages` has {len(self.packages)} entries; 1 to {MAX_PACKAGES} are allowed.", fields={"field": "packages"})
        for package in self.packages:
            check_package(self.manager, package)


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
    if len(package) > MAX_PACKAGE_CHARS:
        raise _refused(manager, package, f"it has {len(package)} characters, and {MAX_PACKAGE_CHARS} are allowed")
    if manager is Manager.PIP and requirements_file(package) is not None:
        return
    if package.startswith("-"):
        raise _refused(manager, package, "it begins like an option")
    if reason := _CHECKS[manager](package):
        raise _refused(manager, package, reason)


def requirements_file(package: str) -> str | None:
    """Return the path in ``-r PATH`` or ``--requirement PATH``, or None if the text is not of this form."""
    found = _REQUIREMENTS_FILE.fullmatch(package)
    return found[1] if found else None


_REQUIREMENTS_FILE = re.compile(r"(?:-r\s*|--requirement(?:=|\s+))([^\s-].*?)\s*")


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
    Manager.PIP: "Pass a requirement such as 'requests', 'requests>=2.31' or 'uvicorn[standard]==0.30.*', or '-r requirements.txt'.",
    Manager.NPM: "Pass a name with or without a version, such as 'lodash', 'lodash@^4' or '@types/node@20'.",
    Manager.APT: "Pass a name with or without architecture and version, such as 'tree', 'tree=2.1.0-1' or 'libc6:amd64'.",
}
