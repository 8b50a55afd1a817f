"""``sandlot install``: install packages in a sandbox."""

from __future__ import annotations

from typing import Annotated

import typer

from sandlot.cli.options import SandboxId, User

DEFAULT_TIMEOUT_S = 300.0


def install(
    *,
    sandbox: SandboxId,
    packages: Annotated[
        list[str] | None, typer.Argument(metavar="PACKAGE", help="Names, with or without versions: 'requests>=2', 'lodash@^4', 'tree'.")
    ] = None,
    requirement: Annotated[
        list[str] | None, typer.Option("-r", "--requirement", metavar="FILE", help="Requirements file of pip in the sandbox; repeat for more.")
    ] = None,
    manager: Annotated[str, typer.Option("--manager", metavar="NAME", help="Package manager: pip, npm or apt.")] = "pip",
    user: User = None,
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="Seconds until the installation is killed.")] = DEFAULT_TIMEOUT_S,
) -> None:
    """Install pip, npm or apt packages in a sandbox.

    Running code can import them at once. Prints the output of the package manager and exits with its status, as `sandlot exec` does. apt always
    runs as root.
    """
    from sandlot.cli.passthrough import run_until_signal

    if not packages and not requirement:
        raise typer.BadParameter("Pass at least one PACKAGE, or a file with -r.")
    wanted = [*(f"-r {file}" for file in requirement or ()), *(packages or ())]
    raise typer.Exit(run_until_signal(_install(sandbox, wanted, manager, user, timeout)))


async def _install(sandbox_id: str, packages: list[str], manager: str, user: str | None, timeout_s: float) -> int:
    from sandlot.cli.passthrough import emit, exit_status
    from sandlot.sdk import AsyncSandbox

    sandbox = await AsyncSandbox.connect(sandbox_id, resume=False)
    try:
        result = await sandbox.install(packages, manager=manager, user=user, timeout=timeout_s, on_output=emit)
    finally:
        await sandbox.aclose()
    return exit_status(result, timeout_s)
