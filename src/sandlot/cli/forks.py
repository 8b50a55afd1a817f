"""``sandlot fork``, ``tree`` and ``promote``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.options import InJson, Metadata, SandboxId, asking
from sandlot.cli.output import age, as_json, note, pairs, table

if TYPE_CHECKING:
    from sandlot.sdk import ForkTree, ForkTreeNode


def fork(
    *,
    sandbox: SandboxId,
    count: Annotated[int, typer.Option("--count", "-n", metavar="N", min=1, max=100, help="How many. (default: 1)")] = 1,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Name of the fork, unique among your live sandboxes; of several, NAME-1, NAME-2 and so on."),
    ] = None,
    metadata: Metadata = None,
    env: Annotated[list[str] | None, typer.Option("--env", "-e", metavar="K=V", help="Added to its environment; may be given again.")] = None,
    timeout: Annotated[float | None, typer.Option("--timeout", metavar="SECONDS", help="End them after that long. (default: as its own)")] = None,
    share_volumes: Annotated[bool, typer.Option("--share-volumes", help="Let them write to the volumes that it writes to.")] = False,
    in_json: InJson = False,
) -> None:
    """Make sandboxes that are what one is at this moment, variables and processes included, and print their ids.

    It goes on; from then on all of them are independent.
    """
    from sandlot.sdk import Sandbox

    words = pairs(metadata, "--metadata") if metadata else None
    with asking() as client:
        parent = Sandbox.connect(sandbox, client=client, resume=False)
        made = parent.fork(count, name=name, metadata=words, envs=pairs(env, "--env") or None, timeout=timeout, share_volumes=share_volumes)
        if in_json:
            typer.echo(as_json([child.info() for child in made]))
            return
    for child in made:
        typer.echo(child.id)


def tree(*, sandbox: SandboxId, in_json: InJson = False) -> None:
    """Show the forks that a sandbox belongs to: those that it came of, and those that came of it."""
    from sandlot.sdk import Sandbox

    with asking() as client:
        found = Sandbox.connect(sandbox, client=client, resume=False).fork_tree()
    if in_json:
        typer.echo(as_json(found))
        return
    rows = [
        [f"{'  ' * depth}{each.id}{' *' if each.id == sandbox else ''}", each.name or "-", each.state, age(each.created_at)]
        for depth, each in _drawn(found)
    ]
    table(["ID", "NAME", "STATE", "AGE"], rows)


def promote(*, sandbox: SandboxId) -> None:
    """Keep one fork and end its siblings, with all that came of them. Prints the ids of those that were ended."""
    from sandlot.sdk import Sandbox

    with asking() as client:
        ended = Sandbox.connect(sandbox, client=client, resume=False).promote()
    for each in ended:
        typer.echo(each)
    if not ended:
        note("It has no siblings that live.")


def _drawn(found: ForkTree) -> Iterator[tuple[int, ForkTreeNode]]:
    """Each sandbox behind whose fork it is, and how deep it stands; however deep that is."""
    known = {branch.id for branch in found}
    left = [(0, branch) for branch in reversed(found.sandboxes) if branch.parent not in known]
    while left:
        depth, branch = left.pop()
        yield depth, branch
        left += [(depth + 1, child) for child in reversed(found.children(branch.id))]
