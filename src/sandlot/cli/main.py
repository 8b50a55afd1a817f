"""Entry point of the ``sandlot`` command.

Exit status:
- 0 is success, 1 a failure of Sandlot, 2 a wrong command line, 130 an interrupt.
- ``run``, ``exec``, ``repl``, ``install``, ``grade`` and ``shell`` exit with the status of the program: 128 + N after signal N, 124 after a timeout
  as of timeout(1), and 126 or 127 if the program cannot be run or does not exist, as of env(1). A failure of Sandlot is 125. A line on standard
  error that begins with ``sandlot:`` gives the reason of each status that is not the program's own.

Invariants:
- An error is a line with the failure and a line with the next action; SANDLOT_DEBUG=1 shows the traceback as well.
- Standard output has results only; notes for people go to standard error.
- ``sandlot version`` does not import typer, which takes most of the start time of other commands.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sandlot.cli.version import version_text

EXIT_SANDLOT_ERROR = 125
"""Status of ``run`` and ``exec`` if Sandlot failed and not the program, as of docker(1)."""
EXIT_INTERRUPTED = 130
PROGRAM_COMMANDS = frozenset({"run", "exec", "repl", "install", "grade", "shell"})
"""Commands that exit with the status of a program."""
EXTRAS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                "aiohappyeyeballs", "alembic", "asyncpg", "certifi", "dns", "e2b_dockerfile_utils", "fastapi", "fastapi_offline", "greenlet", "h11",
                "httptools", "idna", "obstore", "packaging", "prometheus_client", "pydantic", "pydantic_settings", "python_multipart",
                "sqlalchemy", "starlette", "structlog", "uvicorn", "uvloop",
            ),
            "server",
        ),
        "mcp": "mcp",
        "nbformat": "notebook",
        "prompt_toolkit": "repl",
    }
)  # fmt: skip
"""Package that a command imports -> extra that installs the package."""
POSIX_MODULES = frozenset({"fcntl", "grp", "pwd", "resource", "termios", "tty"})
"""Modules of the standard library that Windows does not have."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit.

    Args:
        arguments: Arguments without the program's name. Default: those of this process.
    """
    _fill_descriptors()
    sys.exit(dispatch(sys.argv[1:] if arguments is None else arguments))


def dispatch(arguments: list[str]) -> int:
    """Run the command line and return its exit status."""
    if arguments in (["version"], ["--version"], ["version", "--json"]):
        sys.stdout.write(f"{version_text(json_output='--json' in arguments)}\n")
        return 0
    import typer

    failed = EXIT_SANDLOT_ERROR if arguments and arguments[0] in PROGRAM_COMMANDS else None
    try:
        return _command()(args=arguments, prog_name="sandlot", standalone_mode=False) or 0
    except typer.Abort:
        return EXIT_INTERRUPTED
    except _usage_error() as error:
        _print_error(error.format_message().removeprefix("Invalid value: "), _usage_hint(error))
        return failed or 2
    except Exception as error:
        if os.environ.get("SANDLOT_DEBUG", "") not in {"", "0"}:
            raise
        _print_error(*_describe(error))
        return failed or 1


def _usage_error() -> Any:  # noqa: ANN401 - an exception class with `format_message`
    """Return the class of errors in the command line, which is click's or typer's, depending on the version of typer."""
    import typer

    return next(cls for cls in typer.BadParameter.__mro__ if cls.__base__ is Exception)


@functools.cache
def _command() -> Any:  # noqa: ANN401 - typer has no public type for it
    """Build the command tree, which takes a tenth of a second, once per process."""
    import typer

    from sandlot.cli.app import app

    return typer.main.get_command(app)


def _fill_descriptors() -> None:
    """Open /dev/null as standard input, output and error where these are closed.

    Otherwise the next socket would get such a descriptor, and output would be written to it.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            # open(2) returns the lowest free descriptor.
            setattr(sys, name, open(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - open until the process exits


def _describe(error: Exception) -> tuple[str, str]:
    from sandlot.sdk import SandlotError

    if isinstance(error, SandlotError):
        return error.message, error.hint
    if isinstance(error, OSError):
        return str(error), ""
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        if package in EXTRAS:
            return f"This command needs the package {package}.", f"Run `pip install 'sandlot[{EXTRAS[package]}]'`."
        if package in POSIX_MODULES:
            return "This command needs Linux or macOS.", ""
    return f"{type(error).__name__}: {error}", "This is a defect in Sandlot; SANDLOT_DEBUG=1 shows the traceback."


def _usage_hint(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return f"Run `{context.command_path if context is not None else 'sandlot'} --help` for the options."


def _print_error(message: str, hint: str) -> None:
    from sandlot.cli.output import visible

    first, *more = message.rstrip().split("\n")
    sys.stderr.write(f"sandlot: {visible(first)}\n")
    for line in more:  # indented, so that no line looks like one of Sandlot's
        sys.stderr.write(f"    {visible(line.strip())}\n")
    if hint:
        sys.stderr.write(f"  {visible(hint)}\n")
