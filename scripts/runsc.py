"""Install a build of gVisor's runsc from a file or a URL, after its checksum was verified. Called by ``scripts/setup --runsc``.

The checksum is the SHA-512 of the option ``--sha512``, or the first word of ``SOURCE.sha512``, which gVisor publishes beside each release. Over plain
HTTP the option is required, because both files could be replaced on their way; loopback addresses are excepted.

Invariants:
- The program at ``PREFIX/bin/runsc`` is replaced in one step, after the new file was verified and has reported its version.
- ``PREFIX/share/sandlot/runsc.json`` names the origin of the file with the recorded digest. ``sandlot version`` and ``sandlot doctor`` show it.

Uses only the standard library, because it runs before the virtual environment exists.
"""

from __future__ import annotations

import argparse
import hashlib
import ipaddress
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit, urlunsplit

MIN_RELEASE = 20240729
"""Date of the oldest supported release, as in ``sandlot.drivers.oci.gvisor.runtime``."""
MAX_BYTES = 512 * 1024**2
"""Largest accepted program; a release has about 70 MiB."""
_TIMEOUT_S = 60.0
_PIECE_BYTES = 1024**2


class InstallError(Exception):
    """The build was not installed. The text says why, and what to do."""


def install(source: str, sha512: str | None, prefix: Path) -> str:
    """Install a build and return its version.

    Args:
        source: Path of a file, or an http or https URL.
        sha512: Expected SHA-512 in hexadecimal. None: read from ``SOURCE.sha512``.
        prefix: Folder with ``bin`` and ``share``.

    Raises:
        InstallError: The source cannot be read, has another checksum, or is no supported runsc.
    """
    expected = (sha512 or _published_checksum(source)).lower()
    if re.fullmatch(r"[0-9a-f]{128}", expected) is None:
        raise InstallError(f"{expected[:20]!r} is not a SHA-512 in hexadecimal. Pass --sha512 with 128 digits.")
    programs, records = prefix / "bin", prefix / "share" / "sandlot"
    for folder in (programs, records):
        folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".runsc-", dir=programs)
    fresh = Path(name)
    try:
        with _open(source) as content, os.fdopen(handle, "wb") as file:
            digests = _copy(content, file)
        if digests["sha512"] != expected:
            raise InstallError(f"{_shown(source)} has SHA-512 {digests['sha512'][:16]}..., expected {expected[:16]}.... Download it again.")
        fresh.chmod(0o755)
        version = _version(fresh)
        record = json.dumps({"source": _shown(source), "sha256": digests["sha256"], "sha512": digests["sha512"], "version": version}, indent=2)
        (records / ".runsc.json").write_text(f"{record}\n", encoding="utf-8")
        fresh.replace(programs / "runsc")
        (records / ".runsc.json").replace(records / "runsc.json")
    finally:
        fresh.unlink(missing_ok=True)
    return version


def _published_checksum(source: str) -> str:
    """Return the checksum that is published beside a source."""
    url = urlsplit(source)
    if url.scheme == "http" and not _is_loopback(url.hostname or ""):
        raise InstallError(f"{_shown(source)} is not protected on its way. Use https, or pass --sha512.")
    beside = urlunsplit(url._replace(path=f"{url.path}.sha512")) if url.scheme in {"http", "https"} else f"{source}.sha512"
    try:
        with _open(beside) as content:
            return content.read(4096).decode("ascii", "replace").split(maxsplit=1)[0]
    except (InstallError, IndexError):
        raise InstallError(f"{_shown(source)}.sha512 cannot be read. Put the checksum there, or pass --sha512.") from None


def _open(source: str) -> IO[bytes]:
    try:
        if urlsplit(source).scheme in {"http", "https"}:
            response: IO[bytes] = urllib.request.urlopen(source, timeout=_TIMEOUT_S)  # noqa: S310 - the scheme was checked
            return response
        return Path(source).open("rb")
    except (OSError, ValueError, urllib.error.URLError) as error:
        raise InstallError(f"{_shown(source)} cannot be read: {getattr(error, 'reason', None) or error}.") from error


def _copy(content: IO[bytes], file: IO[bytes]) -> dict[str, str]:
    """Copy a program and return its digests in hexadecimal."""
    digests, size = {name: hashlib.new(name) for name in ("sha256", "sha512")}, 0
    try:
        while piece := content.read(_PIECE_BYTES):
            size += len(piece)
            if size > MAX_BYTES:
                raise InstallError(f"The source has more than {MAX_BYTES // 1024**2} MiB, so it is not runsc.")
            for digest in digests.values():
                digest.update(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    except OSError as error:
        raise InstallError(f"The build was not copied completely: {error.strerror or error}.") from error
    return {name: digest.hexdigest() for name, digest in digests.items()}


def _version(program: Path) -> str:
    try:
        output = subprocess.run([str(program), "--version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True, env={}).stdout
    except (OSError, UnicodeDecodeError, subprocess.SubprocessError) as error:
        raise InstallError("The file is not a program for this machine. Use the build of its architecture.") from error
    first = output.partition("\n")[0]
    date = re.search(r"20\d{6}", first)
    if not first.startswith("runsc version ") or date is None:
        raise InstallError("The file is not a release of runsc: it does not report a version with a date.")
    if int(date[0]) < MIN_RELEASE:
        raise InstallError(f"The file is runsc of {date[0]}; Sandlot needs {MIN_RELEASE} or newer.")
    return first.removeprefix("runsc version ").strip()


def _shown(source: str) -> str:
    """Return a source without the secrets that the query of a URL may contain."""
    url = urlsplit(source)
    if url.scheme not in {"http", "https"}:
        return str(Path(source).absolute())
    return urlunsplit(url._replace(query=""))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def main() -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(prog="scripts/runsc.py", description="Install a build of gVisor's runsc, checksum verified.")
    parser.add_argument("source", help="path of a file, or an http or https URL")
    parser.add_argument("--sha512", help="expected SHA-512 in hexadecimal; default: the content of SOURCE.sha512")
    parser.add_argument("--prefix", type=Path, default=Path("/usr/local"), help="folder with bin and share (default: /usr/local)")
    arguments = parser.parse_args()
    try:
        version = install(arguments.source, arguments.sha512, arguments.prefix)
    except InstallError as error:
        print(f"sandlot: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"sandlot: {arguments.prefix} cannot be written: {error.strerror or error}. Run this as root.", file=sys.stderr)
        return 1
    print(f"runsc {version} in {arguments.prefix / 'bin'}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
