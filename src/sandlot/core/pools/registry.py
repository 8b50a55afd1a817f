"""Registry of all pools of a service. It also stores the configuration of the pools, which is read when the service restarts.

Invariants:
- A pool exists while its configuration has sizes: a deleted pool keeps a configuration without sizes, so that the settings do not create the
  pool again. Configuration from requests (``pools.json``) takes precedence over the settings.
- A request changes a pool only after the new configuration is on disk. A restart therefore keeps every change for which a client got a response.
- Pools are created, changed and deleted one at a time, under :attr:`PoolRegistry.lock`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from sandlot.core.pools.config_file import PoolConfigFile
from sandlot.core.pools.models import PoolConfig, PoolId
from sandlot.core.pools.pool import Pool


class PoolRegistry:
    """All pools of a service.

    Attributes:
        lock: Held while a pool is created, changed or deleted.
    """

    def __init__(self, file: PoolConfigFile, settings: Iterable[PoolConfig]) -> None:
        self._file = file
        self._from_settings = {config.pool_id: config for config in settings}
        self._from_requests = file.read()
        configs = {**self._from_settings, **self._from_requests}.values()
        self.pools: dict[str, Pool] = {str(config.pool_id): Pool(config) for config in configs if config.sizes is not None}
        self.lock = asyncio.Lock()

    async def save(self, config: PoolConfig) -> None:
        """Write the configuration of one pool to disk, for the next start of the service. The caller holds :attr:`lock`.

        Raises:
            HostError: The file cannot be written. The old configuration stays in effect.
        """
        configs: dict[PoolId, PoolConfig] = {**self._from_requests, config.pool_id: config}
        if config.sizes is None and config.pool_id not in self._from_settings:
            del configs[config.pool_id]  # a deleted pool needs an entry only if the settings would create the pool again
        await asyncio.to_thread(self._file.write, configs.values())
        self._from_requests = configs
