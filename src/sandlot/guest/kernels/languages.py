"""Languages of code contexts: the command that starts the kernel of each language, and the interpreter that the image must have.

If the image lacks the interpreter of a language, a request for a kernel of this language is refused before a process is started.
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
"""Id of a default context -> language of the context. Clients need not create these contexts before they run cells in them."""

PROGRAMS = "/.sandlot/kernel_programs"
"""Folder inside the sandbox that contains the programs of the kernels."""
OWN_PYTHON = ("/.sandlot/lib/ld.so", "--library-path", "/.sandlot/lib", "/.sandlot/bin/python3", "-SI", "-X", "utf8")
STARTUP_VARIABLES = (
    *("PYTHON", "IPYTHON", "LD_", "LANG", "LC_", "MALLOC_", "GLIBC_", "XDG_", "MPL"),
    *("OMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "NPY_", "NUMEXPR_"),
)
"""Prefixes of environment variables that programs and libraries read only when they start. A running kernel ignores changes of these variables."""


def find(names: tuple[str, ...], env: dict[str, str]) -> str | None:
    """Return the path of the first program of ``names`` that ``PATH`` contains. Return None if ``PATH`` contains none of these programs.

    Args:
        names: Names of the programs, the preferred one first.
        env: Environment whose ``PATH`` is searched.
    """
    for name in names:
        for path in search_path(name, env):
            if os.access(path, os.X_OK) and os.path.isfile(path):
                return os.fsdecode(path)
    return None


def find_python(env: dict[str, str]) -> str | None:
    """Return the path of the image's Python interpreter, or None if the ``PATH`` of ``env`` contains no ``python3`` and no ``python``."""
    return find(("python3", "python"), env)


def argv(language: str, env: dict[str, str], *, plain: bool = False) -> list[str]:
    """Return the command that starts the kernel of a language. The caller must append the kernel's descriptors (``KernelPipes.kernel_channel``).

    Args:
        language: ``python``, ``bash`` or ``javascript``.
        env: Complete environment of the kernel; its ``PATH`` is searched for the interpreter.
        plain: True to omit optional parts that may prevent the start: IPython for Python, the instruction RDRAND for JavaScript.

    Raises:
        RpcError: The image has no interpreter for the language, or the language is unknown.
    """
    if language == "python":
        python = find_python(env)
        if python is None:
            raise RpcError("unsupported", "The image has no python, so it cannot run Python code.", "Use a template with Python, or run commands.")
        return [python, f"{PROGRAMS}/python/kernel.py", *(["--instead"] if plain else [])]
    if language == "bash":
        if not os.path.exists(BASH):
            raise RpcError("unsupported", "The image has no bash, so it cannot run bash code.", "Use a template with bash, or run commands.")
        return [*OWN_PYTHON, f"{PROGRAMS}/bash/kernel.py"]
    if language == "javascript":
        node = find(("node", "nodejs"), env)
        if node is None:
            hint = "Use a template with Node.js, or install Node.js."
            raise RpcError("unsupported", "The image has no Node.js, so it cannot run JavaScript code.", hint)
        # Pass --openssl-config only if the option has an effect, because a Node.js that was built without this option would not start.
        random = [] if plain or "OPENSSL_CONF" in env or not _has_randomness() else [f"--openssl-config={PROGRAMS}/javascript/openssl.cnf"]
        # Terminating a cell leaves node's stack of asynchronous calls unbalanced. Without --no-force-async-hooks-checks, node would then abort.
        return [node, "--no-force-async-hooks-checks", *random, f"{PROGRAMS}/javascript/kernel.mjs"]
    raise RpcError("invalid_request", f"The language {language[:50]!r} is unknown.", f"Use one of: {', '.join(sorted(DEFAULTS.values()))}.")


def _has_randomness() -> bool:
    """Return True if the processor has an instruction for random numbers (RDRAND)."""
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


def startup_variables(env: dict[str, str]) -> dict[str, str]:
    """Return the variables of ``env`` whose names begin with a prefix of ``STARTUP_VARIABLES``."""
    return {name: value for name, value in env.items() if name.startswith(STARTUP_VARIABLES)}


def package_folders(python: str, home: str) -> dict[str, int]:
    """Return the modification times of the folders into which Python packages are installed, and of the ``lib`` folders above them.

    The folders are found without starting Python.

    Args:
        python: Path of the Python interpreter.
        home: Home directory of the user; ``.local/lib`` in this directory is included.

    Returns:
        Path of a folder -> modification time in nanoseconds; 0 if the folder does not exist.
    """
    prefix = os.path.dirname(os.path.dirname(os.path.realpath(python)))
    folders = []
    for root in {prefix, "/usr/local", f"{prefix}/local", f"{home}/.local"}:
        folders.append(f"{root}/lib")
        try:
            versions = [name for name in os.listdir(f"{root}/lib") if name.startswith("python3")]
        except OSError:
            continue
        folders += [f"{root}/lib/{version}/{leaf}" for version in versions for leaf in ("site-packages", "dist-packages")]
    return modified_times(folders)


def modified_times(folders: Iterable[str]) -> dict[str, int]:
    """Return path -> modification time in nanoseconds for each of ``folders``; 0 for a folder that does not exist."""
    times = {}
    for folder in folders:
        try:
            times[folder] = os.stat(folder).st_mtime_ns
        except OSError:
            times[folder] = 0
    return times
