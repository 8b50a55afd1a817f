"""The package that is built from the repository is whole, and does its work where nothing else of the repository is.

The other tests run from the folder; users have the wheel, what it requires, and nothing else.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.meta.tree import PACKAGE
from tests.support.environments import INSTALL, build_wheel, create_environment

pytestmark = pytest.mark.soak

Run = Callable[..., str]

PROGRAM = """
import sys
from sandlot import AuthenticationError, Client, NotFoundError, Sandbox
from sandlot.sdk.compat.sandboxapi import SandboxAPI

with Sandbox.create("base", metadata={"from": "wheel"}) as sandbox:
    sandbox.files.write("/workspace/data.csv", "1,2")
    assert sandbox.run_code("x = open('data.csv').read()").error is None
    assert sandbox.run_code("x").text == "'1,2'"
    assert sandbox.commands.run("cat data.csv; exit 3").exit_code == 3
    assert [entry.name for entry in sandbox.files.list("/workspace")] == ["data.csv"]
    assert [info.id for info in Sandbox.list(metadata={"from": "wheel"})] == [sandbox.id]
    with sandbox.pty.create(["/bin/echo", "on a terminal"]) as terminal:
        assert b"on a terminal" in b"".join(terminal)
with Client() as client:
    assert client.programs.run("bash", "tr a-z A-Z", stdin="once", template="base", expected_output="ONCE").ok
try:
    SandboxAPI(api_key="")
except AuthenticationError:
    pass
try:
    Sandbox.connect("sb-aaaa-aaaaaaaaaaaaaaaa")
except NotFoundError:
    print(sys.modules["sandlot"].__file__)
"""
PAGES = """
import httpx, json, sys
with httpx.Client(transport=httpx.HTTPTransport(uds=sys.argv[1]), base_url="http://sandlot") as http:
    assert http.get("/openapi.json").json()["openapi"].startswith("3.1")
    assert len(http.get("/docs/swagger-ui-bundle.js").content) > 1_000_000
    print(http.get("/healthz").json()["status"])
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def run(wheel: Path) -> Iterator[Run]:
    """Runs a program of an environment that has the wheel and the packages of a lock; ends the service that it starts."""
    # Not pytest's folder, whose path may be too long for a unix socket (unix(7): 107 bytes).
    folder = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    python = folder / "venv" / "bin" / "python"
    data = folder / "data"
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SANDLOT_", "PYTHON", "VIRTUAL_ENV"))}
    env |= {"SANDLOT_DATA_DIR": str(data), "PATH": f"{python.parent}:{os.environ['PATH']}"}

    def run(*command: str | Path) -> str:
        done = subprocess.run(command, cwd="/", env=env, check=False, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    try:
        create_environment("requirements.lock", folder / "venv")
        run(*INSTALL, python, wheel)
        try:
            yield run
        finally:
            run("sandlot", "rm", "--all")
            run("sandlot", "service", "stop")
        assert list((data / "sandboxes").iterdir()) == []
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_the_wheel_holds_every_file_of_the_package_and_the_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        shipped = {member for member in archive.namelist() if ".dist-info/" not in member}
        (entry_points,) = (member for member in archive.namelist() if member.endswith(".dist-info/entry_points.txt"))
        assert "sandlot = sandlot.cli.main:main" in archive.read(entry_points).decode()
    written = {str(path.relative_to(PACKAGE.parent)) for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert shipped == written


@pytest.mark.parametrize(
    "part", ["py.typed", "images/recipes/*.toml", "images/recipes/*.lock", "protocol/schemas/*.json", "store/migrations/versions/*.py", "guest/*.py"]
)
def test_what_is_no_module_of_ours_is_in_it_too(wheel: Path, part: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert [member for member in archive.namelist() if Path(member).match(f"sandlot/{part}")]


def test_sdk_of_the_wheel_starts_and_uses_the_service_of_the_wheel(run: Run) -> None:
    assert "/venv/lib/" in run("python", "-c", PROGRAM)


def test_command_line_of_the_wheel_works_across_a_restart(run: Run, tmp_path: Path) -> None:
    (tmp_path / "here").write_text("hello")
    sandbox = run("sandlot", "create", "--template", "base", "--name", "wheel").strip()
    run("sandlot", "cp", tmp_path / "here", f"{sandbox}:there")
    assert run("sandlot", "exec", sandbox, "--", "cat", "there") == "hello"
    (listed,) = json.loads(run("sandlot", "ls", "--json"))
    assert (listed["id"], listed["name"]) == (sandbox, "wheel")
    # The service ends, and the sandbox is there when the next one starts.
    run("sandlot", "service", "stop")
    assert run("sandlot", "exec", sandbox, "--", "cat", "there") == "hello"
    assert run("sandlot", "rm", sandbox) == f"{sandbox}\n"
    assert run("sandlot", "ls", "--quiet") == ""


def test_the_service_of_the_wheel_has_its_document_and_its_page(run: Run) -> None:
    run("sandlot", "template", "ls", "--json")
    assert (
        run("python", "-c", PAGES, Path(run("python", "-c", "import os; print(os.environ['SANDLOT_DATA_DIR'])").strip()) / "sandlot.sock") == "ok\n"
    )
