# Generated from src/sandlot/sdk/_async/client.py by scripts/unasync.py; change that file.
"""The client of one service: a namespace for each of its resources."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

from sandlot.sdk._sync.events import Events
from sandlot.sdk._sync.executions import Executions
from sandlot.sdk._sync.file_store import FileStore
from sandlot.sdk._sync.hosted_agents import Agents, AgentSessions
from sandlot.sdk._sync.keys import Keys
from sandlot.sdk._sync.pools import Pools
from sandlot.sdk._sync.programs import Programs
from sandlot.sdk._sync.sandboxes import Sandboxes
from sandlot.sdk._sync.service import Service
from sandlot.sdk._sync.snapshots import Snapshots
from sandlot.sdk._sync.templates import Templates
from sandlot.sdk._sync.transport import Transport
from sandlot.sdk._sync.volumes import Volumes
from sandlot.sdk._sync.webhooks import Webhooks
from sandlot.sdk.config import Target, resolve


class Client:
    """A service and one pool of keep-alive connections to it. Use an synchronous client in one event loop only.

    Args:
        url: Address of the service: ``http://HOST:PORT``, ``https://HOST`` or ``unix:///PATH``. Default: ``SANDLOT_URL``, or the local service.
        api_key: API key, which every request over TCP needs. Default: ``SANDLOT_API_KEY``.
        data_dir: State directory of the local service. Default: ``SANDLOT_DATA_DIR``, or ``/var/lib/sandlot``.
        autostart: Start the local service if it does not run.

    Raises:
        InvalidRequestError: The URL has none of these forms.
    """

    def __init__(self, url: str | None = None, api_key: str | None = None, *, data_dir: str | Path | None = None, autostart: bool = True) -> None:
        transport = Transport(resolve(os.environ, url=url, api_key=api_key, data_dir=data_dir), autostart=autostart)
        self.transport = transport
        """Connections of this client, for requests that no method makes."""
        self.sandboxes = Sandboxes(transport)
        """Sandboxes; ``Sandbox`` starts and uses them."""
        self.snapshots = Snapshots(transport)
        """Snapshots of sandboxes."""
        self.volumes = Volumes(transport)
        """Volumes, whose files outlive sandboxes."""
        self.pools = Pools(transport)
        """Warm pools."""
        self.webhooks = Webhooks(transport)
        """Webhooks."""
        self.agents = Agents(transport)
        """Agents that the service runs."""
        self.agent_sessions = AgentSessions(transport)
        """Sessions with these agents."""
        self.templates = Templates(transport)
        """Templates that sandboxes can start from."""
        self.keys = Keys(transport)
        """API keys and quotas."""
        self.file_store = FileStore(transport)
        """Files that outlive sandboxes."""
        self.events = Events(transport)
        """Events of sandboxes."""
        self.executions = Executions(transport)
        """Log of code and command runs."""
        self.service = Service(transport)
        """The service itself."""
        self.programs = Programs(transport)
        """Programs that run once, with output comparison."""

    @property
    def target(self) -> Target:
        """Address and key in use."""
        return self.transport.target

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Sandboxes keep running; a later request opens new connections."""
        self.transport.close()
