"""Set-up of PID 1, and the table of handlers. PID 1 runs in its own pid namespace, because it kills all processes at its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from typing import Any
from unittest.mock import MagicMock

import pytest

from sandlot.guest import main as module
from sandlot.guest.loop import Loop
from sandlot.guest.main import HANDLED_SIGNALS, start
from sandlot.guest.rpc import RpcServer
from sandlot.protocol import schema

STARTED = """
import json, os, resource, subprocess, sys
from sandlot.guest import main

def start(loop, fd_in, fd_out, *, has_card):
    print("stray", flush=True)
    child = subprocess.run(["grep", "^SigIgn", "/proc/self/status"], capture_output=True, check=True, text=True)
    facts = {"core": resource.getrlimit(resource.RLIMIT_CORE), "ignored": int(child.stdout.split()[1], 16), "has_card": has_card}
    os.write(fd_out, json.dumps(facts).encode())
    loop.stop()

main.start = start
main.main()
"""


@cache
def started(*arguments: str) -> bytes:
    """Return the bytes that PID 1 writes to its standard output, which is the link."""
    argv = ["unshare", "--pid", "--fork", "--kill-child=KILL", sys.executable, "-c", STARTED, *arguments]
    return subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True).stdout


def facts(*arguments: str) -> dict[str, Any]:
    return dict(json.loads(started(*arguments).removeprefix(b"stray\n")))


def test_programs_inherit_no_ignored_signal() -> None:
    assert [int(number) for number in HANDLED_SIGNALS if facts()["ignored"] & (1 << (number - 1))] == []


def test_core_limit_is_1() -> None:
    assert facts()["core"] == [1, 1]


def test_network_is_used_only_if_the_driver_has_set_up_a_card() -> None:
    assert not facts()["has_card"]
    assert facts(schema.NETWORK_ARGUMENT)["has_card"]


def test_stray_output_of_the_guest_does_not_reach_the_link() -> None:
    assert b"stray" not in started()


def test_every_call_of_the_schema_has_a_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[str] = []
    monkeypatch.setattr(RpcServer, "serve", lambda _self, handlers: served.extend(handlers))
    for name in ("_reap_on_sigchld", "SudoServer", "PackageProxy"):
        monkeypatch.setattr(module, name, MagicMock())
    reading, writing = os.pipe()
    try:
        start(Loop(), reading, writing)
    finally:
        os.close(reading)
        os.close(writing)

    assert sorted(served) == sorted(schema.CALLS)
