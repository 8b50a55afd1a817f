"""``sandlot webhook``: send events to URLs."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.bulk import run_for_each
from sandlot.cli.options import JsonOutput, Quiet, query_client
from sandlot.cli.output import as_json, note, print_ids, table

if TYPE_CHECKING:
    from sandlot.sdk import WebhookInfo

webhooks = typer.Typer(help="Create, list, change and delete webhooks.", no_args_is_help=True)

Events = Annotated[
    list[str] | None,
    typer.Option("--event", metavar="TYPE", help="Type of the events to send, such as sandbox.ended; repeat for more."),
]
Name = Annotated[str | None, typer.Option("--name", metavar="NAME", help="Name of the webhook, shown in lists.")]
SecretFile = Annotated[
    Path | None,
    typer.Option(
        "--secret-file",
        metavar="FILE",
        help="File with the secret of X-Signature, without white space at its end; '-' for standard input.",
        allow_dash=True,
    ),
]


@webhooks.command("create")
def create(
    url: Annotated[str, typer.Argument(metavar="URL", help="URL that gets events by POST.")],
    *,
    events: Events = None,
    name: Name = None,
    secret_file: SecretFile = None,
    disabled: Annotated[bool, typer.Option("--disabled", help="Keep events until `webhook update --enable`.")] = False,
    json_output: JsonOutput = False,
) -> None:
    """Send events to a URL, signed with a secret that is printed once.

    Prints the webhook's id, and a generated secret alone on the last line. X-Signature is the HMAC-SHA256 of the body with the secret. A secret from
    --secret-file is not printed. Default of --event: all events.
    """
    secret = _read_secret(secret_file)
    with query_client() as client:
        created = client.webhooks.create(url, events=events or (), secret=secret, name=name, enabled=not disabled)
    if secret is not None:
        created = replace(created, secret="")
    if json_output:
        typer.echo(as_json(created))
        return
    typer.echo(created.id)
    if created.secret:
        typer.echo(created.secret)


@webhooks.command("ls")
def ls(*, quiet: Quiet = False, json_output: JsonOutput = False) -> None:
    """List webhooks and the result of their last delivery."""
    with query_client() as client:
        found = client.webhooks.list()
    if json_output:
        typer.echo(as_json(found))
    elif quiet:
        print_ids(found)
    elif found:
        table(["ID", "NAME", "URL", "EVENTS", "ENABLED", "DELIVERED", "GIVEN UP", "LAST ERROR"], [_row(each) for each in found])
    else:
        note("No webhooks. Create one with `sandlot webhook create URL`.")


@webhooks.command("update")
def update(
    webhook: Annotated[str, typer.Argument(metavar="WEBHOOK", help="Webhook id.")],
    *,
    url: Annotated[str | None, typer.Option("--url", metavar="URL", help="URL that gets events by POST.")] = None,
    events: Events = None,
    all_events: Annotated[bool, typer.Option("--all-events", help="Send all events.")] = False,
    name: Name = None,
    enabled: Annotated[bool | None, typer.Option("--enable/--disable", help="Send events, or keep them until the webhook is enabled again.")] = None,
    secret_file: SecretFile = None,
    json_output: JsonOutput = False,
) -> None:
    """Change a webhook's URL, events or secret, or disable it.

    Prints its id.
    """
    if all_events and events:
        raise typer.BadParameter("It cannot be combined with --event.", param_hint="--all-events")
    new_events = [] if all_events else events or None
    secret = _read_secret(secret_file)
    if (url, new_events, name, enabled, secret) == (None, None, None, None, None):
        raise typer.BadParameter("Nothing to change. Pass an option, such as --url.")
    with query_client() as client:
        changed = client.webhooks.update(webhook, url=url, events=new_events, secret=secret, name=name, enabled=enabled)
    typer.echo(as_json(changed) if json_output else changed.id)


@webhooks.command("rm")
def rm(*, ids: Annotated[list[str], typer.Argument(metavar="WEBHOOK", help="Webhook ids.")]) -> None:
    """Delete webhooks; a delivery in progress may still arrive.

    Prints each deleted webhook. Exits with status 1 if any could not be deleted.
    """
    with query_client() as client:
        run_for_each(ids, client.webhooks.delete)


def _read_secret(path: Path | None) -> str | None:
    """Return the secret in a file. There is no option for the secret itself: other users of the machine can read arguments.

    Raises:
        typer.BadParameter: The file cannot be read, is not text, or is empty.
    """
    if path is None:
        return None
    name = "Standard input" if str(path) == "-" else str(path)
    try:
        secret = (sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()).decode().rstrip()
    except OSError as error:
        raise typer.BadParameter(f"Cannot read {name}: {error.strerror}.", param_hint="--secret-file") from None
    except UnicodeDecodeError:
        raise typer.BadParameter(f"{name} is not UTF-8 text.", param_hint="--secret-file") from None
    if not secret:
        raise typer.BadParameter(f"{name} is empty.", param_hint="--secret-file")
    return secret


def _row(info: WebhookInfo) -> list[str]:
    cells = [info.id, info.name or "-", info.url, ",".join(info.events) or "all", "yes" if info.enabled else "no"]
    return [*cells, str(info.delivered), str(info.given_up), info.last_error or "-"]
