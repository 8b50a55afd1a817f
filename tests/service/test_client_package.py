"""The client in environments that have the wheel and what it requires, without the service's packages."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.support.environments import INSTALL, build_wheel, create_environment
from tests.support.localservice import LocalService, local_service

pytestmark = pytest.mark.slow

Run = Callable[..., subprocess.CompletedProcess[str]]

PROGRAM = """
import asyncio
import pathlib
import sys

from sandlot import AsyncSandbox, NotFoundError, Output, Sandbox

with Sandbox.create("base", metadata={"from": "client"}) as sandbox:
    sandbox.files.write("/workspace/data.csv", "1,2")
    assert sandbox.run_code("x = open('data.csv').read(); x").text == "'1,2'"
    assert "".join(event.text for event in sandbox.stream_code("print(x)") if isinstance(event, Output)) == "1,2\\n"
    assert sandbox.commands.run("cat data.csv; exit 3").exit_code == 3
    assert sandbox.files.download("/workspace", "downloaded") is not None
    assert pathlib.Path("downloaded/data.csv").read_text() == "1,2"
    assert [info.id for info in Sandbox.list(metadata={"from": "client"})] == [sandbox.id]
    with sandbox.pty.create(["/bin/echo", "on a terminal"]) as terminal:
        assert b"on a terminal" in b"".join(terminal)

async def main():
    async with AsyncSandbox.create("base") as sandbox:
        assert (await sandbox.run_code("print(6 * 7)")).stdout == "42\\n"
        async with await sandbox.pty.create(["/bin/echo", "again"]) as terminal:
            assert b"again" in b"".join([chunk async for chunk in terminal])

asyncio.run(main())
try:
    Sandbox.connect("sb-aaaa-aaaaaaaaaaaaaaaa")
except NotFoundError:
    print(sys.modules["sandlot"].__file__)
"""
IMPORTS = """
import importlib, pkgutil
import sandlot.sdk
for module in pkgutil.walk_packages(sandlot.sdk.__path__, "sandlot.sdk."):
    importlib.import_module(module.name)
"""


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    with local_service(isolation="gvisor") as running:
        yield running


@pytest.fixture(scope="module", params=["client-oldest", pytest.param("client-newest", marks=pytest.mark.soak)])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run a program of an environment with the client."""
    folder = tmp_path_factory.mktemp(request.param)
    python = create_environment(f"tests/environments/{request.param}.lock", folder / "venv")
    subprocess.run([*INSTALL, python, build_wheel(folder)], check=True, capture_output=True)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SANDLOT_", "PYTHON", "VIRTUAL_ENV"))}

    def run(*command: str, **env: str) -> subprocess.CompletedProcess[str]:
        settings = {"SANDLOT_DATA_DIR": str(folder / "data"), **env}
        program = [str(python.with_name(command[0])), *command[1:]]
        return subprocess.run(program, cwd=folder, env=clean | settings, check=False, capture_output=True, text=True, timeout=200)

    return run


def test_client_uses_a_service_without_the_packages_of_the_service(run: Run, service: LocalService) -> None:
    done = run("python", "-c", PROGRAM, SANDLOT_URL=f"unix://{service.client.target.socket}")
    assert "/venv/lib/" in done.stdout, done.stderr


def test_command_line_uses_a_service_without_the_packages_of_the_service(run: Run, service: LocalService) -> None:
    url = f"unix://{service.client.target.socket}"
    done = run("sandlot", "run", "--template", "base", "-c", "print(6 * 7)", SANDLOT_URL=url)
    assert (done.stdout, done.stderr) == ("42\n", "")
    assert run("sandlot", "run", "--nonsense", SANDLOT_URL=url).returncode == 125
    assert run("sandlot", "info", "sb-nothing", SANDLOT_URL=url).stderr.startswith("sandlot: ")


def test_every_module_of_the_sdk_can_be_imported(run: Run) -> None:
    assert run("python", "-c", IMPORTS).stderr == ""


@pytest.mark.parametrize("command", ["serve", "doctor", "key ls", "image build base", "create", "bench"])
def test_command_that_needs_the_service_names_its_extra(run: Run, command: str) -> None:
    done = run("sandlot", *command.split())
    assert (done.returncode, done.stdout) == (1, "")
    assert "pip install 'sandlot[server]'" in done.stderr
    assert len(done.stderr.splitlines()) == 2


def test_export_without_its_extra_names_it(run: Run, service: LocalService) -> None:
    done = run("sandlot", "export", "sb-aaaa-aaaaaaaaaaaaaaaa", SANDLOT_URL=f"unix://{service.client.target.socket}")
    assert (done.returncode, done.stdout) == (1, "")
    assert "pip install 'sandlot[notebook]'" in done.stderr


def test_repl_without_its_extra_creates_no_sandbox(run: Run, service: LocalService) -> None:
    program = "import pty, sys; sys.exit(pty.spawn(['sandlot', 'repl']) >> 8)"
    path = run("python", "-c", "import os, sys; print(os.path.dirname(sys.executable))").stdout.strip()
    done = run("python", "-c", program, SANDLOT_URL=f"unix://{service.client.target.socket}", PATH=f"{path}:/usr/bin:/bin")
    assert done.returncode == 125
    assert "pip install 'sandlot[repl]'" in done.stdout
    assert list(service.client.sandboxes.list()) == []
