"""``sandlot webhooks``: addresses that are told of what happens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.arguments import InJson, asking
from sandlot.cli.output import as_json, note, table

if TYPE_CHECKING:
    from sandlot.sdk import WebhookInfo

webhooks = typer.Typer(help="Addresses that are told of what happens.", no_args_is_help=True)


@webhooks.command("create")
def create_webhook(
    url: Annotated[str, typer.Argument(metavar="URL", help="Where events are sent, by POST.")],
    *,
    events: Annotated[list[str] | None, typer.Option("--event", metavar="TYPE", help="Such as sandbox.ended; again for more. (default: all)")] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="A word for people.")] = None,
    in_json: InJson = False,
) -> None:
    """Have an address told of what happens to what is yours.

    Prints the webhook's id, and on the last line its secret, which is not shown again: X-Signature is the HMAC-SHA256 of the body with it.
    """
    with asking() as client:
        made = client.webhooks.create(url, events=events or (), name=name)
    if in_json:
        typer.echo(as_json(made))
        return
    typer.echo(made.id)
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
    in_json: InJson = False,
) -> None:
    """Change a webhook; what is left out stays as it is.

    Prints its id.
    """
    if every and events:
        raise typer.BadParameter("Some events or all: give --event or --all-events.")
    asked = [] if every else events or None
    if (url, asked, name, enabled) == (None, None, None, None):
        raise typer.BadParameter("Nothing to change: give --url, --event, --all-events, --name, --enable or --disable.")
    with asking() as client:
        changed = client.webhooks.update(webhook, url=url, events=asked, name=name, enabled=enabled)
    typer.echo(as_json(changed) if in_json else changed.id)


@webhooks.command("rm")
def remove_webhooks(*, ids: Annotated[list[str], typer.Argument(metavar="ID...", help="The webhooks.")]) -> None:
    """Tell addresses nothing more.

    Prints each id.
    """
    with asking() as client:
        for id_ in ids:
            client.webhooks.remove(id_)
            typer.echo(id_)


def _row(info: WebhookInfo) -> list[str]:
    told = [info.id, info.name or "-", info.url, ",".join(info.events) or "all", "yes" if info.enabled else "no"]
    return [*told, str(info.delivered), str(info.given_up), info.last_error or "-"]
