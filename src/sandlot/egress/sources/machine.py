"""Reading this machine's configuration of pip, npm and apt. What it means is for the modules beside this one to say.

Laws:
- A file that is not there, cannot be read or makes no sense counts as empty: what is left of the configuration holds.
- It is read anew with every start of the service, and never written.
"""

from __future__ import annotations

import logging
import netrc
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from sandlot.egress.sources import apt, npm, pip
from sandlot.egress.sources.values import Debian, Npm, Pypi

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_APT_S = 60.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sources:
    """Where packages come from.

    Args:
        pypi: Python's.
        npm: JavaScript's.
        debian: Debian's.
    """

    pypi: Pypi = field(default_factory=Pypi)
    npm: Npm = field(default_factory=Npm)
    debian: Debian = field(default_factory=Debian)

    @classmethod
    def of_this_machine(cls, env: Mapping[str, str] | None = None) -> Self:
        """What pip, npm and apt of this machine use. It starts apt, which takes about half a second.

        Args:
            env: The environment; by default this process's.
        """
        source = os.environ if env is None else env
        home = Path(source.get("HOME") or "/nonexistent")
        logins = {host: (user, password) for host, user, password in _logins([Path(source.get("NETRC") or home / ".netrc")])}
        return cls(
            pypi=pip.pypi(pip.options(_texts(pip.files(source, sys.prefix)), source), source, logins),
            npm=npm.npm(npm.options(_texts(npm.files(source)), source), source),
            debian=apt.debian(
                _output("apt-get", "indextargets"),
                _output("apt-config", "dump"),
                _logins([Path("/etc/apt/auth.conf"), *sorted(Path("/etc/apt/auth.conf.d").glob("*.conf"))]),
                architecture=_ARCHITECTURES.get(platform.machine(), platform.machine()),
            ),
        )


def _texts(paths: Iterable[Path]) -> list[str]:
    return [text for path in paths if (text := _text(path))]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, UnicodeDecodeError) as error:
        _log.warning("%s is left out: %s", path, type(error).__name__)
        return ""


def _logins(paths: Iterable[Path]) -> list[tuple[str, str, str]]:
    """The machines of netrc(5) files, each with user and password."""
    found = []
    for path in paths:
        try:
            hosts = netrc.netrc(str(path)).hosts
        except FileNotFoundError:
            continue
        except (OSError, ValueError, netrc.NetrcParseError) as error:
            _log.warning("%s is left out: %s", path, type(error).__name__)  # the error itself may hold a password
            continue
        found += [(host, user or "", password or "") for host, (user, _, password) in hosts.items() if host != "default"]
    return found


def _output(*argv: str) -> str:
    try:
        done = subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=_APT_S)
    except (OSError, subprocess.SubprocessError) as error:
        _log.warning("%s does not answer, and is left out: %s", argv[0], type(error).__name__)
        return ""
    return done.stdout.decode("utf-8", "replace")
