"""The MCP server over standard input and output, with the sandboxes of a service."""

from __future__ import annotations

from mcp.server.stdio import stdio_server

from sandlot.mcp.host import TIMEOUT_S
from sandlot.mcp.hosts.sdk import SdkHost
from sandlot.mcp.server import CallScope, create_server
from sandlot.mcp.session_sandboxes import SessionSandbox
from sandlot.sdk import AsyncClient


async def serve_stdio(*, url: str | None = None, api_key: str | None = None, template: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
    """Serve one client until it closes standard input, then end the sandbox that its calls shared.

    Args:
        url: Address of the service, as for :class:`sandlot.sdk.AsyncClient`.
        api_key: API key, likewise.
        template: Template of the sandboxes.
        timeout_s: Timeout of the sandboxes.
    """
    async with AsyncClient(url=url, api_key=api_key) as client:
        host, session_sandbox = SdkHost(client, template=template, timeout_s=timeout_s), SessionSandbox()
        server = create_server(lambda _: CallScope(host, session_sandbox))
        try:
            async with stdio_server() as (read, write):
                await server.run(read, write, server.create_initialization_options())
        finally:
            await session_sandbox.end(host)
