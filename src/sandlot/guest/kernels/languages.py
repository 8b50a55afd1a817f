"""Languages of code contexts: the command that starts the kernel of each language, and the interpreter that the image must have.

If the image lacks the interpreter of a language, a request for a kernel of this language is refused before a process is started.
"""

from __future__ import annotations

import os

from sandlot.guest.errors import RpcError
from sandlot.guest.process.accounts import BASH
from sandlot.guest.process.spawn import search_path

DEFAULT_CONTEXTS = {"default": "python", "bash": "bash", "javascript": "javascript", "typescript": "typescript", "r": "r"}
"""Id of a default context -> language of the context. Clients need not create these contexts before they run cells in them. The service has the same
table (``model/languages.py``), which the guest cannot import; a unit test keeps both equal."""

NODE_LANGUAGES = {"javascript": "JavaScript", "typescript": "TypeScript"}
"""Language whose kernel runs on Node.js -> name to display."""

PROGRAMS = "/.sandlot/kernel_programs"
"""Folder inside the sandbox that contains the programs of the kernels."""
OWN_PYTHON = ("/.sandlot/lib/ld.so", "--library-path", "/.sandlot/lib", "/.sandlot/bin/python3", "-SI", "-X", "utf8")


def find_program(names: tuple[str, ...], env: dict[str, str]) -> str | None:
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
    return find_program(("python3", "python"), env)


def kernel_argv(language: str, env: dict[str, str], *, plain: bool = False) -> list[str]:
    """Return the command that starts the kernel of a language. The caller must append the kernel's descriptors (``KernelPipes.kernel_channel``).

    Args:
        language: A value of ``DEFAULT_CONTEXTS``.
        env: Complete environment of the kernel; its ``PATH`` is searched for the interpreter.
        plain: True to omit optional parts that may prevent the start: IPython for Python, the instruction RDRAND for JavaScript and TypeScript,
            the user's profile for R.

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
    if language in NODE_LANGUAGES:
        node = find_program(("node", "nodejs"), env)
        if node is None:
            hint = "Use a template with Node.js, or install Node.js."
            raise RpcError("unsupported", f"The image has no Node.js, so it cannot run {NODE_LANGUAGES[language]} code.", hint)
        # Pass --openssl-config only if the option has an effect, because a Node.js that was built without this option would not start.
        random = [] if plain or "OPENSSL_CONF" in env or not _has_randomness() else [f"--openssl-config={PROGRAMS}/javascript/openssl.cnf"]
        # Terminating a cell leaves node's stack of asynchronous calls unbalanced. Without --no-force-async-hooks-checks, node would then abort.
        mode = ["typescript"] if language == "typescript" else []
        return [node, "--no-force-async-hooks-checks", *random, f"{PROGRAMS}/javascript/kernel.mjs", *mode]
    if language == "r":
        interpreter = find_program(("R",), env)
        if interpreter is None:
            hint = "Use the template `languages`, another template with R, or install R (`apt-get install r-base-core`)."
            raise RpcError("unsupported", "The image has no R, so it cannot run R code.", hint)
        return [*OWN_PYTHON, f"{PROGRAMS}/r/kernel.py", interpreter, *(["--no-init-file"] if plain else [])]
    raise RpcError("invalid_request", f"The language {language[:50]!r} is unknown.", f"Use one of: {', '.join(sorted(DEFAULT_CONTEXTS.values()))}.")


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
