"""``sandlot context``: list, create, restart, interrupt and end code contexts."""

from __future__ import annotations

from typing import Annotated

import typer

from sandlot.cli.bulk import run_for_each
from sandlot.cli.options import Cwd, Env, JsonOutput, Quiet, SandboxId, as_dict, query_client
from sandlot.cli.output import as_json, note, print_ids, table

contexts = typer.Typer(help="List, create, restart, interrupt and end code contexts of a sandbox.", no_args_is_help=True)

ContextIds = Annotated[list[str], typer.Argument(metavar="CONTEXT", help="Context ids.")]
ContextId = Annotated[str, typer.Argument(metavar="CONTEXT", help="Context id.")]


@contexts.command("ls")
def ls(*, sandbox: SandboxId, quiet: Quiet = False, json_output: JsonOutput = False) -> None:
    """List a sandbox's code contexts."""
    from sandlot.sdk import Sandbox

    with query_client() as client:
        found = Sandbox.connect(sandbox, client=client, resume=False).contexts.list()
    if json_output:
        typer.echo(as_json(found))
    elif quiet:
        print_ids(found)
    else:
        rows = [
            [each.id, each.language, each.state, str(each.execution_count), "-" if each.pid is None else str(each.pid), each.cwd] for each in found
        ]
        table(["ID", "LANGUAGE", "STATE", "EXECUTIONS", "PID", "CWD"], rows)


@contexts.command("create")
def create(
    *,
    sandbox: SandboxId,
    language: Annotated[str, typer.Option("--language", "-l", metavar="NAME", help="python, javascript, typescript, bash or r.")] = "python",
    cwd: Cwd = None,
    env: Env = None,
    json_output: JsonOutput = False,
) -> None:
    """Create a code context and print its id."""
    from sandlot.sdk import Sandbox

    with query_client() as client:
        created = Sandbox.connect(sandbox, client=client, resume=False).contexts.create(language, cwd=cwd, envs=as_dict(env))
    typer.echo(as_json(created) if json_output else created.id)


@contexts.command("rm")
def rm(*, sandbox: SandboxId, ids: ContextIds) -> None:
    """End contexts and everything running in them.

    The default context of a language starts again with its next code. Prints each ended context. Exits with status 1 if any could not be ended.
    """
    from sandlot.sdk import Sandbox

    with query_client() as client:
        run_for_each(ids, Sandbox.connect(sandbox, client=client, resume=False).contexts.delete)


@contexts.command("restart")
def restart(*, sandbox: SandboxId, context: ContextId = "default") -> None:
    """Restart a context; its variables are lost."""
    from sandlot.sdk import Sandbox

    with query_client() as client:
        Sandbox.connect(sandbox, client=client, resume=False).contexts.restart(context)
    typer.echo(context)


@contexts.command("interrupt")
def interrupt(*, sandbox: SandboxId, context: ContextId = "default") -> None:
    """Interrupt the code running in a context."""
    from sandlot.sdk import Sandbox

    with query_client() as client:
        if not Sandbox.connect(sandbox, client=client, resume=False).contexts.interrupt(context):
            note("The context is idle.")
