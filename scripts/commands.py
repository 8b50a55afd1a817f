#!/usr/bin/env python3
"""Writes docs/reference/cli.md: every command of the command line with its arguments and options, as the program itself tells them.

    scripts/commands.py            write it
    scripts/commands.py --check    say what differs, and exit with 1 if anything does

Run it after every change of a command.
"""

from __future__ import annotations

import difflib
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import typer
from typer.cli import get_docs_for_click

from sandlot.cli import main as entry
from sandlot.cli.app import app

TARGET = Path(__file__).resolve().parents[1] / "docs" / "reference" / "cli.md"

HEAD = """\
# The command line

The help of all commands, written by `scripts/commands.py`. In a checkout, the program is `.venv/bin/sandlot`.

Standard output has results only: plain columns that `awk` can split, or JSON with `--json`. Notes for people go to standard error. An error is a line
that begins with `sandlot:` and a line with the next action.

SANDBOX is the id or the name of a sandbox. SIZE is a number of bytes, or a number with a unit of 1024s, such as `512M` or `1.5G`. WHEN is an ISO 8601
time, a period from now such as `30d`, or `never`.

## Exit status

"""

COMPLETION = """
## Completion

`sandlot --install-completion` adds completion to your shell: commands, options, templates, and ids of live sandboxes.

"""


def page() -> str:
    """The page."""
    command = typer.main.get_command(app)
    _keep_first_sentences(command)
    context = typer.Context(command, info_name="sandlot")
    with context:
        told = get_docs_for_click(obj=command, ctx=context, name="sandlot", indent=1)
    statuses, _, _ = inspect.cleandoc(entry.__doc__ or "").partition("Exit status:\n")[2].partition("\n\nInvariants:")
    text = f"{HEAD}{statuses.replace('``', '`')}\n{COMPLETION}{told}"
    # Every command has it, and the heading above says so.
    text = re.sub(r"\* `(-h, )?--help`: Show this message and exit\.\n", "", text)
    text = re.sub(r"^(\* `[^`]+?) <[^`]+>`:", r"\1`:", text, flags=re.MULTILINE)  # names of Python types
    text = re.sub(r"\*\*Options\*\*:\n\n(?=\n|#|\*\*)", "", text)
    return re.sub(r"\n{3,}", "\n\n", text).rstrip("\n") + "\n"


def _keep_first_sentences(command: Any) -> None:  # noqa: ANN401 - typer has no public type for it
    """Set the short help of all commands, which would otherwise be cut off after 45 characters."""
    command.short_help = inspect.cleandoc(command.help or "").partition("\n\n")[0].replace("\n", " ")
    for each in getattr(command, "commands", {}).values():
        _keep_first_sentences(each)


def main(arguments: list[str]) -> int:
    """Write or check; the exit status."""
    now = page()
    written = TARGET.read_text(encoding="utf-8") if TARGET.exists() else ""
    if now == written:
        return 0
    if "--check" not in arguments:
        TARGET.write_text(now, encoding="utf-8")
        return 0
    sys.stdout.writelines(
        difflib.unified_diff(written.splitlines(keepends=True), now.splitlines(keepends=True), "docs/reference/cli.md", "the program", n=1)
    )
    print("The program is not what docs/reference/cli.md says: run `.venv/bin/python scripts/commands.py` and commit it.")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
