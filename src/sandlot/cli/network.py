"""``sandlot network``: show the network of a sandbox, and approve refused destinations.

The SDK is imported inside the commands, so that ``--help`` and shell completion start quickly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.options import JsonOutput, SandboxId, query_client
from sandlot.cli.output import age, as_json, note, size, table

if TYPE_CHECKING:
    from sandlot.sdk import Network, NetworkDestination, NetworkRefusal

network = typer.Typer(help="Show networks of sandboxes, and approve refused destinations.", no_args_is_help=True)


@network.command("info")
def info(*, sandbox: SandboxId, json_output: JsonOutput = False) -> None:
    """Show a sandbox's network policy, its refused connections and its reached destinations.

    Change the policy with `sandlot update`.
    """
    from sandlot.sdk import Sandbox

    with query_client() as client:
        found = Sandbox.connect(sandbox, client=client, resume=False).network.info()
    if json_output:
        typer.echo(as_json(found))
        return
    _print_policy(found.policy)
    if found.refusals:
        rows = [[each.id, _destination(each), each.method or "-", each.path or "-", each.reason, str(each.count)] for each in found.refusals]
        table(["REFUSAL", "DESTINATION", "METHOD", "PATH", "REASON", "COUNT"], rows)
    else:
        note("No refusals.")
    if found.destinations:
        rows = [
            [_destination(each), str(each.connections), size(each.sent_bytes), size(each.received_bytes), age(each.last_at)]
            for each in found.destinations
        ]
        table(["REACHED", "CONNECTIONS", "SENT", "RECEIVED", "AGE"], rows)
    else:
        note("No reached destinations.")


@network.command("approve")
def approve(
    *,
    sandbox: SandboxId,
    refusal: Annotated[str, typer.Argument(metavar="REFUSAL", help="Id of the refusal, from `sandlot network info`.")],
    json_output: JsonOutput = False,
) -> None:
    """Allow a refused destination until the next update of the network policy.

    Appends a rule for this host and port. If an HTTP request was refused, the rule covers only its method, and its path with the paths below. A
    destination that a rule denies cannot be approved. Prints the policy.
    """
    from sandlot.sdk import Sandbox

    with query_client() as client:
        policy = Sandbox.connect(sandbox, client=client, resume=False).network.approve(refusal)
    if json_output:
        typer.echo(as_json(policy))
    else:
        _print_policy(policy)


def _print_policy(policy: Network) -> None:
    rows = [["mode", policy.mode], *(["deny", rule] for rule in policy.deny), *(["allow", rule] for rule in policy.allow)]
    if policy.packages is not None:
        rows.append(["packages", "yes" if policy.packages else "no"])
    table(["POLICY", "VALUE"], rows)


def _destination(each: NetworkRefusal | NetworkDestination) -> str:
    return f"[{each.host}]:{each.port}" if ":" in each.host else f"{each.host}:{each.port}"
