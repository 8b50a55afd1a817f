"""``sandlot grade``: run a program once and compare its output with an expected output."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.options import JsonOutput, TemplateName, parse_size_bytes
from sandlot.model.languages import language_of_file

if TYPE_CHECKING:
    from sandlot.sdk import ProgramOptions, ProgramResult

EXIT_WRONG_ANSWER = 1


def grade(  # noqa: PLR0913 - each is an option
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Program on this machine.", exists=True, dir_okay=False, readable=True)],
    language: Annotated[
        str | None, typer.Option("--language", "-l", metavar="NAME", help="Language, such as python or cpp. (default: by the file's extension)")
    ] = None,
    stdin: Annotated[
        Path | None,
        typer.Option("--stdin", metavar="FILE", help="File with its standard input; '-' for that of this command.", allow_dash=True),
    ] = None,
    expect: Annotated[
        Path | None, typer.Option("--expect", metavar="FILE", help="File with the expected standard output.", exists=True, dir_okay=False)
    ] = None,
    check_types: Annotated[bool, typer.Option("--check-types", help="Check the types of a TypeScript program.")] = False,
    comparison: Annotated[
        str | None, typer.Option("--comparison", metavar="NAME", help="Comparison of the outputs: trimmed, exact or numeric. (default: trimmed)")
    ] = None,
    tolerance: Annotated[float | None, typer.Option("--tolerance", metavar="NUMBER", help="Tolerance of numeric. (default: 1e-6)")] = None,
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="Seconds until the program is killed.")] = 60.0,
    memory: Annotated[
        int | None, typer.Option("--memory", metavar="SIZE", help="Memory limit, such as 512M or 2G. (default: 1G)", parser=parse_size_bytes)
    ] = None,
    template: TemplateName = None,
    json_output: JsonOutput = False,
) -> None:
    """Run a program once and compare its output with an expected output.

    The program runs in a new sandbox without network, which is removed afterwards. Prints the program's output; if the run failed, the reason is
    the last line of standard error. Exits with the program's status, 124 after a timeout, or 1 for a wrong output.
    """
    from sandlot.cli.output import as_json
    from sandlot.sdk import Client

    known = language_of_file(file.name)
    chosen = language or (None if known is None else known.name)
    if chosen is None:
        raise typer.BadParameter(f"{file.name} has no known extension. Pass the language of the program.", param_hint="--language")
    given = {
        "stdin": None if stdin is None else _read(stdin, "--stdin"),
        "expected_output": None if expect is None else _read(expect, "--expect"),
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
    else:
        _print(result)
    raise typer.Exit(exit_status(result))


def exit_status(result: ProgramResult) -> int:
    """Return the exit status of the command."""
    return EXIT_WRONG_ANSWER if result.status == "wrong_answer" else result.exit_code


def _print(result: ProgramResult) -> None:
    from sandlot.cli.output import note

    for stream, text in ((sys.stdout, result.stdout), (sys.stderr, result.stderr)):
        stream.buffer.write(text.encode())
        stream.flush()
    if not result.ok:
        note(f"sandlot: {result.status.replace('_', ' ')}{f': {result.detail}' if result.detail else ''}")


def _read(path: Path, option: str) -> str:
    data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise typer.BadParameter(f"{path} is not UTF-8 text.", param_hint=option) from None
