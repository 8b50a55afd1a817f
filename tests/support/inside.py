"""Programs that run inside of a sandbox and tell a test what they saw."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest

from sandlot import Sandbox

USERS = ("user", "root")
IN_GVISOR = pytest.mark.parametrize("isolation", ["gvisor"], indirect=True)
IN_CONTAINERS = pytest.mark.parametrize("isolation", ["container"], indirect=True)
"""For tests of ``tests/security`` whose promise is the guest's or the service's, whatever isolates the sandbox, or that of one isolation type."""

# Linux's calls that Python has no function for, by number on x86-64 and on arm64 (asm/unistd.h).
PREAMBLE = """
import base64, ctypes, errno, json, os, platform, socket, stat, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def called(result):
    # The name of the error of a C call, or None where it succeeded.
    return errno.errorcode.get(ctypes.get_errno(), "?") if result < 0 else None
def attempt(function, *args):
    # The name of the error that a call raises, or what it gives.
    try:
        return {"got": function(*args)}
    except OSError as error:
        return {"error": errno.errorcode.get(error.errno, str(error))}
def read(path, size=65536):
    with open(path, "rb") as file:
        return file.read(size).decode("latin-1")
def processes():
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
given = json.loads(base64.b64decode(sys.argv[1]))
told = {}
"""


def run_inside(sandbox: Sandbox, program: str, *, user: str = "user", given: Mapping[str, Any] | None = None, timeout: float = 120) -> dict[str, Any]:
    """Run a program on the image's python, and what it put into ``told``.

    Args:
        sandbox: Where.
        program: Python; it finds the names of :data:`PREAMBLE`.
        user: As whom.
        given: What it finds as ``given``.
        timeout: Seconds.
    """
    done = sandbox.commands.run(["python3", *arguments(program, given)], user=user, timeout=timeout)
    assert done.exit_code == 0, f"{done.reason} {done.exit_code}: {done.stderr[-2000:]}"
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def arguments(program: str, given: Mapping[str, Any] | None = None) -> list[str]:
    """What a python is to be given to run a program as :func:`run_inside` does.

    Args:
        program: Python; it finds the names of :data:`PREAMBLE`.
        given: What it finds as ``given``.
    """
    text = f"{PREAMBLE}\n{program}\nprint(json.dumps(told))\n"
    # Not as plain text: what the program looks for must not be found in its own command line.
    return ["-SI", "-c", text, base64.b64encode(json.dumps(dict(given or {})).encode()).decode()]
