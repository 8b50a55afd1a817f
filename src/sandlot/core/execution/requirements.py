"""What is to be installed, and the command that does it. Pure.

Laws:
- A word for a package names a package of an index, and which of its versions: no option, no path, no URL, no archive, no alias. What a package
  manager would take for any of these is refused before anything runs.
- Words reach the package manager as arguments of their own, after ``--``; no shell reads them.
- One command line installs all, or what the package manager leaves where it fails.

``pip`` installs where the kernel's python looks (``python3`` of the image), by uv where the image has it: both read the same index, and uv is
faster. ``npm`` installs under npm's global prefix, which every ``require`` finds by NODE_PATH, so that nothing is left in the working folder.
``apt`` runs as root whoever asks, since nobody else can install Debian packages, and reads the lists first where there are none or they are older
than a day. What an apt that was killed left half done it finishes first, because apt does nothing until somebody has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from packaging.requirements import InvalidRequirement, Requirement

from sandlot.model.errors import InvalidRequestError
from sandlot.model.specs import DEFAULT_INSTALL_TIMEOUT_S, ProcessSpec, User, check_text
from sandlot.protocol.schema import PACKAGES_PORT

MAX_PACKAGES = 100
MAX_CHARS = 500
"""Of one word; markers are the longest part of it."""

INDEX = f"http://127.0.0.1:{PACKAGES_PORT}"
"""Where the guest listens."""


class Manager(StrEnum):
    """Who installs."""

    PIP = "pip"
    NPM = "npm"
    APT = "apt"


@dataclass(frozen=True, slots=True)
class InstallParams:
    """What is to be installed.

    Args:
        manager: By whom.
        packages: 1 to 100 words of that manager.
        user: Who it runs as; apt always as root.
        timeout_s: Seconds until it is ended; None is never.
    """

    manager: Manager
    packages: tuple[str, ...]
    user: User = User.USER
    timeout_s: float | None = DEFAULT_INSTALL_TIMEOUT_S

    def __post_init__(self) -> None:
        """Refuse what is no package."""
        if not 1 <= len(self.packages) <= MAX_PACKAGES:
            raise InvalidRequestError(
                f"{len(self.packages)} packages were asked for; 1 to {MAX_PACKAGES} are installed at once.", fields={"field": "packages"}
            )
        for word in self.packages:
            check_package(self.manager, word)

    @property
    def shown(self) -> tuple[str, ...]:
        """What the log of runs calls it."""
        return (_SHOWN[self.manager], "install", *self.packages)

    def spec(self) -> ProcessSpec:
        """The process that does it."""
        return ProcessSpec(
            argv=("/bin/sh", "-c", _SCRIPTS[self.manager], f"install-{self.manager}", *self.packages),
            env=_ENV[self.manager],
            cwd="/",  # a package manager that looks for a project's own settings in the working folder finds none
            user=User.ROOT if self.manager is Manager.APT else self.user,
            timeout_s=self.timeout_s,
        )


def choose_manager(asked: str) -> Manager:
    """The package manager of that name.

    Raises:
        InvalidRequestError: There is none.
    """
    try:
        return Manager(asked)
    except ValueError:
        raise InvalidRequestError(
            f"There is no package manager {asked[:32]!r}.", hint=f"Use one of: {', '.join(Manager)}.", fields={"field": "manager"}
        ) from None


def check_package(manager: Manager, word: str) -> None:
    """Refuse what does not name a package of an index.

    Raises:
        InvalidRequestError: The word is an option, a path, a URL or no name at all; says which.
    """
    check_text("package", word)
    if len(word) > MAX_CHARS:
        raise _refused(manager, word, f"it has {len(word)} characters, and {MAX_CHARS} are allowed")
    if word.startswith("-"):
        raise _refused(manager, word, "it begins like an option")
    why = _CHECKS[manager](word)
    if why:
        raise _refused(manager, word, why)


def _refused(manager: Manager, word: str, why: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{word[:80]!r} is no package that {manager} installs here: {why}.", hint=_HINTS[manager], fields={"field": "packages", "package": word[:80]}
    )


def _pip(word: str) -> str:
    if any(not character.isprintable() for character in word):
        return "it has characters that cannot be seen"
    try:
        requirement = Requirement(word)
    except InvalidRequirement as error:
        return "it is a path or a URL" if re.search(r"[/\\]|^\.", word) else str(error).splitlines()[0][:200].rstrip(".")
    if _PIP_ARCHIVE.search(requirement.name):
        return "pip takes it for a file"
    return "it is a URL" if requirement.url is not None else ""


_PIP_ARCHIVE = re.compile(r"\.(?:whl|zip|tar|tgz|tbz|txz|tlz|tar\.[a-z0-9]+)$", re.IGNORECASE)
"""What pip and uv take for a file, if there is one of that name (pip's ``ARCHIVE_EXTENSIONS``, uv's source distributions)."""

_NPM_NAME = re.compile(r"(?:@[a-z0-9~-][a-z0-9._~-]*/)?[A-Za-z0-9~][A-Za-z0-9._~-]*")
_NPM_RANGE = re.compile(r"[A-Za-z0-9^~<>=*][A-Za-z0-9 .*^~<>=|+_-]*")
_NPM_ARCHIVE = re.compile(r"\.(?:tgz|tar|tar\.gz)$", re.IGNORECASE)
"""What npm takes for a file, whatever stands before it (npm-package-arg)."""
_NPM_NAME_CHARS = 214


def _npm(word: str) -> str:
    name, at, wanted = word.partition("@") if not word.startswith("@") else ("@" + word[1:].partition("@")[0], *word[1:].partition("@")[1:])
    if _NPM_ARCHIVE.search(word):
        return "npm takes it for a file"
    if not _NPM_NAME.fullmatch(name) or len(name) > _NPM_NAME_CHARS:
        return "it is a path, a URL or a repository" if re.search(r"[/\\:]|^\.", name.removeprefix("@")) else "that is no name"
    if at and not _NPM_RANGE.fullmatch(wanted):
        return "what follows the '@' is no version, range or tag"
    return ""


_APT = re.compile(r"[a-z0-9][a-z0-9+.-]*[a-z0-9+](?::[a-z0-9-]+)?(?:=[0-9A-Za-z][0-9A-Za-z.+:~-]*)?")
"""Debian Policy 5.6.1, 5.6.8 and 5.6.12. A name that ends in '-' is one to remove, apt-get(8)."""


def _apt(word: str) -> str:
    if _APT.fullmatch(word):
        return ""
    return "it is a path" if "/" in word else "apt removes what ends in '-'" if word.endswith("-") else "that is no name"


_CHECKS: Mapping[Manager, Callable[[str], str]] = {Manager.PIP: _pip, Manager.NPM: _npm, Manager.APT: _apt}
_HINTS: Mapping[Manager, str] = {
    Manager.PIP: "Give a requirement such as 'requests', 'requests>=2.31' or 'uvicorn[standard]==0.30.*'.",
    Manager.NPM: "Give a name with or without a version, such as 'lodash', 'lodash@^4' or '@types/node@20'.",
    Manager.APT: "Give a name with or without architecture and version, such as 'tree', 'tree=2.1.0-1' or 'libc6:amd64'.",
}
_SHOWN: Mapping[Manager, str] = {Manager.PIP: "pip", Manager.NPM: "npm", Manager.APT: "apt-get"}

_SCRIPTS: Mapping[Manager, str] = {
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
    echo "What an earlier install left half done is finished first."
    dpkg --configure -a
    [ -z "$(dpkg --audit)" ] || apt-get -q -y --no-install-recommends -o Dpkg::Use-Pty=false -o DPkg::Lock::Timeout=60 --fix-broken install
fi
exec apt-get -q -y --no-install-recommends -o Acquire::Retries=3 -o Dpkg::Use-Pty=false -o DPkg::Lock::Timeout=60 install -- "$@"
""",
}
_ENV: Mapping[Manager, Mapping[str, str]] = {
    # What an image's own configuration says as well; here for images that have none.
    Manager.PIP: {
        "UV_DEFAULT_INDEX": f"{INDEX}/pypi/simple/",
        "UV_NO_PROGRESS": "1",
        # A copy of each file takes gVisor 1.5 ms, a link 0.05 (a wheel of 4,000 files: 6 s, 0.2 s); a cache that stays need not be deleted.
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
