"""``sandlot pause``, ``resume``, ``hibernate`` and ``wake``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.options import asking, live_ids
from sandlot.cli.output import note, visible

if TYPE_CHECKING:
    from sandlot.sdk import Sandbox

Ids = Annotated[list[str], typer.Argument(metavar="ID...", help="The sandboxes.", autocompletion=live_ids)]
Anew = Annotated[
    float | None, typer.Option("--timeout", metavar="SECONDS", help="When its timeout comes, from now. (default: as long as was last set)")
]


def pause(*, sandboxes: Ids) -> None:
    """Freeze sandboxes where they are: nothing in them runs, their memory stays, their timeout stands still.

    Prints the id of each. The next request resumes one by itself, unless it was made with --no-auto-resume.
    """
    _each(sandboxes, lambda sandbox: sandbox.pause())


def resume(*, sandboxes: Ids, timeout: Anew = None) -> None:
    """Let sandboxes that are paused or hibernated go on where they were.

    Prints the id of each. One that runs is left as it is.
    """
    _each(sandboxes, lambda sandbox: sandbox.resume(timeout))


def hibernate(*, sandboxes: Ids) -> None:
    """Write the memory of sandboxes to the disk and give it back, until the next request or `sandlot wake`.

    Prints the id of each.
    """
    _each(sandboxes, lambda sandbox: sandbox.hibernate())


def wake(*, sandboxes: Ids, timeout: Anew = None) -> None:
    """Let sandboxes that are hibernated go on where they were; the same as `sandlot resume`.

    Prints the id of each.
    """
    _each(sandboxes, lambda sandbox: sandbox.resume(timeout))


def _each(sandboxes: list[str], work: Callable[[Sandbox], None]) -> None:
    from sandlot.model.errors import SandlotError
    from sandlot.sdk import Sandbox

    failed = False
    with asking() as client:
        for id_ in sandboxes:
            try:
                work(Sandbox.connect(id_, client=client, resume=False))
            except SandlotError as error:
                note(f"sandlot: {id_}: {error}")
                failed = True
            else:
                typer.echo(visible(id_))
    raise typer.Exit(1 if failed else 0)
