"""``sandlot execute``: a program that is run once, in a sandbox of its own, and graded."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.options import InJson, TemplateName

if TYPE_CHECKING:
    from sandlot.sdk.models.programs import ProgramOptions, ProgramResult

LANGUAGES = {".py": "python", ".sh": "bash", ".bash": "bash", ".js": "javascript", ".cjs": "javascript"}
WRONG = 1


def execute(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The program, on this machine.", exists=True, dir_okay=False, readable=True)],
    language: Annotated[
        str | None, typer.Option("--language", "-l", metavar="NAME", help="python, bash or javascript. (default: by its ending)")
    ] = None,
    stdin: Annotated[
        Path | None, typer.Option("--stdin", metavar="FILE", help="Its standard input; '-' is this command's own.", allow_dash=True)
    ] = None,
    expect: Annotated[Path | None, typer.Option("--expect", metavar="FILE", help="What it is to write.", exists=True, dir_okay=False)] = None,
    comparison: Annotated[str | None, typer.Option("--comparison", metavar="HOW", help="'trimmed', 'exact' or 'numeric'. (default: trimmed)")] = None,
    tolerance: Annotated[float | None, typer.Option("--tolerance", metavar="NUMBER", help="Of 'numeric'. (default: 1e-6)")] = None,
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="Kill it after that long.")] = 60.0,
    memory: Annotated[str | None, typer.Option("--memory", metavar="SIZE", help="Of its sandbox, such as 512M. (default: 1G)")] = None,
    template: TemplateName = None,
    json_: InJson = False,
) -> None:
    """Run a program once, in a sandbox of its own without network that is removed with it, and compare what it writes.

    What it writes is written here, and what became of it is the last line on standard error, unless it went well. The exit status is the program's;
    124 where its time was over, and 1 where it wrote something else than was expected.
    """
    from sandlot.cli.output import as_json
    from sandlot.sdk import Client

    chosen = language or LANGUAGES.get(file.suffix.lower())
    if chosen is None:
        raise typer.BadParameter(f"{file.name} does not say by its ending which language it is in; say it by --language.")
    given = {
        "stdin": None if stdin is None else _text(stdin),
        "expected_output": None if expect is None else _text(expect),
        "comparison": comparison,
        "tolerance": tolerance,
        "memory": memory,
        "template": template,
    }
    options: ProgramOptions = {"timeout": timeout, **{name: value for name, value in given.items() if value is not None}}  # type: ignore[typeddict-item]
    with Client() as client:
        done = client.programs.run(chosen, _text(file), **options)
    if json_:
        typer.echo(as_json(done))
    else:
        _show(done)
    raise typer.Exit(status(done))


def status(done: ProgramResult) -> int:
    """What the command exits with. Pure."""
    from sandlot.sdk.models.code import TIMED_OUT

    if done.status == "timeout":
        return TIMED_OUT
    return WRONG if done.status == "wrong_answer" else done.exit_code


def _show(done: ProgramResult) -> None:
    from sandlot.cli.output import note

    for stream, text in ((sys.stdout, done.stdout), (sys.stderr, done.stderr)):
        stream.buffer.write(text.encode())
        stream.flush()
    if not done.ok:
        note(f"sandlot: {done.status.replace('_', ' ')}{f': {done.detail}' if done.detail else ''}")


def _text(path: Path) -> str:
    data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise typer.BadParameter(f"{path} is no text in UTF-8.") from None
