"""Languages: which program runs the cells of each, and what an image must have for it.

Law: What cannot run here is refused with what is missing, before anything is started.
"""

from __future__ import annotations

import os

from sandlot.guest.calls import Refusal
from sandlot.guest.spawn import SHELL, candidates

DEFAULTS = {"default": "python", "bash": "bash", "javascript": "javascript"}
"""The contexts that are there by themselves, and their language."""

PROGRAMS = "/.sandlot/programs"
OWN_PYTHON = ("/.sandlot/lib/ld.so", "--library-path", "/.sandlot/lib", "/.sandlot/bin/python3", "-SI", "-X", "utf8")
EARLY = ("OMP_", "MKL_", "OPENBLAS_", "PYTHON", "LD_", "MPL")
"""Variables that begin so are read when a program or a library starts: later is too late."""


def find(names: tuple[str, ...], env: dict[str, str]) -> str | None:
    """The first of some programs that PATH has, or None."""
    for name in names:
        for path in candidates(name, env):
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
        plain: Without what the image may have installed beside its python, because with that it did not start.

    Raises:
        Refusal: The image has nothing that runs it.
    """
    if language == "python":
        python = find_python(env)
        if python is None:
            raise Refusal("unsupported", "This image has no python, so it has no kernel.", "Run commands instead, or use a template with python.")
        return [python, f"{PROGRAMS}/kernel.py", *(["--instead"] if plain else [])]
    if language == "bash":
        if not os.path.exists(SHELL):
            raise Refusal("unsupported", "This image has no bash, so it has no bash context.", "Run commands instead, or use a template with bash.")
        return [*OWN_PYTHON, f"{PROGRAMS}/shell.py"]
    if language == "javascript":
        node = find(("node", "nodejs"), env)
        if node is None:
            hint = "Use a template with Node.js, or install it."
            raise Refusal("unsupported", "This image has no Node.js, so it has no JavaScript context.", hint)
        # A cell that is terminated leaves node's bookkeeping of asynchronous calls uneven; the check of that would end node.
        return [node, "--no-force-async-hooks-checks", f"{PROGRAMS}/javascript.mjs"]
    raise Refusal("invalid_request", f"There is no language {language[:50]!r}.", f"Use one of: {', '.join(sorted(DEFAULTS.values()))}.")


def early(env: dict[str, str]) -> dict[str, str]:
    """The part of an environment that must be there when a program starts. Pure."""
    return {name: value for name, value in env.items() if name.startswith(EARLY)}


def site_folders(python: str, home: str) -> list[str]:
    """Where an image's python finds what is installed beside it, without asking it: those folders that are there.

    Args:
        python: Its path.
        home: Of whom it runs as.
    """
    prefix = os.path.dirname(os.path.dirname(os.path.realpath(python)))
    found = []
    for root in {prefix, "/usr/local", f"{prefix}/local", f"{home}/.local"}:
        try:
            versions = [name for name in os.listdir(f"{root}/lib") if name.startswith("python3")]
        except OSError:
            continue
        found += [f"{root}/lib/{version}/{leaf}" for version in versions for leaf in ("site-packages", "dist-packages")]
    return sorted(folder for folder in set(found) if os.path.isdir(folder))
