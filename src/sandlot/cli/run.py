"""``sandlot run`` and ``sandlot exec``: run a program in a sandbox like a local one."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.options import Cwd, Env, SandboxId, Tag, TemplateName, User, as_dict, complete_sandboxes, parse_size_bytes
from sandlot.cli.repl.session import DEFAULT_SAVE_DIR, CellOptions
from sandlot.model.languages import LANGUAGES, language_of_file
from sandlot.model.paths import WORKSPACE

if TYPE_CHECKING:
    from sandlot.sdk import AsyncSandbox

EXEC_SETTINGS = {"allow_interspersed_args": False}
"""All arguments after the sandbox belong to the command."""

DEFAULT_TIMEOUT_S = 300.0
MAX_TIMEOUT_S = 604_800.0
"""Longest timeout of a sandbox."""
SLACK_S = 60.0
"""Seconds that a sandbox outlives its program's timeout: time for copying files in, and for reporting the program's end."""
SHELL_SYNTAX = frozenset(" |&;<>$`*?~(){}")
PROGRAM_NOT_FOUND = 127
NOTHING_TO_RUN = "Nothing to run. Pass a FILE, '-' for standard input, or -c CODE."


@dataclass(frozen=True, slots=True)
class Job:
    """Files to copy into a new sandbox, and a program to run there.

    Args:
        argv: Program and arguments, with paths of the sandbox.
        uploads: Local path and path in the sandbox of each file or directory.
    """

    argv: tuple[str, ...]
    uploads: tuple[tuple[Path, str], ...]


def plan(file: str | None, code: str | None, args: Sequence[str], uploads: Sequence[str], *, unbuffered: bool) -> Job:
    """Return the job of a command line.

    Args:
        file: Local program, or ``-`` for a program on standard input; the first argument if ``code`` is set.
        code: Python code.
        args: Arguments of the program.
        uploads: Values of ``--file``.
        unbuffered: Run Python without output buffer, for a person who watches.

    Raises:
        typer.BadParameter: There is nothing to run, or a file does not exist.
    """
    flags = ("-u",) if unbuffered else ()
    copies = [_parse_upload(text) for text in uploads]
    if code is not None:
        return Job(("python3", *flags, "-c", code, *([file] if file is not None else []), *args), tuple(copies))
    if file is None:
        raise typer.BadParameter(NOTHING_TO_RUN)
    if file == "-":
        return Job(("python3", *flags, "-", *args), tuple(copies))
    path = Path(file)
    if not path.is_file():
        reason = "is a directory" if path.is_dir() else "does not exist"
        raise typer.BadParameter(f"{file} {reason}.", param_hint="FILE")
    target = f"{WORKSPACE}/{path.name}"
    language = language_of_file(path.name) or LANGUAGES[0]
    if language.compile_argv:
        raise typer.BadParameter(f"Programs in {language.title} must be compiled. Use `sandlot grade {file}`.", param_hint="FILE")
    interpreter = language.interpreter
    flags = flags if interpreter == "python3" else ()
    return Job((interpreter, *flags, target, *args), (*copies, (path, target)))


def read_code(file: str | None, code: str | None) -> tuple[str | None, str]:
    """Return code, None for code on standard input, and its language.

    Args:
        file: Local file, or ``-`` for standard input.
        code: Python code instead.

    Raises:
        typer.BadParameter: There is nothing to run, or the file cannot be read as text.
    """
    if file is None and code is None:
        raise typer.BadParameter(NOTHING_TO_RUN)
    if file is not None and code is not None:
        raise typer.BadParameter("It cannot be combined with FILE.", param_hint="--code")
    if file is None or file == "-":
        return code, "python"
    try:
        return Path(file).read_text(encoding="utf-8"), _context_language(file)
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"Cannot read {file}: {error}.", param_hint="FILE") from None


def _context_language(file: str) -> str:
    """Return the language of the cells for a file: Python if no context runs code of its language."""
    language = language_of_file(Path(file).name)
    return language.name if language is not None and language.context else "python"


def run(  # noqa: PLR0913 - each is an option
    *,
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE|-",
            help="Program: Python, or another interpreted language by its extension, such as .sh, .js or .R. '-' reads Python from standard input.",
        ),
    ] = None,
    args: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="Arguments of the program; put arguments that begin with '-' after '--'.")
    ] = None,
    code: Annotated[str | None, typer.Option("-c", "--code", metavar="CODE", help="Run this Python code instead of a file.")] = None,
    template: TemplateName = None,
    env: Env = None,
    uploads: Annotated[
        list[str] | None,
        typer.Option("--file", metavar="LOCAL[:PATH]", help="Copy a local file or directory to a path relative to /workspace; repeat for more."),
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="Seconds until the program is killed.")] = DEFAULT_TIMEOUT_S,
    cpus: Annotated[float | None, typer.Option("--cpus", metavar="N", help="CPU cores. (default: 1)")] = None,
    memory: Annotated[
        int | None, typer.Option("--memory", metavar="SIZE", help="Memory limit, such as 512M or 2G. (default: 1G)", parser=parse_size_bytes)
    ] = None,
    sandbox: Annotated[
        str | None,
        typer.Option(
            "--sandbox", metavar="SANDBOX", help="Run the code in a context of this running sandbox instead.", autocompletion=complete_sandboxes
        ),
    ] = None,
    context: Annotated[
        str | None, typer.Option("--context", metavar="CONTEXT", help="Context of --sandbox. (default: the default context of the language)")
    ] = None,
    save: Annotated[Path, typer.Option("--save", metavar="DIRECTORY", help="Directory for images of code in --sandbox.")] = DEFAULT_SAVE_DIR,
) -> None:
    """Run a program in a new sandbox and remove the sandbox when the program ends.

    Standard input, output and error and the exit status are the program's: 128 + N after signal N, 124 after the timeout. 125 means that Sandlot
    failed. With --sandbox, code runs in a context of a running sandbox: variables persist, results are printed, and images are saved; there is no
    standard input.
    """
    from sandlot.cli.passthrough import run_until_signal

    if sandbox is not None:
        if args or uploads or template or cpus or memory:
            raise typer.BadParameter("It cannot be combined with ARGS, --file, --template, --cpus or --memory.", param_hint="--sandbox")
        text, language = read_code(file, code)
        options = CellOptions(language if context is None else None, context, timeout, as_dict(env), save)
        raise typer.Exit(run_until_signal(_run_code(sandbox, text, options)))
    if context is not None:
        raise typer.BadParameter("It needs --sandbox.", param_hint="--context")
    job = plan(file, code, args or (), uploads or (), unbuffered=sys.stdout.isatty())
    raise typer.Exit(run_until_signal(_run_job(job, template, as_dict(env), timeout, cpus, memory)))


def execute(
    *,
    sandbox: SandboxId,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="Program and arguments, after an optional '--'; no shell interprets them.")],
    env: Env = None,
    cwd: Cwd = None,
    user: User = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", help="Seconds until the command is killed. (default: no limit)")
    ] = None,
    tag: Tag = None,
    no_stdin: Annotated[bool, typer.Option("--no-stdin", help="Do not send standard input.")] = False,
) -> None:
    """Run a command in a running sandbox.

    Standard input, output and error and the exit status are the command's, as with `sandlot run`. Use a shell with `-- bash -c 'a | b'`.
    """
    from sandlot.cli.passthrough import run_until_signal

    argv = command[1:] if command[0] == "--" else command
    if not argv:
        raise typer.BadParameter("Nothing to run. Pass a COMMAND.")
    raise typer.Exit(run_until_signal(_execute(sandbox, argv, as_dict(env), cwd, user, timeout, tag, feed=not no_stdin)))


def shell_hint(sandbox: str, argv: Sequence[str]) -> str | None:
    """Return a hint for a program that was not found, if its name is a shell command line."""
    if len(argv) != 1 or SHELL_SYNTAX.isdisjoint(argv[0]):
        return None
    return f"No shell interprets the command. Run `sandlot exec {sandbox} -- bash -c {shlex.quote(argv[0])}`."


async def _run_job(job: Job, template: str | None, env: Mapping[str, str], timeout_s: float, cpus: float | None, memory: int | None) -> int:
    from sandlot.cli.progress import show_build
    from sandlot.sdk import AsyncClient, AsyncSandbox

    lifetime_s = min(timeout_s + SLACK_S, MAX_TIMEOUT_S)
    async with AsyncClient() as client:
        async with show_build(client, template):
            created = await AsyncSandbox.create(template, timeout=lifetime_s, envs=env, cpus=cpus, memory=memory, client=client)
        async with created as sandbox:
            for source, target in job.uploads:
                await sandbox.files.upload(source, target)
            if job.uploads:
                await sandbox.set_timeout(lifetime_s)
            return await _pass_through(sandbox, job.argv, timeout_s=timeout_s)


async def _run_code(sandbox_id: str, code: str | None, options: CellOptions) -> int:
    from sandlot.cli.repl.session import read_standard_input, run_cell
    from sandlot.sdk import AsyncClient, AsyncSandbox

    text = await read_standard_input() if code is None else code
    async with AsyncClient() as client:
        return (await run_cell(await AsyncSandbox.connect(sandbox_id, client=client, resume=False), text, options)).exit_code


async def _execute(
    sandbox_id: str,
    argv: list[str],
    env: Mapping[str, str],
    cwd: str | None,
    user: str | None,
    timeout_s: float | None,
    tag: str | None,
    *,
    feed: bool,
) -> int:
    from sandlot.cli.output import note
    from sandlot.sdk import AsyncSandbox

    sandbox = await AsyncSandbox.connect(sandbox_id, resume=False)
    try:
        status = await _pass_through(sandbox, argv, env=env, cwd=cwd, user=user, timeout_s=timeout_s, tag=tag, feed=feed)
    finally:
        await sandbox.aclose()
    hint = shell_hint(sandbox_id, argv) if status == PROGRAM_NOT_FOUND else None
    if hint is not None:
        note(f"  {hint}")
    return status


async def _pass_through(
    sandbox: AsyncSandbox,
    argv: Sequence[str],
    *,
    timeout_s: float | None,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    user: str | None = None,
    tag: str | None = None,
    feed: bool = True,
) -> int:
    from sandlot.cli.passthrough import emit, exit_status, failure_status, standard_input
    from sandlot.sdk import SandlotError

    stdin = standard_input() if feed else None
    try:
        result = await sandbox.commands.run(argv, envs=env, cwd=cwd, user=user, stdin=stdin, timeout=timeout_s, tag=tag, on_output=emit)
    except SandlotError as error:
        status = failure_status(error)
        if status is None:
            raise
        return status
    return exit_status(result, timeout_s)


def _parse_upload(text: str) -> tuple[Path, str]:
    """Parse ``LOCAL:PATH``, or ``LOCAL`` for a copy of the same name."""
    local, colon, guest = text.rpartition(":")
    if not colon:
        local, guest = text, ""
    path = Path(local)
    if not path.exists():
        raise typer.BadParameter(f"{local} does not exist.", param_hint="--file")
    if guest in {"", "."} or guest.endswith("/"):
        guest += path.absolute().name
    return path, str(PurePosixPath(WORKSPACE, guest))
