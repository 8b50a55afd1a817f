"""Pools that were made, changed or removed while a service ran, kept for the next one: ``pools.json`` in the data directory.

A file and not a table, because a pool is a property of this node's memory: the node's own directory has it, also where its database is shared with
others, and an operator can read it and, while no service runs, write it.

Laws:
- It is replaced whole (written beside, synced, renamed), so that a killed service leaves the one before or the new one.
- What was said at run time goes over the settings, also that there is to be none, until it is said otherwise at run time.
- It says whose each pool is; in one of format 1, of before they had owners, all are the node's. One that has owners is of format 2, so that an older
  service, which would take them for the node's, cannot read it.
- A file that cannot be read is no reason not to start: it is set aside, and the settings hold.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import structlog

from sandlot.core.pools.models import PoolId, PoolSizes, kind_as_words, kind_of_words
from sandlot.host import durable
from sandlot.model.access import LOCAL, OwnerId
from sandlot.model.errors import ErrorCode, HostError, SandlotError

FILE = "pools.json"
_ASIDE = "pools.json.bad"
_FORMAT = 2
_FORMAT_WITHOUT_OWNERS = 1

_log = structlog.get_logger("sandlot.core")


@dataclass(frozen=True, slots=True)
class Said:
    """What was said of a pool.

    Args:
        sizes: How much it holds; None where it is to be none, whatever a setting says.
        metadata: Its owner's own words.
    """

    sizes: PoolSizes | None
    metadata: Mapping[str, str] = field(default_factory=dict)


class PoolConfigFile:
    """The file.

    Args:
        folder: The data directory. This service has its lock.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE
        self._aside = folder / _ASIDE

    def read(self) -> dict[PoolId, Said]:
        """What was said at run time."""
        try:
            words = json.loads(self._file.read_text("utf-8"))
            owned = {_FORMAT: True, _FORMAT_WITHOUT_OWNERS: False}[words["format"]]
            return {
                PoolId(OwnerId(str(each["owner"])) if owned else LOCAL, kind_of_words(each["kind"])): Said(
                    sizes=None if each["sizes"] is None else PoolSizes(**each["sizes"]),
                    metadata={str(name): str(word) for name, word in each.get("metadata", {}).items()},
                )
                for each in words["pools"]
            }
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, SandlotError) as error:
            _log.error("pools.unreadable", file=str(self._file), error=str(error), hint=f"The settings hold; it is kept as {_ASIDE}.")
            try:
                self._file.replace(self._aside)
            except OSError as refused:
                _log.error("pools.not_set_aside", file=str(self._file), error=str(refused))
            return {}

    def write(self, said: Mapping[PoolId, Said]) -> None:
        """Keep it for the next service.

        Args:
            said: All that was said.

        Raises:
            HostError: The disk refuses it; what was kept before still is.
        """
        pools = [
            {
                "owner": which.owner,
                "kind": kind_as_words(which.kind),
                "sizes": None if each.sizes is None else asdict(each.sizes),
                "metadata": dict(each.metadata),
            }
            for which, each in said.items()
        ]
        try:
            durable.write_file(self._file, json.dumps({"format": _FORMAT, "pools": pools}, indent=1).encode())
        except OSError as error:
            raise HostError(
                f"The pools cannot be written to {self._file}: {error.strerror or error}.",
                code=ErrorCode.HOST_NOT_READY,
                hint="Make room in the data directory, or make it writable.",
            ) from error
