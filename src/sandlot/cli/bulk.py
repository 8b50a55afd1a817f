"""One action for each of several ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import typer

from sandlot.cli.output import note, visible


def run_for_each(items: Iterable[str], action: Callable[[str], object]) -> None:
    """Call an action for each item, and print each item whose call succeeded.

    A failed call is reported on standard error, and the other items are still processed.

    Raises:
        typer.Exit: A call failed; the exit status is 1.
    """
    from sandlot.sdk import SandlotError

    failed = False
    for item in items:
        try:
            action(item)
        except SandlotError as error:
            note(f"sandlot: {item}: {error}")
            failed = True
        else:
            typer.echo(visible(item))
    if failed:
        raise typer.Exit(1)
