"""``sandlot contexts``: the kernels of a sandbox."""

from __future__ import annotations

from typing import Annotated

import typer

from sandlot.cli.options import InJson, SandboxId, asking
from sandlot.cli.output import as_json, note, pairs, table

contexts = typer.Typer(help="The contexts of a sandbox: kernels, each with its own variables.", no_args_is_help=True)

ContextIds = Annotated[list[str], typer.Argument(metavar="CONTEXT...", help="The contexts, by their ids.")]
OneContext = Annotated[str, typer.Argument(metavar="CONTEXT", help="The context, by its id.")]


@contexts.command("ls")
def ls(*, sandbox: SandboxId, in_json: InJson = False) -> None:
    """List the contexts of a sandbox."""
    from sandlot.sdk import Sandbox

    with asking() as client:
        found = Sandbox.connect(sandbox, client=client, resume=False).contexts.list()
    if in_json:
        typer.echo(as_json(found))
    else:
        rows = [
            [each.id, each.language, each.state, str(each.execution_count), "-" if each.pid is None else str(each.pid), each.cwd] for each in found
        ]
        table(["ID", "LANGUAGE", "STATE", "CELLS", "PID", "CWD"], rows)


@contexts.command("create")
def create(
    *,
    sandbox: SandboxId,
    language: Annotated[str, typer.Option("--language", "-l", metavar="NAME", help="python, bash or javascript.")] = "python",
    cwd: Annotated[str | None, typer.Option("--cwd", "-w", metavar="FOLDER", help="Folder to start in. (default: /workspace)")] = None,
    env: Annotated[list[str] | None, typer.Option("--env", "-e", metavar="K=V", help="Environment variable; may be given again.")] = None,
    in_json: InJson = False,
) -> None:
    """Make another context; its id is printed."""
    from sandlot.sdk import Sandbox

    with asking() as client:
        made = Sandbox.connect(sandbox, client=client, resume=False).contexts.create(language, cwd=cwd, envs=pairs(env, "--env"))
    typer.echo(as_json(made) if in_json else made.id)


@contexts.command("rm")
def rm(*, sandbox: SandboxId, ids: ContextIds) -> None:
    """End contexts, with everything that runs in them. The id of each is printed.

    One that is there always starts anew with its next cell.
    """
    from sandlot.model.errors import NotFoundError
    from sandlot.sdk import Sandbox

    missing = False
    with asking() as client:
        found = Sandbox.connect(sandbox, client=client, resume=False).contexts
        for each in ids:
            try:
                found.delete(each)
            except NotFoundError as error:
                note(f"sandlot: {error}")
                missing = True
            else:
                typer.echo(each)
    raise typer.Exit(1 if missing else 0)


@contexts.command("restart")
def restart(*, sandbox: SandboxId, context: OneContext = "default") -> None:
    """Begin anew in a context: its variables are gone, and what ran in it is ended."""
    from sandlot.sdk import Sandbox

    with asking() as client:
        Sandbox.connect(sandbox, client=client, resume=False).contexts.restart(context)
    typer.echo(context)


@contexts.command("interrupt")
def interrupt(*, sandbox: SandboxId, context: OneContext = "default") -> None:
    """Interrupt what runs in a context, as Ctrl-C would."""
    from sandlot.sdk import Sandbox

    with asking() as client:
        if not Sandbox.connect(sandbox, client=client, resume=False).contexts.interrupt(context):
            note("Nothing runs in it.")
