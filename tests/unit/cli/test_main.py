"""The program as a whole: its help, its errors, and what it does not load."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from sandlot.cli.main import app, dispatch
from sandlot.model.errors import InvalidRequestError
from sandlot.sdk.local_service import LocalService

COMMANDS = tuple(command.name or "" for command in app.registered_commands) + tuple(group.name or "" for group in app.registered_groups)
HEAVY = {
    "httpx",
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


def test_the_help_names_every_command_and_loads_nothing_heavy() -> None:
    listing = (
        "import json, sys\nfrom sandlot.cli.main import dispatch\nstatus = dispatch(['--help'])\n"
        "print(json.dumps([status, sorted(sys.modules)]), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True)
    status, loaded = json.loads(done.stderr)
    assert status == 0
    assert set(loaded).isdisjoint(HEAVY)
    assert [command for command in COMMANDS if f" {command} " not in done.stdout] == []


def test_every_command_has_help(capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests) -> None:
    for command in COMMANDS:
        with subtests.test(command=command):
            assert dispatch([command, "--help"]) == 0
            assert "Usage" in capsys.readouterr().out


def test_an_error_is_a_line_and_a_status(capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests) -> None:
    for arguments, status in (
        (["nonsense"], 2),
        (["ls", "--nonsense"], 2),
        (["rm"], 2),
        (["rm", "--all", "x"], 2),
        (["cp", "a", "b"], 2),
        (["create", "--env", "novalue"], 2),
        (["create", "--memory", "much"], 1),
        (["create", "--persistent", "--timeout", "5"], 2),
        (["ls", "--limit", "0"], 2),
        (["ls", "--metadata", "novalue"], 2),
        (["set-timeout", "sb-x", "soon"], 2),
        (["set-timeout", "sb-x"], 2),
        (["ls"], 1),
        (["stop"], 2),
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
    monkeypatch.setattr("sandlot.cli.sandboxes._listed", lambda **_: 1 / 0)
    assert dispatch(["ls"]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err
    monkeypatch.setenv("SANDLOT_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        dispatch(["ls"])


def test_no_service_is_started_only_to_be_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, subtests: pytest.Subtests
) -> None:
    def started(local: LocalService) -> None:
        raise AssertionError(f"a service was started in {local.data_dir}")

    monkeypatch.delenv("SANDLOT_URL")
    monkeypatch.setenv("SANDLOT_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr("sandlot.sdk.local_service.LocalService.ensure", started)
    for command in ("info sb-x", "set-timeout sb-x 5", "usage sb-x", "limit sb-x --pids 20", "rm sb-x", "capacity"):
        with subtests.test(command=command):
            assert dispatch(command.split()) == 1
            assert "sandlot create" in capsys.readouterr().err
            assert not (tmp_path / "data").exists()


PLAIN = {
    *("run", "exec", "install", "repl", "shell", "fs cat"),  # a program's own output, or a file
    *(
        "rm",
        "kill",
        "contexts rm",
        "contexts restart",
        "contexts interrupt",
        "fs mkdir",
        "fs mv",
        "fs rm",
        "fs url",
        "files rm",
        "pool rm",
        *("volume rm", "volume attach", "volume detach"),
        "webhooks rm",
        *("pause", "resume", "hibernate", "wake", "snapshot rm", "promote"),
    ),  # one word a line, or nothing
    *("demo", "serve", "forward"),
}
"""What is for programs as it is."""


def leaves(command: object, *path: str) -> Iterator[tuple[str, set[str]]]:
    below: dict[str, object] = getattr(command, "commands", {})
    if not below:
        yield " ".join(path), {option for each in getattr(command, "params", ()) for option in each.opts}
    for name, each in below.items():
        yield from leaves(each, *path, name)


def test_what_prints_data_prints_it_as_json_as_well() -> None:
    known = dict(leaves(typer.main.get_command(app)))
    assert known.keys() >= PLAIN
    assert {name for name, options in known.items() if "--json" not in options} == PLAIN


def test_the_shell_completes_commands_and_templates(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("_SANDLOT_COMPLETE", "complete_bash")
    for words, completed in (("sandlot cr", ["create"]), ("sandlot create --template co", ["code-interpreter"]), ("sandlot info sb-", [])):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
        with pytest.raises(SystemExit) as ended:
            dispatch([])
        assert (ended.value.code, capsys.readouterr().out.split()) == (0, completed)


def test_an_error_from_inside_does_not_reach_the_terminal_as_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(**_: object) -> None:
        raise InvalidRequestError("\x1b[2J\nsandlot: fine", hint="\x9b2J")

    monkeypatch.setattr("sandlot.cli.sandboxes._listed", fails)
    assert dispatch(["ls"]) == 1
    assert capsys.readouterr().err.splitlines() == ["sandlot: \\x1b[2J", "    sandlot: fine", "  \\x9b2J"]
