"""``sandlot webhooks``: addresses that are told of what happens."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.options import InJson, asking
from sandlot.cli.output import as_json, note, table

if TYPE_CHECKING:
    from sandlot.sdk import WebhookInfo

webhooks = typer.Typer(help="Addresses that are told of what happens.", no_args_is_help=True)

SecretFile = Annotated[
    Path | None,
    typer.Option(
        "--secret-file",
        metavar="FILE",
        help="What X-Signature is made with: what is in the file, but for white space at its end; '-' is standard input.",
        allow_dash=True,
    ),
]


@webhooks.command("create")
def create_webhook(
    url: Annotated[str, typer.Argument(metavar="URL", help="Where events are sent, by POST.")],
    *,
    events: Annotated[list[str] | None, typer.Option("--event", metavar="TYPE", help="Such as sandbox.ended; again for more. (default: all)")] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="A word for people.")] = None,
    secret_file: SecretFile = None,
    disabled: Annotated[bool, typer.Option("--disabled", help="Have it wait until it is enabled: what happens meanwhile is sent then.")] = False,
    in_json: InJson = False,
) -> None:
    """Have an address told of what happens to what is yours.

    Prints the webhook's id, and on the last line the secret that was made for it, which is not shown again: X-Signature is the HMAC-SHA256 of the
    body with it. A secret of your own is not shown.
    """
    secret = _secret(secret_file)
    with asking() as client:
        made = client.webhooks.create(url, events=events or (), secret=secret, name=name, enabled=not disabled)
    if secret is not None:
        made = replace(made, secret="")
    if in_json:
        typer.echo(as_json(made))
        return
    typer.echo(made.id)
    if made.secret:
        typer.echo(made.secret)


@webhooks.command("ls")
def list_webhooks(*, in_json: InJson = False) -> None:
    """List webhooks: what each has taken, what was given up, and why the last call failed."""
    with asking() as client:
        found = client.webhooks.list()
    if in_json:
        typer.echo(as_json(found))
        return
    if not found:
        note("There is no webhook; `sandlot webhooks create URL` makes one.")
        return
    table(["ID", "NAME", "URL", "EVENTS", "ENABLED", "DELIVERED", "GIVEN UP", "LAST ERROR"], [_row(each) for each in found])


@webhooks.command("update")
def update_webhook(
    webhook: Annotated[str, typer.Argument(metavar="ID", help="The webhook.")],
    *,
    url: Annotated[str | None, typer.Option("--url", metavar="URL", help="Where events are sent, by POST.")] = None,
    events: Annotated[list[str] | None, typer.Option("--event", metavar="TYPE", help="Such as sandbox.ended; again for more.")] = None,
    every: Annotated[bool, typer.Option("--all-events", help="Tell it of all events.")] = False,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="A word for people.")] = None,
    enabled: Annotated[bool | None, typer.Option("--enable/--disable", help="Have it wait, and go on: what happens meanwhile is sent then.")] = None,
    secret_file: SecretFile = None,
    in_json: InJson = False,
) -> None:
    """Change a webhook; what is left out stays as it is.

    Prints its id.
    """
    if every and events:
        raise typer.BadParameter("Some events or all: give --event or --all-events.")
    asked = [] if every else events or None
    secret = _secret(secret_file)
    if (url, asked, name, enabled, secret) == (None, None, None, None, None):
        raise typer.BadParameter("Nothing to change: give --url, --event, --all-events, --name, --enable, --disable or --secret-file.")
    with asking() as client:
        changed = client.webhooks.update(webhook, url=url, events=asked, secret=secret, name=name, enabled=enabled)
    typer.echo(as_json(changed) if in_json else changed.id)


@webhooks.command("rm")
def remove_webhooks(*, ids: Annotated[list[str], typer.Argument(metavar="ID...", help="The webhooks.")]) -> None:
    """Tell addresses nothing more.

    Prints each id.
    """
    with asking() as client:
        for id_ in ids:
            client.webhooks.delete(id_)
            typer.echo(id_)


def _secret(path: Path | None) -> str | None:
    """What a file holds, so that no argument does: arguments are seen by everybody on the machine.

    Raises:
        typer.BadParameter: It cannot be read, is no text, or holds nothing.
    """
    if path is None:
        return None
    named = "Standard input" if str(path) == "-" else str(path)
    try:
        held = (sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()).decode().rstrip()
    except OSError as error:
        raise typer.BadParameter(f"{named} cannot be read: {error.strerror}.", param_hint="--secret-file") from None
    except UnicodeDecodeError:
        raise typer.BadParameter(f"{named} is no text in UTF-8.", param_hint="--secret-file") from None
    if not held:
        raise typer.BadParameter(f"{named} has no secret in it.", param_hint="--secret-file")
    return held


def _row(info: WebhookInfo) -> list[str]:
    told = [info.id, info.name or "-", info.url, ",".join(info.events) or "all", "yes" if info.enabled else "no"]
    return [*told, str(info.delivered), str(info.given_up), info.last_error or "-"]
