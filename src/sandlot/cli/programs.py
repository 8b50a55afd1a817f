"""``sandlot grade``: run a program once and compare its output with an expected output. ``sandlot languages``: list the languages of programs."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.options import JsonOutput, complete_templates, parse_size_bytes
from sandlot.model.languages import language_of_file

if TYPE_CHECKING:
    from sandlot.sdk import Case, ProgramOptions, ProgramResult

EXIT_WRONG_ANSWER = 1
EXPECTED_SUFFIXES = (".out", ".ans")
"""Extensions of the file with the expected output of a case, beside its ``.in``."""


def grade(  # noqa: PLR0913 - each is an option
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Program on this machine.", exists=True, dir_okay=False, readable=True)],
    language: Annotated[
        str | None, typer.Option("--language", "-l", metavar="NAME", help="Language, such as python or cpp. (default: by the file's extension)")
    ] = None,
    stdin: Annotated[
        Path | None,
        typer.Option("--stdin", metavar="FILE", help="File with the program's standard input; '-' reads this command's.", allow_dash=True),
    ] = None,
    expect: Annotated[
        Path | None, typer.Option("--expect", metavar="FILE", help="File with the expected standard output.", exists=True, dir_okay=False)
    ] = None,
    cases: Annotated[
        Path | None,
        typer.Option(
            "--cases",
            metavar="DIRECTORY",
            help="Directory with cases, instead of --stdin and --expect: the input NAME.in and the expected output NAME.out or NAME.ans of each.",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    check_types: Annotated[bool, typer.Option("--check-types", help="Check the types of a TypeScript program.")] = False,
    comparison: Annotated[
        str | None, typer.Option("--comparison", metavar="NAME", help="Comparison of the outputs: trimmed, exact or numeric. (default: trimmed)")
    ] = None,
    tolerance: Annotated[float | None, typer.Option("--tolerance", metavar="NUMBER", help="Tolerance of numeric. (default: 1e-6)")] = None,
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="Seconds until the program, or a case of it, is killed.")] = 60.0,
    memory: Annotated[
        int | None, typer.Option("--memory", metavar="SIZE", help="Memory limit, such as 512M or 2G. (default: 1G)", parser=parse_size_bytes)
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(
            "--template",
            "-t",
            metavar="NAME",
            help="Template of the sandbox. (default: the template of the language, see `sandlot languages`)",
            autocompletion=complete_templates,
        ),
    ] = None,
    json_output: JsonOutput = False,
) -> None:
    """Run a program once and compare its output with an expected output.

    The program runs in a new sandbox without network, which is removed afterwards. Prints the program's output; if the run failed, the reason is
    the last line of standard error. With --cases, the program is compiled once and run with each input; prints the verdict of each case.

    Exits with the program's status: 128 + the signal that ended it, 124 after a timeout, 137 if it was killed at another limit. Exits with the
    compiler's status after a compile error, and with 1 for a wrong output. With --cases, the first case that fails decides. --json prints the
    verdict, which tells these endings apart.
    """
    from sandlot.cli.output import as_json
    from sandlot.sdk import Client

    known = language_of_file(file.name)
    chosen = language or (None if known is None else known.name)
    if chosen is None:
        raise typer.BadParameter(f"{file.name} has no known extension. Pass the language of the program.", param_hint="--language")
    if cases is not None and (stdin is not None or expect is not None):
        raise typer.BadParameter("Pass either --cases, or --stdin and --expect.", param_hint="--cases")
    named = {} if cases is None else _read_cases(cases)
    given = {
        "stdin": None if stdin is None else _read(stdin, "--stdin"),
        "expected_output": None if expect is None else _read(expect, "--expect"),
        "cases": list(named.values()) or None,
        "comparison": comparison,
        "tolerance": tolerance,
        "check_types": check_types or None,
        "memory": memory,
        "template": template,
    }
    options: ProgramOptions = {"timeout": timeout, **{name: value for name, value in given.items() if value is not None}}  # type: ignore[typeddict-item]
    with Client() as client:
        result = client.programs.run(chosen, _read(file, "FILE"), **options)
    if json_output:
        typer.echo(as_json(result))
    elif result.cases:
        _print_cases(named, result)
    else:
        _print(result)
    raise typer.Exit(exit_status(result))


def languages(*, json_output: JsonOutput = False) -> None:
    """List the languages of programs, and the version of each in the template that runs it.

    A template that is not built has no version yet. Programs of all languages run in the template `languages`.
    """
    from sandlot.cli.output import as_json, table
    from sandlot.sdk import Client

    with Client() as client:
        found = client.programs.languages()
    if json_output:
        typer.echo(as_json(found))
        return
    rows = [[each.name, each.version or "-", each.template or "-", " ".join(each.extensions), ", ".join(each.aliases)] for each in found]
    table(["LANGUAGE", "VERSION", "TEMPLATE", "FILES", "ALIASES"], rows)


def exit_status(result: ProgramResult) -> int:
    """Return the exit status of the command: 1 for a wrong output, otherwise that of the program or of its compiler."""
    return EXIT_WRONG_ANSWER if result.status == "wrong_answer" else result.exit_code


def _print(result: ProgramResult) -> None:
    from sandlot.cli.output import note

    for stream, text in ((sys.stdout, result.stdout), (sys.stderr, result.stderr)):
        stream.buffer.write(text.encode())
        stream.flush()
    if not result.ok:
        note(f"sandlot: {result.status.replace('_', ' ')}{f': {result.detail}' if result.detail else ''}")


def _print_cases(names: Iterable[str], result: ProgramResult) -> None:
    from sandlot.cli.output import size, table

    rows = [
        [
            name,
            each.status,
            f"{each.duration_s:.2f}s",
            "-" if each.cpu_s is None else f"{each.cpu_s:.2f}s",
            "-" if each.peak_bytes is None else size(each.peak_bytes),
            each.detail or "-",
        ]
        for name, each in zip(names, result.cases, strict=True)
    ]
    table(["CASE", "STATUS", "TIME", "CPU", "MEMORY", "DETAIL"], rows)


def _read_cases(folder: Path) -> dict[str, Case]:
    """Return the cases of a directory by their names, numbers in the order of their values."""
    inputs = sorted(folder.glob("*.in"), key=lambda path: re.sub(r"\d+", lambda number: number[0].zfill(20), path.stem))
    if not inputs:
        raise typer.BadParameter(f"{folder} has no file NAME.in.", param_hint="--cases")
    found: dict[str, Case] = {}
    for each in inputs:
        expected = next((path for path in map(each.with_suffix, EXPECTED_SUFFIXES) if path.exists()), None)
        if expected is None:
            raise typer.BadParameter(f"{each} has no expected output {each.stem}{EXPECTED_SUFFIXES[0]} beside it.", param_hint="--cases")
        found[each.stem] = {"stdin": _read(each, "--cases"), "expected_output": _read(expected, "--cases")}
    return found


def _read(path: Path, option: str) -> str:
    data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise typer.BadParameter(f"{path} is not UTF-8 text.", param_hint=option) from None
