"""``sandlot install``: packages into a sandbox that lives."""

from __future__ import annotations

from typing import Annotated

import typer

from sandlot.cli.options import SandboxId
from sandlot.model.specs import DEFAULT_INSTALL_TIMEOUT_S


def install(
    *,
    sandbox: SandboxId,
    packages: Annotated[list[str], typer.Argument(metavar="PACKAGES", help="Names, with or without versions: 'requests>=2', 'lodash@^4', 'tree'.")],
    manager: Annotated[str, typer.Option("--manager", "-m", metavar="MANAGER", help="'pip', 'npm' or 'apt'.")] = "pip",
    user: Annotated[str | None, typer.Option("--user", "-u", metavar="USER", help="'user' or 'root'; apt is always root. (default: user)")] = None,
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="End it after that long.")] = DEFAULT_INSTALL_TIMEOUT_S,
) -> None:
    """Install packages into a sandbox. Code that runs there already can import them afterwards.

    What the package manager writes is written here, and its exit status is this command's, as with `sandlot exec`.
    """
    from sandlot.cli.passthrough import run_until_signal

    raise typer.Exit(run_until_signal(_install(sandbox, packages, manager, user, timeout)))


async def _install(sandbox_id: str, packages: list[str], manager: str, user: str | None, timeout_s: float) -> int:
    from sandlot.cli.passthrough import emit, exit_status
    from sandlot.sdk import AsyncSandbox

    sandbox = await AsyncSandbox.connect(sandbox_id, resume=False)
    try:
        result = await sandbox.install(packages, manager=manager, user=user, timeout=timeout_s, on_output=emit)
    finally:
        await sandbox.aclose()
    return exit_status(result, timeout_s)
