"""``sandlot forward`` and ``sandlot url``: reach ports in a sandbox from this machine and from browsers."""

from __future__ import annotations

import threading
from contextlib import ExitStack, suppress
from typing import Annotated

import typer

from sandlot.cli.options import PortMapping, SandboxId, parse_ports, query_client
from sandlot.cli.output import note


def forward(
    *,
    sandbox: SandboxId,
    ports: Annotated[
        list[PortMapping],
        typer.Argument(metavar="[LOCAL:]PORT", help="Local port and port in the sandbox; local port 0 for any free port.", parser=parse_ports),
    ],
) -> None:
    """Forward local ports to ports in a sandbox until Ctrl-C.

    A server in the sandbox that listens on 127.0.0.1 or on all addresses is reached at the printed address, also if the sandbox has no network.
    """
    from sandlot.sdk import ConflictError, ErrorCode, Sandbox

    with query_client() as client, ExitStack() as opened, suppress(KeyboardInterrupt):
        connected = Sandbox.connect(sandbox, client=client)
        for each in ports:
            try:
                forwarded = opened.enter_context(connected.forward(each.remote, each.local, on_error=lambda error: note(str(error))))
            except OSError as error:
                raise ConflictError(
                    f"Cannot listen on port {each.local} of this machine: {error.strerror or error}.",
                    code=ErrorCode.CONFLICT,
                    hint=f"Pass another local port, or 0:{each.remote} for any free port.",
                ) from None
            typer.echo(forwarded.address)
        note(f"Forwarding to {sandbox} until Ctrl-C.")
        threading.Event().wait()


def url(
    *,
    sandbox: SandboxId,
    port: Annotated[int, typer.Argument(metavar="PORT", min=1, max=65535, help="Port in the sandbox.")],
    path_form: Annotated[
        bool, typer.Option("--path-form", help="Print a URL with the token in its path, for clients that cannot resolve the host name.")
    ] = False,
    expires_in: Annotated[
        float | None, typer.Option("--expires-in", metavar="SECONDS", help="Lifetime of the token, at most 604800. (default: 86400)")
    ] = None,
) -> None:
    """Print the URL under which a browser opens a port in a sandbox.

    The URL works without an API key, until its token expires. The server in the sandbox need not run yet. A service that is started by
    `sandlot serve` serves previews only with its option `--preview-port`.
    """
    from sandlot.sdk import Sandbox

    with query_client() as client:
        typer.echo(Sandbox.connect(sandbox, client=client, resume=False).get_url(port, path_form=path_form, expires_in=expires_in))
