"""Reads this machine's configuration of pip, npm and apt, and its logins to registries. The other modules of this package parse the texts.

Invariants:
- A configuration file that does not exist, cannot be read or is malformed is treated as an empty file. The other files are still used.
- The configuration is read at each start of the service and never written.
"""

from __future__ import annotations

import logging
import netrc
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from sandlot.egress.packages.config import apt, npm, oci, pip
from sandlot.egress.packages.config.values import DebianSources, ImageSource, NpmSources, OciSources, PypiSources

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_APT_S = 60.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PackageSources:
    """Upstream indexes of Python, JavaScript and Debian packages, and registries of images.

    Args:
        pypi: Indexes of Python packages.
        npm: Registries of JavaScript packages.
        debian: Archives of Debian packages.
        oci: Registries of images.
    """

    pypi: PypiSources = field(default_factory=PypiSources)
    npm: NpmSources = field(default_factory=NpmSources)
    debian: DebianSources = field(default_factory=DebianSources)
    oci: OciSources = field(default_factory=OciSources)

    @classmethod
    def of_this_machine(cls, env: Mapping[str, str] | None = None, registries: Sequence[ImageSource] = ()) -> Self:
        """Return the indexes that pip, npm and apt of this machine use. It runs apt, which takes about half a second.

        Args:
            env: Environment variables that name the configuration files and override their options. None: those of this process.
            registries: Registries of images that the operator has named. This machine's logins to them are used.
        """
        variables = os.environ if env is None else env
        home = Path(variables.get("HOME") or "/nonexistent")
        logins = {host: (user, password) for host, user, password in _read_logins([Path(variables.get("NETRC") or home / ".netrc")])}
        return cls(
            pypi=pip.parse_sources(pip.parse_options(_read_files(pip.config_files(variables, sys.prefix)), variables), variables, logins),
            npm=npm.parse_sources(npm.parse_options(_read_files(npm.config_files(variables)), variables), variables),
            debian=apt.parse_sources(
                _run("apt-get", "indextargets"),
                _run("apt-config", "dump"),
                _read_logins([Path("/etc/apt/auth.conf"), *sorted(Path("/etc/apt/auth.conf.d").glob("*.conf"))]),
                architecture=_ARCHITECTURES.get(platform.machine(), platform.machine()),
            ),
            oci=oci.parse_sources(registries, _read_files(oci.login_files(variables)) if registries else [], oci.certificate_files(registries)),
        )


def _read_files(paths: Iterable[Path]) -> list[str]:
    return [text for path in paths if (text := _read_file(path))]


def _read_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, UnicodeDecodeError) as error:
        _log.warning("the configuration file %s is ignored: %s", path, type(error).__name__)
        return ""


def _read_logins(paths: Iterable[Path]) -> list[tuple[str, str, str]]:
    """Return (host, user, password) of each entry in files of the format netrc(5), except the ``default`` entries."""
    found = []
    for path in paths:
        try:
            hosts = netrc.netrc(str(path)).hosts
        except FileNotFoundError:
            continue
        except (OSError, ValueError, netrc.NetrcParseError) as error:
            _log.warning("the configuration file %s is ignored: %s", path, type(error).__name__)  # str(error) may contain a password
            continue
        found += [(host, user or "", password or "") for host, (user, _, password) in hosts.items() if host != "default"]
    return found


def _run(*argv: str) -> str:
    try:
        done = subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=_APT_S)
    except (OSError, subprocess.SubprocessError) as error:
        _log.warning("%s failed, and the apt configuration that this command prints is ignored: %s", argv[0], type(error).__name__)
        return ""
    return done.stdout.decode("utf-8", "replace")
