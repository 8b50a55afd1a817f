"""The files that every sandbox has below ``/.sandlot``, and the command lines that start the programs among these files.

- The host does not import the guest. It reads the sources of the guest as bytes from the installed package.
- The guest runs on its own interpreter, started by its own dynamic loader, so that the guest needs no file of the image. The library path is an
  argument of the loader, so commands that the guest starts do not inherit the path.
- The kernel programs are shipped as sources; most of them run on the interpreters of the image. The guest and its helpers, except ``sudo.py``,
  are shipped as a zip of byte code, because every opened file costs a round trip to gVisor's gofer.

Layout below ``/.sandlot``::

    lib/ld.so  lib/*.so*          the dynamic loader and the interpreter's libraries
    lib/python3.X/lib-dynload/    extension modules
    lib/python3XX.zip             modules of the standard library that the guest needs, byte code, uncompressed
    bin/python3                   the interpreter
    bin/first                     the first program of a sandbox (``first_program.py``), which becomes the guest
    bin/measured                  launcher of programs whose memory is measured (``measuring_launcher.py``)
    guest.zip                     sandlot.protocol and sandlot.guest with sandlot.guest.helpers, byte code, uncompressed
    helpers/                      sudo.py with values.py (guest's interpreter)
    kernel_programs/              python/kernel.py with sandlot_kernel/ and values.py (image's python), bash/kernel.py with values.py
                                  (guest's interpreter) and init.bash (image's bash), javascript/ (image's node), r/kernel.py (guest's
                                  interpreter) and r/kernel.R (image's R)
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from types import MappingProxyType

from sandlot.link.first_program import first_program
from sandlot.link.measuring_launcher import measuring_launcher

GUEST_ROOT = "/.sandlot"
VOLUMES = "volumes"
"""Name of an empty folder in ``GUEST_ROOT``. The driver mounts the volumes of a sandbox in it, and the guest bind-mounts each volume at its path."""
INTERPRETER_ARGV = (f"{GUEST_ROOT}/lib/ld.so", "--library-path", f"{GUEST_ROOT}/lib", f"{GUEST_ROOT}/bin/python3", "-SI")
FIRST_PROGRAM = "bin/first"
"""Path below ``/.sandlot``."""
MACHINE_CODE: Mapping[str, bytes] = MappingProxyType({FIRST_PROGRAM: first_program(), "bin/measured": measuring_launcher()})
"""Programs that are ELF files, by their paths below ``/.sandlot``."""
GUEST_ARGV = (
    f"{GUEST_ROOT}/{FIRST_PROGRAM}",
    *INTERPRETER_ARGV,
    "-c",
    f"import sys; sys.path.insert(0, '{GUEST_ROOT}/guest.zip'); from sandlot.guest.main import main; main()",
)
"""Command line of the guest, which is PID 1 of every sandbox. Its standard input and output are the link; its standard error is the guest's log."""

_SUDO = "helpers/sudo.py"
"""Path below ``/.sandlot`` of the one helper that is a separate file, because ``/usr/bin/sudo`` of the image starts the helper by its path."""

_KERNEL_PROGRAMS = "kernel_programs"
_KERNEL_PACKAGE = f"{_KERNEL_PROGRAMS}/python/sandlot_kernel"
_ON_GUEST_INTERPRETER = ("helpers/", f"{_KERNEL_PROGRAMS}/bash/kernel.py", f"{_KERNEL_PROGRAMS}/bash/values.py", f"{_KERNEL_PROGRAMS}/r/kernel.py")
_VALUES_BESIDE = ("helpers", f"{_KERNEL_PROGRAMS}/python", f"{_KERNEL_PROGRAMS}/bash", _KERNEL_PACKAGE)
"""Folders of programs that encode or decode messages. Each of these folders gets a copy of ``protocol/values.py``."""


def program_argv(name: str) -> tuple[str, ...]:
    """Return the command that starts a helper on the guest's interpreter.

    Args:
        name: Name of the helper, a constant of ``protocol/helpers.py``.
    """
    start = f"import sys; sys.path.insert(0, '{GUEST_ROOT}/guest.zip'); from sandlot.guest.helpers.{name} import main; main()"
    # In UTF-8 mode (PEP 540) the decoding of file names does not depend on the locale. Bytes that are not UTF-8 become surrogates (PEP 383).
    return (*INTERPRETER_ARGV, "-X", "utf8", "-c", start)


def guest_sources() -> Mapping[str, bytes]:
    """Return the modules of ``guest.zip``: path inside the zip -> source.

    In the zip, ``sandlot/__init__.py`` is empty, because the host's file of this name imports modules that the guest does not have.
    """
    root = resources.files("sandlot")
    sources = {"sandlot/__init__.py": b""}
    for package in ("protocol", "guest"):
        sources.update(_modules(root / package, f"sandlot/{package}"))
    files_of_their_own = (f"sandlot/guest/{_SUDO}", f"sandlot/guest/{_KERNEL_PROGRAMS}/")
    return {path: source for path, source in sources.items() if not path.startswith(files_of_their_own)}


def programs() -> Mapping[str, bytes]:
    """Return the programs that are shipped as separate files: path below ``/.sandlot`` -> source."""
    root = resources.files("sandlot")
    guest = root / "guest"
    files = {_SUDO: (guest / _SUDO).read_bytes()}
    pending = [_KERNEL_PROGRAMS]
    while pending:
        folder = pending.pop()
        for entry in (guest / folder).iterdir():
            if entry.name == "__init__.py" and folder != _KERNEL_PACKAGE:
                continue  # only Sandlot's own source tree needs these folders to be packages
            if entry.is_file():
                files[f"{folder}/{entry.name}"] = entry.read_bytes()
            elif entry.name != "__pycache__":
                pending.append(f"{folder}/{entry.name}")
    values = (root / "protocol" / "values.py").read_bytes()
    files.update({f"{folder}/values.py": values for folder in _VALUES_BESIDE})
    return files


def runs_on_the_image(path: str) -> bool:
    """Return True if a program runs on the python, bash, node or R of the image, False if it runs on the guest's interpreter.

    Args:
        path: Path below ``/.sandlot``, as :func:`programs` returns it.
    """
    return not path.startswith(_ON_GUEST_INTERPRETER)


def digest() -> str:
    """Return the SHA-256 of all modules and programs, in hexadecimal. Two services with the same digest ship the same guest."""
    total = hashlib.sha256()
    for name, text in sorted({**guest_sources(), **programs(), **MACHINE_CODE}.items()):
        total.update(f"{name}\0{len(text)}\0".encode() + text)
    return total.hexdigest()


def _modules(folder: Traversable, path: str) -> dict[str, bytes]:
    """Return the modules in a folder and below it: path -> source.

    Args:
        folder: Folder to walk.
        path: Path of the folder in the result.
    """
    found: dict[str, bytes] = {}
    for entry in folder.iterdir():
        if entry.is_dir():
            found.update(_modules(entry, f"{path}/{entry.name}"))
        elif entry.name.endswith(".py"):
            found[f"{path}/{entry.name}"] = entry.read_bytes()
    return found
