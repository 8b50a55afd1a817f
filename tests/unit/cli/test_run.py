"""What `sandlot run` makes of its command line."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from sandlot.cli.main import dispatch
from sandlot.cli.run import Job, plan, shell_hint
from tests.unit.sdk.scripted import Reply, Script, problem


def planned(file: str | None, code: str | None = None, args: tuple[str, ...] = (), files: tuple[str, ...] = (), *, unbuffered: bool = False) -> Job:
    return plan(file, code, args, files, unbuffered=unbuffered)


def test_a_file_is_copied_in_and_run_with_its_arguments(tmp_path: Path) -> None:
    script = tmp_path / "it is.py"
    script.touch()
    job = planned(str(script), args=("-v", "x"))
    assert job == Job(("python3", "/workspace/it is.py", "-v", "x"), ((script, "/workspace/it is.py"),))


def test_the_ending_tells_the_interpreter(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for ending, program in ((".py", "python3"), (".sh", "bash"), (".JS", "node"), (".mjs", "node"), ("", "python3"), (".txt", "python3")):
        with subtests.test(ending=ending, program=program):
            script = tmp_path / f"run{ending}"
            script.touch()
            assert planned(str(script)).argv[0] == program


def test_code_takes_every_word_as_an_argument() -> None:
    assert planned("a", "print(1)", ("b",)) == Job(("python3", "-c", "print(1)", "a", "b"), ())
    assert planned(None, "") == Job(("python3", "-c", ""), ())


def test_a_dash_is_code_on_standard_input() -> None:
    assert planned("-", args=("x",)) == Job(("python3", "-", "x"), ())


def test_output_comes_at_once_for_a_person_and_only_python_has_a_word_for_it(tmp_path: Path) -> None:
    assert planned(None, "1", unbuffered=True).argv == ("python3", "-u", "-c", "1")
    (tmp_path / "a.sh").touch()
    assert planned(str(tmp_path / "a.sh"), unbuffered=True).argv == ("bash", "/workspace/a.sh")


def test_where_a_file_goes(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for guest, target in (
        (":in.csv", "/workspace/in.csv"),
        (":/data/in.csv", "/data/in.csv"),
        (":", "/workspace/d.csv"),
        (":/data/", "/data/d.csv"),
        ("", "/workspace/d.csv"),
    ):
        with subtests.test(guest=guest, target=target):
            data = tmp_path / "d.csv"
            data.touch()
            assert planned(None, "1", files=(f"{data}{guest}",)).uploads == ((data, target),)


def test_a_colon_in_a_name_here_needs_the_other_side(tmp_path: Path) -> None:
    data = tmp_path / "a:b"
    data.touch()
    assert planned(None, "1", files=(f"{data}:c",)).uploads == ((data, "/workspace/c"),)


def test_nothing_to_run_is_said(subtests: pytest.Subtests) -> None:
    for file in ("/no/such/file", None):
        with subtests.test(file=file), pytest.raises(typer.BadParameter):
            planned(file)


def test_a_file_to_copy_has_to_be_there() -> None:
    with pytest.raises(typer.BadParameter, match="/no/such"):
        planned(None, "1", files=("/no/such:x",))


def test_shell_syntax_in_one_argument_gets_a_hint(subtests: pytest.Subtests) -> None:
    for argv, hint in (
        (["echo $HOME | wc -c"], "`sandlot exec box -- bash -c 'echo $HOME | wc -c'`."),
        (["a;b"], "`sandlot exec box -- bash -c 'a;b'`."),
        (["nothing"], None),
        (["echo", "a | b"], None),
    ):
        with subtests.test(argv=argv):
            found = shell_hint("box", argv)
            assert found is None if hint is None else found is not None and found.endswith(hint)


def test_exec_suggests_a_shell_for_a_shell_command_line(there: Script, capfd: pytest.CaptureFixture[str]) -> None:
    there.say(Reply(200, {"id": "sb-1", "state": "running", "template": "base"}), problem(404, "program_not_found"))
    assert dispatch(["exec", "--no-stdin", "sb-1", "echo $HOME | wc -c"]) == 127
    assert "sandlot exec sb-1 -- bash -c 'echo $HOME | wc -c'" in capfd.readouterr().err
