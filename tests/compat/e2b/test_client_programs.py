"""Programs with older clients and with frameworks that use E2B, each in the environment of its lock. Only environment variables lead to Sandlot.

Programs print what they saw. What needs the host name of a port (`get_host`, and `run_code` of older packages) is in
`tests/compat/test_preview_addresses.py`.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.environments import create_environment
from tests.support.tcpservice import TcpService

HERE = Path(__file__).parent / "programs"
NUMBERS = itertools.count()
CORE = {
    "command": ["green in /home/user\n", "oops\n", 0],
    "failed": 3,
    "running": True,
    "output": "got input\n",
    "ended": [True, False, False],
    "files": ["written", [0, 255]],
    "folder": ["moved", False, ["bytes"]],
    "removed": False,
    "terminal": True,
    "listed": [[True, True]],
    "connected": "written",
    "killed": [True, False, False],
    "gone": True,
}
OPENAI_AGENTS = {
    "agent": ["done", [True, "4"]],
    "failed": [True, True],
    "file": "written",
    "listed": ["data.csv", "note.txt"],
    "restored": "written",
    "terminal": True,
    "running": True,
    "after": False,
}
SMOLAGENTS = {"answer": {"sum": 12, "given": [1, "two"]}, "printed": True, "error": True}
LANGCHAIN = {
    "command": [["/home/user", "", "oops"], 3],
    "timeout": 124,
    "uploaded": [None, "invalid_path"],
    "downloaded": [["one\ntwo\n", None], [None, "is_directory"], [None, "file_not_found"]],
    "written": None,
    "edited": 1,
    "read": "value = 2",
    "listed": ["/home/user/folder/a.txt", "/home/user/folder/b.py"],
    "found": [["/home/user/folder/a.txt", 2]],
    "matching": ["b.py"],
    "asynchronous": ["value = 2", 0],
    "killed": True,
}
CREWAI = {
    "fresh": ["green in /home/user\n", 0],
    "written": 4,
    "bytes": 8,
    "read": "one\ntwo\n",
    "command": "2",
    "listed": ["note.txt"],
    "info": [8, "user", "-rw-r--r--"],
    "exists": False,
    "killed": True,
}


def run(service: TcpService, python: str | Path, program: str) -> dict[str, Any]:
    """Return what a program printed."""
    url = f"{service.url}/e2b"
    own = {"E2B_API_KEY": service.key(f"programs-{next(NUMBERS)}", "--e2b"), "E2B_API_URL": url, "E2B_SANDBOX_URL": url}
    env = {**os.environ, **own, "CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true"}
    done = subprocess.run([python, HERE / program], env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


def test_core_operations_of_the_newest_client(gvisor_service: TcpService) -> None:
    assert run(gvisor_service, sys.executable, "core.py") == CORE


@pytest.mark.soak
@pytest.mark.parametrize(
    "environment, program, expected",
    [
        ("e2b-2.31", "core.py", CORE),
        ("e2b-2.45", "core.py", CORE),
        ("openai-agents", "openai_agents.py", OPENAI_AGENTS),
        ("smolagents", "smolagents_agent.py", SMOLAGENTS),
        ("langchain-e2b", "langchain_backend.py", LANGCHAIN),
        ("crewai", "crewai_program.py", CREWAI),
    ],
)
def test_program_runs_with_the_environments_client(
    gvisor_service: TcpService, tmp_path: Path, environment: str, program: str, expected: dict[str, Any]
) -> None:
    python = create_environment(f"tests/environments/clients/{environment}.lock", tmp_path / "venv")
    assert run(gvisor_service, python, program) == expected
