"""The command tree, its help, its errors, and its imports."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
import typer
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sandlot import __version__, sdk
from sandlot.cli.app import app
from sandlot.cli.main import EXTRAS, dispatch
from sandlot.sdk import InvalidRequestError, LocalService
from tests.meta.tree import ROOT

COMMANDS = {
    *("run", "create", "ls", "info", "update", "usage", "rm", "exec", "shell", "repl", "cp", "install", "ps", "logs", "process kill", "ports"),
    *("forward", "url", "pause", "resume", "hibernate", "fork", "fork-tree", "promote", "grade", "languages"),
    *("agent create", "agent ls", "agent chat", "agent rm"),
    *("network info", "network approve", "mcp install"),
    *("context ls", "context create", "context rm", "context restart", "context interrupt"),
    *("fs ls", "fs stat", "fs cat", "fs mkdir", "fs mv", "fs realpath", "fs rm", "fs url", "fs watch"),
    *("snapshot create", "snapshot ls", "snapshot info", "snapshot rm"),
    *("volume create", "volume ls", "volume info", "volume rm", "volume attach", "volume detach"),
    *("store upload", "store ls", "store download", "store rm", "execution ls", "execution info", "export", "events"),
    *("webhook create", "webhook ls", "webhook update", "webhook rm", "pool create", "pool ls", "pool update", "pool rm"),
    *("key create", "key ls", "key update", "key rm", "key whoami", "serve", "service stop", "service capacity"),
    *("template build", "template builds", "template logs", "template cancel", "template tag", "template rm", "template sbom"),
    *("image pull", "image import", "image update"),
    *("template ls", "template info", "image build", "image ls", "image rm", "image prune", "doctor", "bench", "demo", "version"),
}
SHORT_FLAGS = {
    "-a": {"--all"},
    "-c": {"--code"},
    "-e": {"--env"},
    "-f": {"--follow"},
    "-h": {"--help"},
    "-l": {"--language"},
    "-m": {"--metadata"},
    "-n": {"--limit"},
    "-o": {"--output"},
    "-q": {"--quiet"},
    "-r": {"--recursive", "--requirement"},  # of grep, and of pip
    "-s": {"--signal"},
    "-t": {"--template"},
    "-u": {"--user"},
    "-v": {"--volume"},
    "-w": {"--cwd"},
}
HEAVY = {
    "httpx",
    "mcp",
    "nbformat",
    "prompt_toolkit",
    "fastapi",
    "pydantic",
    "uvicorn",
    "sqlalchemy",
    "structlog",
    "prometheus_client",
    "websockets",
    "anyio",
    "sandlot.core",
    "sandlot.server",
    "sandlot.drivers",
    "sandlot.images",
    "sandlot.sdk",
}


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDLOT_URL", "unix:///nonexistent/sandlot.sock")


def test_help_names_every_command_and_imports_nothing_heavy() -> None:
    listing = (
        "import json, sys\nfrom sandlot.cli.main import dispatch\nstatus = dispatch(['--help'])\n"
        "print(json.dumps([status, sorted(sys.modules)]), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True)
    status, loaded = json.loads(done.stderr)
    assert status == 0
    assert set(loaded).isdisjoint(HEAVY)
    assert [command for command in COMMANDS if f" {command.split()[0]} " not in done.stdout] == []


def test_version_imports_no_typer(subtests: pytest.Subtests) -> None:
    script = (
        "import sys\nfrom sandlot.cli.main import dispatch\nstatus = dispatch(sys.argv[1:])\n"
        "assert not {'typer', 'rich', 'asyncio', 'sandlot.cli.app'} & set(sys.modules), sorted(sys.modules)\nsys.exit(status)"
    )
    for arguments in (["version"], ["--version"], ["version", "--json"]):
        with subtests.test(arguments=arguments):
            done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)
            assert (done.returncode, done.stderr) == (0, "")
            found = json.loads(done.stdout)["version"] if "--json" in arguments else done.stdout.partition("\n")[0]
            assert found == (__version__ if "--json" in arguments else f"sandlot {__version__}")


def test_commands_are_the_documented_ones() -> None:
    assert {name for name, _ in leaves(typer.main.get_command(app))} == COMMANDS


def test_each_short_flag_has_one_meaning() -> None:
    meanings: dict[str, set[str]] = {}
    for _, parameters in leaves(typer.main.get_command(app)):
        for parameter in parameters:
            long = {option for option in parameter.opts if option.startswith("--")}
            for option in parameter.opts:
                if option.startswith("-") and not option.startswith("--"):
                    assert len(long) == 1, f"{option} of {parameter.opts}"
                    meanings.setdefault(option, set()).update(long)
    assert {flag: names for flag, names in SHORT_FLAGS.items() if flag != "-h"} == meanings


def test_every_ls_prints_ids_only_on_request() -> None:
    missing = [name for name, each in leaves(typer.main.get_command(app)) if name.split()[-1] in {"ls", "ps"} and "-q" not in options(each)]
    assert missing == []


def test_help_texts_begin_with_a_sentence() -> None:
    command = typer.main.get_command(app)
    wrong = []
    for name in COMMANDS:
        found = command
        for word in name.split():
            found = found.commands[word]  # type: ignore[attr-defined]
        first = (found.help or "").partition("\n\n")[0]
        if not first[:1].isupper() or not first.endswith((".", ")", "`).")):
            wrong.append(name)
    assert wrong == []


OTHER_IMPORTS = {
    "service.py": {"sandlot.server"},
    "keys.py": {"sandlot.server", "sandlot.core.access.api_keys", "sandlot.model.access", "sandlot.model.records"},
    "images.py": {"sandlot.images", "sandlot.server.settings", "sandlot.model.images", "sandlot.model.templates"},
    "sbom.py": {"sandlot.images.packages", "sandlot.link"},
    "mcp.py": {"sandlot.mcp"},
    "options.py": {"sandlot.images.recipe_files"},
    "doctor/checks.py": {"sandlot.host", "sandlot.server", "sandlot.drivers", "sandlot.core", "sandlot.images", "sandlot.model"},
    "doctor/command.py": {"sandlot.host"},
    "programs.py": {"sandlot.model.languages"},
    "run.py": {"sandlot.model.languages", "sandlot.model.paths"},
    "version.py": {"sandlot.host.programs"},
}
"""Imports besides public names of ``sandlot.sdk``: of commands that work on this machine and not through a service."""


def test_only_public_names_of_the_sdk_are_imported() -> None:
    folder = ROOT / "src" / "sandlot" / "cli"
    offenders = []
    for path in sorted(folder.rglob("*.py")):
        name = str(path.relative_to(folder))
        allowed = OTHER_IMPORTS.get(name, set())
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [each.name for each in node.names]
                if isinstance(node, ast.Import)
                else []
            )
            for module in modules:
                if not module.startswith("sandlot.") or module.startswith("sandlot.cli"):
                    continue
                if module == "sandlot.sdk" and isinstance(node, ast.ImportFrom) and {each.name for each in node.names} <= set(sdk.__all__):
                    continue
                if not any(module == each or module.startswith(f"{each}.") for each in allowed):
                    offenders.append(f"{name}: {ast.unparse(node)}")
    assert offenders == []


def test_every_command_has_help(capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests) -> None:
    for command in sorted(COMMANDS):
        with subtests.test(command=command):
            assert dispatch([*command.split(), "--help"]) == 0
            assert "Usage" in capsys.readouterr().out


def test_error_is_one_line_and_a_status(capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests) -> None:
    for arguments, status in (
        (["nonsense"], 2),
        (["ls", "--nonsense"], 2),
        (["rm"], 2),
        (["rm", "--all", "x"], 2),
        (["cp", "a", "b"], 2),
        (["create", "--env", "novalue"], 2),
        (["create", "--memory", "much"], 2),
        (["create", "--persistent", "--timeout", "5"], 2),
        (["ls", "--limit", "0"], 2),
        (["ls", "--metadata", "novalue"], 2),
        (["update", "sb-x", "--timeout", "soon"], 2),
        (["update", "sb-x"], 2),
        (["forward", "sb-x", "80:x"], 2),
        (["key", "create", "a", "--expires", "soon"], 2),
        (["volume", "attach", "sb-x", "data"], 2),
        (["ls"], 1),
        (["service", "stop"], 2),
        (["run"], 125),
        (["run", "--nonsense"], 125),
        (["run", "--timeout", "soon", "-c", "1"], 125),
        (["run", "-c", "1"], 125),
        (["exec"], 125),
        (["exec", "sb-x", "--"], 125),
        (["exec", "sb-x", "true"], 125),
    ):
        with subtests.test(arguments=arguments, status=status):
            assert dispatch(arguments) == status
            out, err = capsys.readouterr()
            assert out == ""
            assert err.startswith("sandlot: ")
            assert "Traceback" not in err
            assert len(err.splitlines()) <= 2


def test_a_defect_is_a_line_unless_the_traceback_is_asked_for(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sandlot.cli.sandboxes._list_sandboxes", lambda **_: 1 / 0)
    assert dispatch(["ls"]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err
    monkeypatch.setenv("SANDLOT_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        dispatch(["ls"])


@pytest.mark.parametrize(
    "module, printed",
    [
        ("sqlalchemy.ext.asyncio", "pip install 'sandlot[server]'"),
        ("prompt_toolkit", "pip install 'sandlot[repl]'"),
        ("nbformat", "pip install 'sandlot[notebook]'"),
        ("mcp.server", "pip install 'sandlot[mcp]'"),
        ("termios", "needs Linux or macOS"),
        ("sandlot.nothing", "defect in Sandlot"),
        ("unknown", "defect in Sandlot"),
    ],
)
def test_missing_package_is_named_with_the_extra_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], module: str, printed: str
) -> None:
    def missing(**_: object) -> None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr("sandlot.cli.sandboxes._list_sandboxes", missing)
    assert dispatch(["ls"]) == 1
    assert printed in capsys.readouterr().err


def test_packages_of_every_extra_of_a_command_are_known() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    imported = {module: {canonicalize_name(name) for name in names} for module, names in packages_distributions().items()}
    known = set().union(*(imported[module] for module in EXTRAS))
    for extra in ("server", "repl", "notebook", "mcp"):
        assert {canonicalize_name(Requirement(line).name) for line in extras[extra]} - known <= {"anyio"}  # which the client has


def test_no_service_is_started_only_to_be_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, subtests: pytest.Subtests
) -> None:
    def started(local: LocalService) -> None:
        raise AssertionError(f"a service was started in {local.data_dir}")

    monkeypatch.delenv("SANDLOT_URL")
    monkeypatch.setenv("SANDLOT_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr("sandlot.sdk.local_service.LocalService.ensure", started)
    for command in ("info sb-x", "update sb-x --timeout 5", "usage sb-x", "rm sb-x", "service capacity"):
        with subtests.test(command=command):
            assert dispatch(command.split()) == 1
            assert "sandlot create" in capsys.readouterr().err
            assert not (tmp_path / "data").exists()


WITHOUT_JSON = {
    *("run", "exec", "install", "repl", "shell", "fs cat"),  # output of a program, or a file
    *("rm", "process kill", "context rm", "context restart", "context interrupt", "fs mkdir", "fs mv", "fs realpath", "fs rm", "fs url", "store rm"),
    *("pool rm", "volume rm", "volume attach", "volume detach", "webhook rm", "key rm", "snapshot rm"),
    *("pause", "resume", "hibernate", "promote", "image build", "image rm", "image prune"),  # one word per line, or nothing
    *("agent chat", "agent rm", "template logs", "template cancel", "template tag", "template rm", "template sbom"),
    *("demo", "serve", "forward", "url", "export", "mcp install"),
}


def leaves(command: object, *path: str) -> Iterator[tuple[str, list[Any]]]:
    below: dict[str, object] = getattr(command, "commands", {})
    if not below:
        yield " ".join(path), list(getattr(command, "params", ()))
    for name, each in below.items():
        yield from leaves(each, *path, name)


def options(parameters: Iterable[Any]) -> set[str]:
    return {option for each in parameters for option in each.opts}


def test_commands_that_print_data_have_json() -> None:
    known = {name: options(each) for name, each in leaves(typer.main.get_command(app))}
    assert known.keys() >= WITHOUT_JSON
    assert {name for name, given in known.items() if "--json" not in given} == WITHOUT_JSON


def test_errors_of_values_name_the_option(capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests) -> None:
    for arguments, option in (
        ("create --env novalue", "--env"),
        ("create --memory much", "--memory"),
        ("create --volume data", "--volume"),
        ("create -v a:/x -v b:/x", "--volume"),
        ("key create a --expires soon", "--expires"),
        ("key create a --max-memory much", "--max-memory"),
        ("bench --only nonsense", "--only"),
        ("create --persistent --timeout 5", "--persistent"),
        ("forward sb-x 80:x", "[LOCAL:]PORT"),
    ):
        with subtests.test(arguments=arguments):
            assert dispatch(arguments.split()) == 2
            assert option in capsys.readouterr().err.partition("\n")[0]


def test_the_shell_completes_commands_and_templates(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("_SANDLOT_COMPLETE", "complete_bash")
    for words, completed in (
        ("sandlot cr", ["create"]),
        ("sandlot create --template code-interpreter-", ["code-interpreter-slim"]),
        ("sandlot info sb-", []),
    ):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
        with pytest.raises(SystemExit) as ended:
            dispatch([])
        assert (ended.value.code, capsys.readouterr().out.split()) == (0, completed)


def test_an_error_from_inside_does_not_reach_the_terminal_as_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(**_: object) -> None:
        raise InvalidRequestError("\x1b[2J\nsandlot: fine", hint="\x9b2J")

    monkeypatch.setattr("sandlot.cli.sandboxes._list_sandboxes", fails)
    assert dispatch(["ls"]) == 1
    assert capsys.readouterr().err.splitlines() == ["sandlot: \\x1b[2J", "    sandlot: fine", "  \\x9b2J"]
