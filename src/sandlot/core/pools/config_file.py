"""``pools.json`` in the data directory: configuration of the pools that requests have created, changed or deleted.

The service reads the file when it starts. The configuration is a file instead of a database table because pools use the memory of one node: each
node has its own file, even if several nodes share a database. An operator can read the file at any time, and change it while no service runs.

Invariants:
- The file is replaced as a whole. A service that is killed leaves the old file or the new file.
- The entry of a pool takes precedence over the settings of the service. This includes the entry of a pool that a request has deleted.
- A file that cannot be read does not prevent the start of the service. The file is renamed to ``pools.json.bad``, and the settings apply.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import structlog
from pydantic import TypeAdapter

from sandlot.core.pools.models import PoolConfig, PoolId
from sandlot.host import durable
from sandlot.model.errors import HostError, SandlotError

POOLS_FILE: Final = "pools.json"
_BAD_FILE: Final = "pools.json.bad"

_log = structlog.get_logger("sandlot.core")


@dataclass(frozen=True, slots=True)
class _Content:
    """Content of the file.

    Args:
        format: Version of the format. Raise it with each change of this class or of :class:`PoolConfig`.
    """

    format: Literal[6]
    pools: tuple[PoolConfig, ...]


_JSON: Final = TypeAdapter(_Content)


class PoolConfigFile:
    """``pools.json`` of a data directory.

    Args:
        data_dir: The data directory. This service holds its lock.
    """

    __slots__ = ("_bad_file", "_file")

    def __init__(self, data_dir: Path) -> None:
        self._file = data_dir / POOLS_FILE
        self._bad_file = data_dir / _BAD_FILE

    def read(self) -> dict[PoolId, PoolConfig]:
        """Return the configurations in the file, by pool. Return an empty dictionary if the file is missing or cannot be read."""
        try:
            return {config.pool_id: config for config in _JSON.validate_json(self._file.read_bytes()).pools}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, SandlotError) as error:
            detail = f"only the pools of the settings are created; the file is kept as {_BAD_FILE}"
            _log.error("pools.unreadable", file=str(self._file), error=str(error), detail=detail)
            try:
                self._file.replace(self._bad_file)
            except OSError as refused:
                _log.error("pools.invalid_file_not_renamed", file=str(self._file), error=str(refused))
            return {}

    def write(self, configs: Iterable[PoolConfig]) -> None:
        """Replace the file.

        Raises:
            HostError: The file cannot be written. The old file is unchanged.
        """
        content = _JSON.dump_json(_Content(6, tuple(configs)), indent=1, exclude={"pools": {"__all__": {"is_implied"}}})
        try:
            durable.write_file(self._file, content)
        except OSError as error:
            raise HostError(
                f"The configuration of the pools cannot be written to {self._file}: {error.strerror or error}.",
                hint="Free space in the data directory, or make the directory writable.",
            ) from error
