"""The client of one service: a namespace for each of its resources."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

from sandlot.sdk._async.events import AsyncEvents
from sandlot.sdk._async.executions import AsyncExecutions
from sandlot.sdk._async.file_store import AsyncFileStore
from sandlot.sdk._async.hosted_agents import AsyncAgents, AsyncAgentSessions
from sandlot.sdk._async.keys import AsyncKeys
from sandlot.sdk._async.pools import AsyncPools
from sandlot.sdk._async.programs import AsyncPrograms
from sandlot.sdk._async.sandboxes import AsyncSandboxes
from sandlot.sdk._async.service import AsyncService
from sandlot.sdk._async.snapshots import AsyncSnapshots
from sandlot.sdk._async.templates import AsyncTemplates
from sandlot.sdk._async.transport import AsyncTransport
from sandlot.sdk._async.volumes import AsyncVolumes
from sandlot.sdk._async.webhooks import AsyncWebhooks
from sandlot.sdk.config import Target, resolve


class AsyncClient:
    """A service and one pool of keep-alive connections to it. Use an asynchronous client in one event loop only.

    Args:
        url: Address of the service: ``http://HOST:PORT``, ``https://HOST`` or ``unix:///PATH``. Default: ``SANDLOT_URL``, or the local service.
        api_key: API key, which every request over TCP needs. Default: ``SANDLOT_API_KEY``.
        data_dir: State directory of the local service. Default: ``SANDLOT_DATA_DIR``, or ``/var/lib/sandlot``.
        autostart: Start the local service if it does not run.

    Raises:
        InvalidRequestError: The URL has none of these forms.
    """

    def __init__(self, url: str | None = None, api_key: str | None = None, *, data_dir: str | Path | None = None, autostart: bool = True) -> None:
        transport = AsyncTransport(resolve(os.environ, url=url, api_key=api_key, data_dir=data_dir), autostart=autostart)
        self.transport = transport
        """Connections of this client, for requests that no method makes."""
        self.sandboxes = AsyncSandboxes(transport)
        """Sandboxes; ``AsyncSandbox`` starts and uses them."""
        self.snapshots = AsyncSnapshots(transport)
        """Snapshots of sandboxes."""
        self.volumes = AsyncVolumes(transport)
        """Volumes, whose files outlive sandboxes."""
        self.pools = AsyncPools(transport)
        """Warm pools."""
        self.webhooks = AsyncWebhooks(transport)
        """Webhooks."""
        self.agents = AsyncAgents(transport)
        """Agents that the service runs."""
        self.agent_sessions = AsyncAgentSessions(transport)
        """Sessions with these agents."""
        self.templates = AsyncTemplates(transport)
        """Templates that sandboxes can start from."""
        self.keys = AsyncKeys(transport)
        """API keys and quotas."""
        self.file_store = AsyncFileStore(transport)
        """Files that outlive sandboxes."""
        self.events = AsyncEvents(transport)
        """Events of sandboxes."""
        self.executions = AsyncExecutions(transport)
        """Log of code and command runs."""
        self.service = AsyncService(transport)
        """The service itself."""
        self.programs = AsyncPrograms(transport)
        """Programs that run once, with output comparison."""

    @property
    def target(self) -> Target:
        """Address and key in use."""
        return self.transport.target

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections. Sandboxes keep running; a later request opens new connections."""
        await self.transport.aclose()
