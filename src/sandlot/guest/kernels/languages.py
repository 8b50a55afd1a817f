"""Languages: which program runs the cells of each, and what an image must have for it.

Law: What cannot run here is refused with what is missing, before anything is started.
"""

from __future__ import annotations

import os

from sandlot.guest.errors import RpcError
from sandlot.guest.process.accounts import BASH
from sandlot.guest.process.spawn import search_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

DEFAULTS = {"default": "python", "bash": "bash", "javascript": "javascript"}
"""The contexts that are there by themselves, and their language."""

PROGRAMS = "/.sandlot/programs"
OWN_PYTHON = ("/.sandlot/lib/ld.so", "--library-path", "/.sandlot/lib", "/.sandlot/bin/python3", "-SI", "-X", "utf8")
EARLY = (
    *("PYTHON", "IPYTHON", "LD_", "LANG", "LC_", "MALLOC_", "GLIBC_", "XDG_", "MPL"),
    *("OMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "NPY_", "NUMEXPR_"),
)
"""Variables that begin so are read when a program or a library starts: later is too late."""


def find(names: tuple[str, ...], env: dict[str, str]) -> str | None:
    """The first of some programs that PATH has, or None."""
    for name in names:
        for path in search_path(name, env):
            if os.access(path, os.X_OK) and os.path.isfile(path):
                return os.fsdecode(path)
    return None


def find_python(env: dict[str, str]) -> str | None:
    """The image's python, or None."""
    return find(("python3", "python"), env)


def argv(language: str, env: dict[str, str], *, plain: bool = False) -> list[str]:
    """How the kernel of a language is started; the number of its socket comes behind that.

    Args:
        language: python, bash or javascript.
        env: What it will have.
        plain: Without what is nice to have, because with that it did not start: what the image has installed beside its python, the
            processor's randomness for node.

    Raises:
        RpcError: The image has nothing that runs it.
    """
    if language == "python":
        python = find_python(env)
        if python is None:
            raise RpcError("unsupported", "This image has no python, so it has no kernel.", "Run commands instead, or use a template with python.")
        return [python, f"{PROGRAMS}/kernel.py", *(["--instead"] if plain else [])]
    if language == "bash":
        if not os.path.exists(BASH):
            raise RpcError("unsupported", "This image has no bash, so it has no bash context.", "Run commands instead, or use a template with bash.")
        return [*OWN_PYTHON, f"{PROGRAMS}/shell.py"]
    if language == "javascript":
        node = find(("node", "nodejs"), env)
        if node is None:
            hint = "Use a template with Node.js, or install it."
            raise RpcError("unsupported", "This image has no Node.js, so it has no JavaScript context.", hint)
        # Not what is only for some: a node may have been built without it, and does not start then.
        random = [] if plain or "OPENSSL_CONF" in env or not _has_randomness() else [f"--openssl-config={PROGRAMS}/openssl.cnf"]
        # A cell that is terminated leaves node's bookkeeping of asynchronous calls uneven; the check of that would end node.
        return [node, "--no-force-async-hooks-checks", *random, f"{PROGRAMS}/javascript.mjs"]
    raise RpcError("invalid_request", f"There is no language {language[:50]!r}.", f"Use one of: {', '.join(sorted(DEFAULTS.values()))}.")


def _has_randomness() -> bool:
    """Whether the processor draws random numbers by itself (RDRAND)."""
    try:
        fd = os.open("/proc/cpuinfo", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return b" rdrand " in os.read(fd, 65536)
    except OSError:
        return False
    finally:
        os.close(fd)


def early(env: dict[str, str]) -> dict[str, str]:
    """The part of an environment that must be there when a program starts. Pure."""
    return {name: value for name, value in env.items() if name.startswith(EARLY)}


def site_places(python: str, home: str) -> dict[str, int]:
    """Where an image's python finds what is installed beside it, without asking it, and where such folders come to be.

    Args:
        python: Its path.
        home: Of whom it runs as.

    Returns:
        Of each, when it last changed; 0 where it is not there.
    """
    prefix = os.path.dirname(os.path.dirname(os.path.realpath(python)))
    places = []
    for root in {prefix, "/usr/local", f"{prefix}/local", f"{home}/.local"}:
        places.append(f"{root}/lib")
        try:
            versions = [name for name in os.listdir(f"{root}/lib") if name.startswith("python3")]
        except OSError:
            continue
        places += [f"{root}/lib/{version}/{leaf}" for version in versions for leaf in ("site-packages", "dist-packages")]
    return changed(places)


def changed(places: Iterable[str]) -> dict[str, int]:
    """When each of some folders last changed, in nanoseconds; 0 where it is not there."""
    found = {}
    for place in places:
        try:
            found[place] = os.stat(place).st_mtime_ns
        except OSError:
            found[place] = 0
    return found
