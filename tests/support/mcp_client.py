"""The SDK's MCP client against an endpoint of a service, in both eras of the protocol."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import TextResourceContents

ERAS: Final = ("legacy", "2026-07-28")
"""Connect modes: revisions with a handshake and sessions, and the revision without."""


@asynccontextmanager
async def http_client(url: str, key: str, mode: str, **options: Any) -> AsyncIterator[Client]:  # noqa: ANN401 - options of the client
    """Connect to an endpoint.

    Args:
        url: URL of the endpoint.
        key: API key.
        mode: One of ``ERAS``.
        options: Options of :class:`mcp.Client`.
    """
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=httpx2.Timeout(60, read=300), trust_env=False) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode, **options) as client,
    ):
        yield client


def text(result: Any) -> str:  # noqa: ANN401 - a result of the client
    """Return all text of a result."""
    return "\n".join(each.text for each in result.content if each.type == "text")


async def resource(client: Client, uri: str) -> str | bytes:
    """Read a resource: its text, or its bytes if it is no text."""
    (read,) = (await client.read_resource(uri)).contents
    return read.text if isinstance(read, TextResourceContents) else base64.b64decode(read.blob)
