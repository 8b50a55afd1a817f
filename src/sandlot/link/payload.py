"""What goes into every sandbox at ``/.sandlot``, as data, and how it is started.

Laws:
- Nobody imports the guest on the host: its sources are read as bytes from the installed package.
- The guest runs on its own interpreter, started through that interpreter's own dynamic loader, so that nothing of
  the image is needed; commands that it starts inherit no library path, because it is an argument here.
- Programs that run on the *image's* python (the kernel) are shipped as plain sources; the guest proper, and the programs that
  the host starts on the guest's interpreter, as a zip of byte code, because every opened file costs a round trip to the gofer.

Layout below ``/.sandlot``::

    lib/ld.so  lib/*.so*          the dynamic loader and the interpreter's libraries
    lib/python3.X/lib-dynload/    extension modules
    lib/python3XX.zip             the standard library that the guest needs, byte code, stored
    bin/python3                   the interpreter
    guest.zip                     sandlot.protocol and sandlot.guest with sandlot.guest.programs, byte code, stored
    programs/                     kernel.py with sandlot_kernel/, values.py (image's python), sudo.py and shell.py (own interpreter),
                                  shell.bash (image's bash), javascript.mjs with openssl.cnf (image's node)
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable

GUEST_ROOT = "/.sandlot"
VOLUMES = "volumes"
"""An empty folder in it, where isolations put what a sandbox has of volumes before they are in their places."""
INTERPRETER_ARGV = (f"{GUEST_ROOT}/lib/ld.so", "--library-path", f"{GUEST_ROOT}/lib", f"{GUEST_ROOT}/bin/python3", "-SI")
GUEST_ARGV = (
    *INTERPRETER_ARGV,
    "-c",
    f"import sys; sys.path.insert(0, '{GUEST_ROOT}/guest.zip'); from sandlot.guest.main import main; main()",
)
"""PID 1 of every sandbox. Its stdin and stdout are the link; stderr is the guest's log."""

_PLAIN = ("kernel.py", "shell.py", "sudo.py")
"""Programs that are files of their own: the image's python, or a script of the image, starts them by their path."""

_OTHERS = ("javascript.mjs", "openssl.cnf", "shell.bash")
"""Programs of other languages, and what they are started with."""

_KERNEL = "sandlot_kernel"
"""The modules of ``kernel.py``: a folder beside it."""


def program_argv(name: str) -> tuple[str, ...]:
    """How a program of ``sandlot.guest.programs`` is started on the guest's interpreter, whatever the image has.

    Args:
        name: The module's.
    """
    start = f"import sys; sys.path.insert(0, '{GUEST_ROOT}/guest.zip'); from sandlot.guest.programs.{name} import main; main()"
    # Names of files are UTF-8 whatever the environment says (PEP 540); what is none comes through by PEP 383.
    return (*INTERPRETER_ARGV, "-X", "utf8", "-c", start)


def guest_sources() -> Mapping[str, bytes]:
    """The modules of ``guest.zip``: path inside the zip -> source.

    The package ``sandlot`` itself is empty there: the host's has imports that a guest has no use for.
    """
    root = resources.files("sandlot")
    sources = {"sandlot/__init__.py": b""}
    for package in ("protocol", "guest"):
        sources.update(_modules(root / package, f"sandlot/{package}"))
    plain = {f"sandlot/guest/programs/{name}" for name in _PLAIN}
    return {path: source for path, source in sources.items() if path not in plain and f"/{_KERNEL}/" not in path}


def programs() -> Mapping[str, bytes]:
    """The files of ``programs/``: path inside it -> source."""
    root = resources.files("sandlot")
    inside = root / "guest" / "programs"
    files = {name: (inside / name).read_bytes() for name in (*_PLAIN, *_OTHERS)}
    files.update(_modules(inside / _KERNEL, _KERNEL))
    for values in ("values.py", f"{_KERNEL}/values.py"):
        files[values] = (root / "protocol" / "values.py").read_bytes()
    return files


def runs_on_the_image(name: str) -> bool:
    """Whether one of ``programs()`` runs on the image's python, bash or node, not on the guest's interpreter."""
    return name == "kernel.py" or name in _OTHERS or name.startswith(f"{_KERNEL}/")


def digest() -> str:
    """SHA-256 in hexadecimal of everything above; two services of one digest ship the same guest."""
    total = hashlib.sha256()
    for name, text in sorted({**guest_sources(), **programs()}.items()):
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
