"""``sandlot forward``."""

from __future__ import annotations

import threading
from contextlib import ExitStack, suppress
from typing import Annotated

import typer

from sandlot.cli.options import SandboxId, asking
from sandlot.cli.output import note
from sandlot.protocol.schema import MOST_PORT


def forward(
    *,
    sandbox: SandboxId,
    ports: Annotated[list[str], typer.Argument(metavar="[LOCAL:]PORT...", help="Ports inside, each behind the one to listen on here; 0 is any.")],
) -> None:
    """Carry ports of this machine to ports in a sandbox, until Ctrl-C.

    What listens in the sandbox on 127.0.0.1 or on every address is reached at the address that is printed, whatever the sandbox's network is.
    """
    from sandlot.model.errors import ConflictError, ErrorCode
    from sandlot.sdk import Sandbox

    asked = [_parsed(text) for text in ports]
    with asking() as client, ExitStack() as opened, suppress(KeyboardInterrupt):
        box = Sandbox.connect(sandbox, client=client)
        for local, port in asked:
            try:
                made = opened.enter_context(box.forward(port, local, on_error=lambda error: note(str(error))))
            except OSError as error:
                why = f"Port {local} of this machine cannot be listened on: {error.strerror or error}."
                raise ConflictError(why, code=ErrorCode.CONFLICT, hint=f"Choose another one, or let it be any: 0:{port}.") from None
            typer.echo(made.address)
        note(f"Carried to {sandbox} until Ctrl-C.")
        threading.Event().wait()


def _parsed(text: str) -> tuple[int, int]:
    """The local port and the one inside. Pure."""
    local, colon, port = text.rpartition(":")
    for each, least in ((port, 1), (local if colon else port, 0)):
        if not (each.isascii() and each.isdigit() and least <= int(each) <= MOST_PORT):
            raise typer.BadParameter(f"{text!r} is not [LOCAL:]PORT, with numbers up to {MOST_PORT}.")
    return int(local if colon else port), int(port)
