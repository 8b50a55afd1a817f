"""Command lines that are run without a shell, compared with bash itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.guest.process import plain_commands
from sandlot.guest.process.accounts import Account, build_environment
from tests.unit.guest.process.test_spawn import ME, NOBODY, run

ENV = build_environment(ME)
WORDS = [
    *(
        "env",
        "/usr/bin/env",
        "printenv",
        "true",
        "test",
        "time",
        "cd",
        "[",
        "!",
        "missing",
        "/tmp",
        ".",
        "./own-script",
        "own-script",
        "data",
        "%1",
        "A=1",
        "-x",
        ":",
    ),
    *(
        "PATH",
        "a:b",
        "--version",
        "a=b",
        "~",
        "*",
        "a,b",
        "@",
        "+",
        "\t",
        "\n",
        "",
        " ",
        "$HOME",
        "é",
        "'x y'",
        "#",
        "a;b",
        "a&b",
        "{a,b}",
        "^a",
        "a>b",
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("cwd")
    for level in (made, *made.parents[:-2]):
        level.chmod(0o755)
    (made / "own-script").write_text("echo script $0 $#; env")
    (made / "own-script").chmod(0o755)
    (made / "data").write_text("no program")
    (made / "link").symlink_to(made)
    return made


def by_bash(command: str, env: dict[str, str], cwd: str, who: Account = ME) -> tuple[bytes, int]:
    """Run a command line as bash runs it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain_commands, "parse", lambda *_: None)
        return run(["/bin/bash", "-c", command], env, cwd, who)


def directly(command: str, env: dict[str, str], cwd: str, who: Account = ME) -> tuple[bytes, int]:
    return run(["/bin/bash", "-c", command], env, cwd, who)


def lines(result: tuple[bytes, int]) -> tuple[list[bytes], int]:
    """Return sorted lines of the output: the order of variables is not defined."""
    return sorted(result[0].splitlines()), result[1]


@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join))
def test_every_command_line_does_what_it_does_in_bash(folder: Path, command: str) -> None:
    env = {**ENV, "PATH": f"{ENV['PATH']}:{folder}"}
    assert lines(directly(command, env, str(folder))) == lines(by_bash(command, env, str(folder)))


@pytest.mark.parametrize(
    "command", ["env", "  env  ", "/usr/bin/env", "env -u HOME A=1 printenv", "ls -la /usr", "stat --printf=%n%F /tmp", "sh -c env"]
)
def test_plain_commands_are_run_without_bash(folder: Path, command: str) -> None:
    expected = lines(by_bash(command, ENV, str(folder / "link")))
    plain = plain_commands.parse(command, ENV, str(folder / "link"))
    assert plain is not None
    assert lines(run(plain.argv, plain.env, str(folder / "link"))) == expected


@pytest.mark.parametrize(
    "env",
    [
        {"BASH_ENV": "/dev/null"},
        {"BASH_FUNC_env%%": "() { echo mine; }"},
        {"SHELLOPTS": "xtrace"},
        {"SHLVL": "7"},
        {"PWD": "/tmp"},
        {"PATH": ".:/usr/bin"},
        {"PATH": ""},
        {"PATH": "/usr/bin:"},
    ],
    ids=str,
)
def test_settings_of_bash_have_their_effect(folder: Path, env: dict[str, str]) -> None:
    changed = {**ENV, **env}
    assert plain_commands.parse("own-script" if "PATH" in env else "env", changed, str(folder)) is None
    assert lines(directly("env", changed, str(folder))) == lines(by_bash("env", changed, str(folder)))


def test_program_that_the_account_may_not_run_is_left_to_bash(folder: Path) -> None:
    private = folder / "private"
    private.mkdir(mode=0o700)
    program = private / "env"
    program.write_text("#!/bin/sh\necho private")
    program.chmod(0o755)
    env = {**ENV, "PATH": f"{private}:{ENV['PATH']}"}
    assert directly("env", env, "/", ME)[0] == b"private\n"
    assert lines(directly("env", env, "/", NOBODY)) == lines(by_bash("env", env, "/", NOBODY))


def test_exit_codes_are_those_of_bash(folder: Path) -> None:
    for command, code in (("missing", 127), ("./data", 126), ("/tmp", 126), ("ls /missing", 2), ("./own-script", 0)):
        assert os.waitstatus_to_exitcode(directly(command, ENV, str(folder))[1]) == code


@pytest.mark.parametrize("command", ["echo a", "printf a", "pwd", "kill 0", "time ls", "A=1", "A=1 env", "%1", "ls *", "ls ~", "a; b", "$A", "", " "])
def test_bash_runs_what_only_bash_knows(folder: Path, command: str) -> None:
    assert plain_commands.parse(command, ENV, str(folder)) is None
