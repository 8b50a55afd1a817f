"""``sandlot run`` and ``sandlot exec``: a program in a sandbox, as if it ran here."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.options import SandboxId, TemplateName, live_ids
from sandlot.cli.output import pairs
from sandlot.cli.repl.session import RESULTS, Cells

if TYPE_CHECKING:
    from sandlot.sdk import AsyncSandbox

EXEC_SETTINGS = {"allow_interspersed_args": False}
"""Everything behind the sandbox's id is the command's."""

DEFAULT_TIMEOUT_S = 300.0
SLACK_S = 60.0
"""What a sandbox lives longer than its program: copying files in, and being told of its end."""
WORKSPACE = "/workspace"
INTERPRETERS = {".py": ("python3",), ".sh": ("bash",), ".bash": ("bash",), ".js": ("node",), ".mjs": ("node",), ".cjs": ("node",)}
LANGUAGES = {".sh": "bash", ".bash": "bash", ".js": "javascript", ".mjs": "javascript", ".cjs": "javascript"}
"""Ending -> the language of a cell; of any other ending, and none, python."""


@dataclass(frozen=True, slots=True)
class Job:
    """What ``sandlot run`` does: files to copy in, then a program.

    Args:
        argv: The program, in the sandbox.
        uploads: Files and folders: here -> there.
    """

    argv: tuple[str, ...]
    uploads: tuple[tuple[Path, str], ...]


def plan(file: str | None, code: str | None, args: Sequence[str], files: Sequence[str], *, unbuffered: bool) -> Job:
    """Work out what to run from the command line.

    Args:
        file: The program here, ``-`` for one on standard input, or the first argument when ``code`` is given.
        code: Python code.
        args: The program's arguments.
        files: ``HOST:GUEST`` words.
        unbuffered: Whether Python's output should come as it is printed, for a person who watches.

    Raises:
        typer.BadParameter: Nothing to run, or no such file.
    """
    flags = ("-u",) if unbuffered else ()
    uploads = [_upload(word) for word in files]
    if code is not None:
        return Job(("python3", *flags, "-c", code, *([file] if file is not None else []), *args), tuple(uploads))
    if file is None:
        raise typer.BadParameter("Nothing to run: give a FILE, '-' for standard input, or -c CODE.")
    if file == "-":
        return Job(("python3", *flags, "-", *args), tuple(uploads))
    path = Path(file)
    if not path.is_file():
        raise typer.BadParameter(f"{file} is a folder; give the program in it." if path.is_dir() else f"There is no file {file}.")
    target = f"{WORKSPACE}/{path.name}"
    interpreter = INTERPRETERS.get(path.suffix.lower(), ("python3",))
    flags = flags if interpreter == ("python3",) else ()
    return Job((*interpreter, *flags, target, *args), (*uploads, (path, target)))


def cell(file: str | None, code: str | None) -> tuple[str | None, str]:
    """The code of a cell, None where standard input has it, and its language.

    Args:
        file: The program here, or ``-``.
        code: Python code instead.

    Raises:
        typer.BadParameter: Nothing to run, or no such text.
    """
    if (file is None) == (code is None):
        raise typer.BadParameter("Nothing to run: give a FILE, '-' for standard input, or -c CODE." if file is None else "Give a FILE or -c CODE.")
    if file is None or file == "-":
        return code, "python"
    try:
        return Path(file).read_text(encoding="utf-8"), LANGUAGES.get(Path(file).suffix.lower(), "python")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{file} cannot be read: {error}.") from None


def run(  # noqa: PLR0913 - each is an option
    *,
    file: Annotated[
        str | None, typer.Argument(metavar="FILE|-", help="The program: Python, or by its ending .sh or .js. '-' reads Python from standard input.")
    ] = None,
    args: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="Its arguments; those that begin with '-' go behind '--'.")] = None,
    code: Annotated[str | None, typer.Option("-c", "--code", metavar="CODE", help="Run this Python code instead of a file.")] = None,
    template: TemplateName = None,
    env: Annotated[list[str] | None, typer.Option("--env", "-e", metavar="K=V", help="Environment variable; may be given again.")] = None,
    files: Annotated[
        list[str] | None,
        typer.Option("--file", "-f", metavar="HOST:GUEST", help="Copy a file or folder in; relative to /workspace. May be given again."),
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="End the program after that long.")] = DEFAULT_TIMEOUT_S,
    cpus: Annotated[float | None, typer.Option("--cpus", metavar="N", help="Cores. (default: 1)")] = None,
    memory: Annotated[str | None, typer.Option("--memory", metavar="SIZE", help="Such as 512M or 2G. (default: 1G)")] = None,
    sandbox: Annotated[
        str | None, typer.Option("--sandbox", "-s", metavar="ID", help="Run it as a cell in a sandbox that lives.", autocompletion=live_ids)
    ] = None,
    context: Annotated[
        str | None, typer.Option("--context", metavar="ID", help="With --sandbox: in that context. (default: its language's own)")
    ] = None,
    save: Annotated[Path, typer.Option("--save", metavar="FOLDER", help="With --sandbox: where images go.")] = RESULTS,
) -> None:
    """Run a program in a sandbox of its own, which ends with it; with --sandbox, as a cell in a context of one that lives.

    Standard input, output and error are the program's, and so is the exit status: 128 + N for signal N, 124 when the time was up. 125 means
    that Sandlot failed and says why on standard error. A cell has no standard input; variables stay, results are printed and images saved.
    """
    from sandlot.cli.passthrough import run_until_signal

    if sandbox is not None:
        if args or files or template or cpus or memory:
            raise typer.BadParameter("A cell in a sandbox that lives takes no arguments, files, template or limits.")
        text, language = cell(file, code)
        cells = Cells(language if context is None else None, context, timeout, pairs(env, "--env"), save)
        raise typer.Exit(run_until_signal(_run_cell(sandbox, text, cells)))
    if context is not None:
        raise typer.BadParameter("--context is one of a sandbox that lives: give --sandbox too.")
    job = plan(file, code, args or (), files or (), unbuffered=sys.stdout.isatty())
    raise typer.Exit(run_until_signal(_run(job, template, pairs(env, "--env"), timeout, cpus, memory)))


def execute(
    *,
    sandbox: SandboxId,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="Program and arguments, behind an optional '--'. No shell sees them.")],
    env: Annotated[list[str] | None, typer.Option("--env", "-e", metavar="K=V", help="Environment variable; may be given again.")] = None,
    cwd: Annotated[str | None, typer.Option("--cwd", "-w", metavar="FOLDER", help="Folder to run in. (default: /workspace)")] = None,
    user: Annotated[str | None, typer.Option("--user", "-u", metavar="USER", help="'user' or 'root'. (default: user)")] = None,
    timeout: Annotated[float | None, typer.Option("--timeout", metavar="SECONDS", help="End it after that long. (default: never)")] = None,
    tag: Annotated[str | None, typer.Option("--tag", metavar="WORD", help="A word of your own by which `sandlot ps` tells it.")] = None,
    no_stdin: Annotated[bool, typer.Option("--no-stdin", "-n", help="Leave our standard input alone.")] = False,
) -> None:
    """Run a command in a sandbox that lives.

    Standard input, output and error are the command's, and so is the exit status, as with `sandlot run`.
    """
    from sandlot.cli.passthrough import run_until_signal

    argv = command[1:] if command[0] == "--" else command
    if not argv:
        raise typer.BadParameter("Nothing to run: give a COMMAND.")
    raise typer.Exit(run_until_signal(_execute(sandbox, argv, pairs(env, "--env"), cwd, user, timeout, tag, feed=not no_stdin)))


async def _run(job: Job, template: str | None, env: dict[str, str], timeout_s: float, cpus: float | None, memory: str | None) -> int:
    from sandlot.cli.progress import building
    from sandlot.model.specs import MAX_TIMEOUT_S
    from sandlot.sdk import AsyncClient, AsyncSandbox

    lifetime_s = min(timeout_s + SLACK_S, MAX_TIMEOUT_S)
    async with AsyncClient() as client:
        async with building(client, template):
            created = await AsyncSandbox.create(template, timeout=lifetime_s, envs=env, cpus=cpus, memory=memory, client=client)
        async with created as sandbox:
            for source, target in job.uploads:
                await sandbox.files.upload(source, target)
            if job.uploads:
                await sandbox.set_timeout(lifetime_s)
            return await _pass_through(sandbox, job.argv, timeout_s=timeout_s)


async def _run_cell(sandbox_id: str, code: str | None, cells: Cells) -> int:
    from sandlot.cli.repl.session import piped, run_cell
    from sandlot.sdk import AsyncClient, AsyncSandbox

    text = await piped() if code is None else code
    async with AsyncClient() as client:
        return (await run_cell(await AsyncSandbox.connect(sandbox_id, client=client, resume=False), text, cells)).exit_code


async def _execute(
    sandbox_id: str,
    argv: list[str],
    env: dict[str, str],
    cwd: str | None,
    user: str | None,
    timeout_s: float | None,
    tag: str | None,
    *,
    feed: bool,
) -> int:
    from sandlot.sdk import AsyncSandbox

    sandbox = await AsyncSandbox.connect(sandbox_id, resume=False)
    try:
        return await _pass_through(sandbox, argv, env=env, cwd=cwd, user=user, timeout_s=timeout_s, tag=tag, feed=feed)
    finally:
        await sandbox.aclose()


async def _pass_through(
    sandbox: AsyncSandbox,
    argv: Sequence[str],
    *,
    timeout_s: float | None,
    env: dict[str, str] | None = None,
    cwd: str | None = None,
    user: str | None = None,
    tag: str | None = None,
    feed: bool = True,
) -> int:
    from sandlot.cli.passthrough import emit, exit_status, failure_status, standard_input
    from sandlot.model.errors import SandlotError

    stdin = standard_input() if feed else None
    try:
        result = await sandbox.commands.run(argv, envs=env, cwd=cwd, user=user, stdin=stdin, timeout=timeout_s, tag=tag, on_output=emit)
    except SandlotError as error:
        status = failure_status(error)
        if status is None:
            raise
        return status
    return exit_status(result, timeout_s)


def _upload(word: str) -> tuple[Path, str]:
    """``HOST:GUEST``, or ``HOST`` alone, which keeps its name."""
    host, colon, guest = word.rpartition(":")
    if not colon:
        host, guest = word, ""
    path = Path(host)
    if not path.exists():
        raise typer.BadParameter(f"--file {word!r}: there is no file {host!r} here.")
    if guest in {"", "."} or guest.endswith("/"):
        guest += path.absolute().name
    return path, str(PurePosixPath(WORKSPACE, guest))
