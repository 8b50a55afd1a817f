"""What PID 1 sets up for itself and for all that it starts. It runs in a pid namespace of its own, because in the end it kills all processes."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from typing import Any

from sandlot.guest.main import ASKING

STARTED = """
import json, os, resource, subprocess, sys
from sandlot.guest import main

class Guest:
    def __init__(self, fd_in, fd_out):
        self.fd_out = fd_out

    def run(self):
        print("stray", flush=True)
        child = subprocess.run(["grep", "^SigIgn", "/proc/self/status"], capture_output=True, check=True, text=True)
        facts = {"core": resource.getrlimit(resource.RLIMIT_CORE), "ignored": int(child.stdout.split()[1], 16)}
        os.write(self.fd_out, json.dumps(facts).encode())

main.Guest = Guest
main.main()
"""


@cache
def started() -> bytes:
    """Return all that PID 1 writes to its standard output: the link."""
    argv = ["unshare", "--pid", "--fork", "--kill-child=KILL", sys.executable, "-c", STARTED]
    return subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True).stdout


def facts() -> dict[str, Any]:
    return dict(json.loads(started().removeprefix(b"stray\n")))


def test_programs_inherit_no_ignored_signal() -> None:
    assert [int(number) for number in ASKING if facts()["ignored"] & (1 << (number - 1))] == []


def test_core_limit_is_1() -> None:
    assert facts()["core"] == [1, 1]


def test_stray_output_of_the_guest_does_not_reach_the_link() -> None:
    assert b"stray" not in started()
