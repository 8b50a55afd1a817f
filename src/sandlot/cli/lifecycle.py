"""``sandlot pause``, ``resume``, ``hibernate``, ``fork``, ``fork-tree`` and ``promote``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.bulk import run_for_each
from sandlot.cli.options import Env, JsonOutput, Metadata, SandboxId, SandboxIds, as_dict, query_client
from sandlot.cli.output import age, as_json, note, print_ids, table

if TYPE_CHECKING:
    from sandlot.sdk import ForkTree, ForkTreeNode, Sandbox


def pause(*, sandboxes: SandboxIds) -> None:
    """Freeze sandboxes and keep their memory.

    The next request resumes a sandbox, unless it was created with --no-auto-resume. The timeout does not run meanwhile. Prints each paused sandbox.
    """
    _for_each(sandboxes, lambda sandbox: sandbox.pause())


def resume(
    *,
    sandboxes: SandboxIds,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", metavar="SECONDS", help="Seconds from now until the timeout. (default: as set last)"),
    ] = None,
) -> None:
    """Resume paused or hibernated sandboxes.

    A running sandbox is not changed. Prints each resumed sandbox.
    """
    _for_each(sandboxes, lambda sandbox: sandbox.resume(timeout))


def hibernate(*, sandboxes: SandboxIds) -> None:
    """Write memory to disk, free it, and stop the sandboxes' processes.

    The next request or `sandlot resume` continues them. Prints each hibernated sandbox.
    """
    _for_each(sandboxes, lambda sandbox: sandbox.hibernate())


def fork(
    *,
    sandbox: SandboxId,
    count: Annotated[int, typer.Option("--count", metavar="N", min=1, max=100, help="Number of copies.")] = 1,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Name of the copy, unique among your live sandboxes; of several copies NAME-1, NAME-2, ..."),
    ] = None,
    metadata: Metadata = None,
    env: Env = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", help="Seconds until the timeout of the copies. (default: as of the sandbox)")
    ] = None,
    share_volumes: Annotated[bool, typer.Option("--share-volumes", help="Let the copies write to the sandbox's writable volumes.")] = False,
    json_output: JsonOutput = False,
) -> None:
    """Create copies of a running sandbox, including memory and processes.

    The sandbox keeps running. Prints the ids of the copies.
    """
    from sandlot.sdk import Sandbox

    with query_client() as client:
        parent = Sandbox.connect(sandbox, client=client, resume=False)
        forks = parent.fork(
            count,
            name=name,
            metadata=as_dict(metadata) if metadata else None,
            envs=as_dict(env) or None,
            timeout=timeout,
            share_volumes=share_volumes,
        )
        if json_output:
            typer.echo(as_json([each.info() for each in forks]))
        else:
            print_ids(forks)


def fork_tree(*, sandbox: SandboxId, json_output: JsonOutput = False) -> None:
    """Show the fork tree that contains a sandbox."""
    from sandlot.sdk import Sandbox

    with query_client() as client:
        found = Sandbox.connect(sandbox, client=client, resume=False).fork_tree()
    if json_output:
        typer.echo(as_json(found))
        return
    rows = [
        [f"{'  ' * depth}{each.id}{' *' if sandbox in {each.id, each.name} else ''}", each.name or "-", each.state, age(each.created_at)]
        for depth, each in _with_depths(found)
    ]
    table(["ID", "NAME", "STATE", "AGE"], rows)


def promote(*, sandbox: SandboxId) -> None:
    """Keep one fork and end its siblings and their forks.

    Prints the ids of the ended sandboxes.
    """
    from sandlot.sdk import Sandbox

    with query_client() as client:
        ended = Sandbox.connect(sandbox, client=client, resume=False).promote()
    for each in ended:
        typer.echo(each)
    if not ended:
        note("The sandbox has no live siblings.")


def _for_each(sandboxes: list[str], action: Callable[[Sandbox], object]) -> None:
    from sandlot.sdk import Sandbox

    with query_client() as client:
        run_for_each(sandboxes, lambda sandbox: action(Sandbox.connect(sandbox, client=client, resume=False)))


def _with_depths(found: ForkTree) -> Iterator[tuple[int, ForkTreeNode]]:
    """Yield each sandbox after its parent, with its depth. A loop, because a tree can be deeper than Python's recursion limit."""
    known = {node.id for node in found}
    left = [(0, node) for node in reversed(found.sandboxes) if node.parent not in known]
    while left:
        depth, node = left.pop()
        yield depth, node
        left += [(depth + 1, child) for child in reversed(found.children(node.id))]
