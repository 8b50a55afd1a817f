"""What the operator sets, read once from the environment; ``SANDLOT_*`` only.

Laws:
- Everything has a default that works on a plain Debian machine.
- A value that makes no sense stops the service with a message that names the variable, the value and what is allowed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path

from sandlot.core.admission import ISOLATIONS
from sandlot.core.pools.models import DEFAULT_POOLS, PoolConfig, parse_pools
from sandlot.core.records.retention import DAY_S, Keep
from sandlot.core.resources.reservations import OvercommitConfig
from sandlot.drivers.registry import driver_names
from sandlot.egress.outbound.addresses import Network as AddressRange
from sandlot.images.recipe import builtin
from sandlot.model.errors import InvalidRequestError
from sandlot.model.specs import GIB, MIB
from sandlot.server.data_dir import DATABASE

SYSTEM_DATA_DIR = Path("/var/lib/sandlot")
SYSTEM_CACHE_DIR = Path("/var/cache/sandlot")
MAX_CONNECTIONS = 16_384
"""A quarter of the descriptors that the service takes for itself (``server/process.py``)."""
_RATIOS = (0.01, 100.0)
_KEPT_S = (60.0, 3.2e9)
"""A minute to a hundred years."""
_KEPT = (100, 10_000_000)


@dataclass(frozen=True, slots=True)
class Settings:
    """One service's settings; each field is the variable ``SANDLOT_`` and its name in capitals.

    Args:
        data_dir: State of this service alone: key file, socket, lock, sandboxes. One service per directory.
        cache_dir: Images; shared by any number of services.
        database_url: Of a PostgreSQL database, which may be shared by services; it may hold a password, so it is never shown. None is SQLite
            in the data directory.
        host: Address to listen on for TCP; None listens on the unix socket only.
        port: Its port, 0 to 65535 (0 takes a free one).
        isolation_default: What ``auto`` means.
        isolation_allowed: What a request may ask for, separated by commas.
        max_sandboxes: Live ones at once, 1 to 10,000.
        max_creates: Being created at once, 1 to 64.
        pools: Sandboxes that are kept ready, of default limits and isolation: ``TEMPLATE=WARM[:MAX][+PREPARED]``, separated by commas, or ``none``,
            which makes nothing ahead. Where nothing is said, one ``code-interpreter``, growing to 4, once its image is there.
        memory_ratio: Memory that may be promised to sandboxes, to memory that there is; 0.01 to 100.
        disk_ratio: The same of disk space where the data directory is. More than 1 trusts that sandboxes do not fill their disks.
        pids_ratio: The same of processes and threads.
        memory_reserve_bytes: Memory that is kept for the host and the service; None is 5 %, from 512 MiB to 4 GiB.
        disk_reserve_bytes: Disk space that is kept; None is 5 %, from 1 to 4 GiB.
        pids_reserve: Tasks that are kept; None is 5 %, from 512 to 4,096.
        suspend_reserve: Bytes of memory that are kept for hibernations on a full node.
        max_connections: Clients' connections at once, those on TCP and those on the unix socket each, 8 to 16,384.
        buffer_bytes: Requests, collected output and answers that the service holds, all clients together; 64 MiB to 1 TiB.
        upload_max_bytes: One uploaded file, 1 MiB to 1 TiB.
        executions_keep_s: Lines of the log of runs are kept that long; at least 60, 7 days by default.
        executions_keep: How many of them at the most, 100 to 10,000,000.
        events_keep_s: Events are kept that long.
        events_keep: How many of them at the most, 100 to 10,000,000.
        sandboxes_keep_s: What is known of sandboxes that have ended is kept that long.
        keep_resting_s: A paused or hibernated sandbox is kept that long, and then ended; at least 60, 7 days by default.
        packages_max_bytes: Disk that the package cache may take, in ``packages`` of the cache directory; 64 MiB to 16 TiB, 10 GiB by default.
        packages_ttl_s: A package index's page is given without asking for a newer one for that long; 0 to 30 days, half an hour by default.
        webhooks_allow: Networks that webhooks may be in although they are not public, such as ``10.1.2.0/24``, separated by commas.
        idle_exit_s: A local service ends after that many seconds without a sandbox; at least 1.
        log_level: debug, info, warning or error.
        log_format: auto (text on a terminal, JSON lines elsewhere), text or json.
    """

    data_dir: Path = SYSTEM_DATA_DIR
    cache_dir: Path = SYSTEM_CACHE_DIR
    database_url: str | None = field(default=None, repr=False)
    host: str | None = None
    port: int = 8080
    isolation_default: str = "gvisor"
    isolation_allowed: tuple[str, ...] = ("gvisor",)
    max_sandboxes: int = 50
    max_creates: int = 4
    pools: tuple[PoolConfig, ...] = DEFAULT_POOLS
    memory_ratio: float = 1.0
    disk_ratio: float = 1.0
    pids_ratio: float = 1.0
    memory_reserve_bytes: int | None = None
    disk_reserve_bytes: int | None = None
    pids_reserve: int | None = None
    suspend_reserve: int = 256 * MIB
    max_connections: int = 1000
    buffer_bytes: int = 256 * MIB
    upload_max_bytes: int = 100 * MIB
    executions_keep_s: float = 7 * DAY_S
    executions_keep: int = 50_000
    events_keep_s: float = 7 * DAY_S
    events_keep: int = 100_000
    sandboxes_keep_s: float = 7 * DAY_S
    keep_resting_s: float = 7 * DAY_S
    packages_max_bytes: int = 10 * GIB
    packages_ttl_s: float = 1800.0
    webhooks_allow: tuple[AddressRange, ...] = ()
    idle_exit_s: float = 600.0
    log_level: str = "info"
    log_format: str = "auto"

    @property
    def socket(self) -> Path:
        """The unix socket of this service."""
        return self.data_dir / "sandlot.sock"

    @property
    def database(self) -> Path | str:
        """Where the rows are: a file for SQLite, or the URL of a PostgreSQL database."""
        return self.database_url or self.data_dir / DATABASE

    @property
    def files(self) -> Path:
        """The folder of the file store's bytes."""
        return self.data_dir / "files"

    @property
    def saved(self) -> Path:
        """The folder of the images of hibernated sandboxes and of snapshots."""
        return self.data_dir / "saved"

    @property
    def volumes(self) -> Path:
        """The folder of the volumes."""
        return self.data_dir / "volumes"

    @property
    def packages(self) -> Path:
        """The folder of the package cache."""
        return self.cache_dir / "packages"

    @property
    def shares(self) -> OvercommitConfig:
        """How much of the host may be promised to sandboxes."""
        return OvercommitConfig(
            memory_ratio=self.memory_ratio,
            disk_ratio=self.disk_ratio,
            pids_ratio=self.pids_ratio,
            memory_reserve_bytes=self.memory_reserve_bytes,
            disk_reserve_bytes=self.disk_reserve_bytes,
            pids_reserve=self.pids_reserve,
            suspend_reserve_bytes=self.suspend_reserve,
        )

    @property
    def keep(self) -> Keep:
        """How long what happened is kept."""
        return Keep(
            executions_s=self.executions_keep_s,
            executions=self.executions_keep,
            events_s=self.events_keep_s,
            events=self.events_keep,
            sandboxes_s=self.sandboxes_keep_s,
        )

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None, *, host: str | None = None, port: int | None = None) -> Settings:
        """Settings out of an environment.

        Args:
            env: The environment; by default this process's.
            host: From the command line; goes over the environment.
            port: The same.

        Raises:
            InvalidRequestError: A value makes no sense; the message names it.
        """
        source, keep = os.environ if env is None else env, Keep()
        allowed = tuple(dict.fromkeys(name.strip() for name in _text(source, "ISOLATION_ALLOWED", "gvisor").split(",") if name.strip()))
        for name in allowed:
            _isolation("ISOLATION_ALLOWED", name)
        default = _isolation("ISOLATION_DEFAULT", _text(source, "ISOLATION_DEFAULT", "gvisor"))
        if default not in allowed:
            raise _bad("ISOLATION_DEFAULT", default, f"one of SANDLOT_ISOLATION_ALLOWED ({', '.join(allowed) or 'which is empty'})")
        return cls(
            data_dir=_folder(source, "DATA_DIR", SYSTEM_DATA_DIR if os.geteuid() == 0 else _home(source) / ".local/share/sandlot"),
            cache_dir=_folder(source, "CACHE_DIR", SYSTEM_CACHE_DIR if os.geteuid() == 0 else _home(source) / ".cache/sandlot"),
            database_url=_postgresql(source, "DATABASE_URL"),
            host=host if host is not None else source.get("SANDLOT_HOST") or None,
            port=port if port is not None else _whole(source, "PORT", 8080, 0, 65535),
            isolation_default=default,
            isolation_allowed=allowed,
            max_sandboxes=_whole(source, "MAX_SANDBOXES", 50, 1, 10_000),
            max_creates=_whole(source, "MAX_CREATES", 4, 1, 64),
            pools=_pools(source, "POOLS"),
            memory_ratio=_number(source, "MEMORY_RATIO", 1.0, *_RATIOS),
            disk_ratio=_number(source, "DISK_RATIO", 1.0, *_RATIOS),
            pids_ratio=_number(source, "PIDS_RATIO", 1.0, *_RATIOS),
            memory_reserve_bytes=_whole_or_none(source, "MEMORY_RESERVE_BYTES", 1024 * GIB),
            disk_reserve_bytes=_whole_or_none(source, "DISK_RESERVE_BYTES", 1024 * GIB),
            pids_reserve=_whole_or_none(source, "PIDS_RESERVE", 4_194_304),
            suspend_reserve=_whole(source, "SUSPEND_RESERVE", 256 * MIB, 0, 1024 * GIB),
            max_connections=_whole(source, "MAX_CONNECTIONS", 1000, 8, MAX_CONNECTIONS),
            buffer_bytes=_whole(source, "BUFFER_BYTES", 256 * MIB, 64 * MIB, 1024 * GIB),
            upload_max_bytes=_whole(source, "UPLOAD_MAX_BYTES", 100 * MIB, MIB, 1024 * 1024 * MIB),
            executions_keep_s=_number(source, "EXECUTIONS_KEEP_S", keep.executions_s, *_KEPT_S),
            executions_keep=_whole(source, "EXECUTIONS_KEEP", keep.executions, *_KEPT),
            events_keep_s=_number(source, "EVENTS_KEEP_S", keep.events_s, *_KEPT_S),
            events_keep=_whole(source, "EVENTS_KEEP", keep.events, *_KEPT),
            sandboxes_keep_s=_number(source, "SANDBOXES_KEEP_S", keep.sandboxes_s, *_KEPT_S),
            keep_resting_s=_number(source, "KEEP_RESTING_S", 7 * DAY_S, *_KEPT_S),
            packages_max_bytes=_whole(source, "PACKAGES_MAX_BYTES", 10 * GIB, 64 * MIB, 16 * 1024 * GIB),
            packages_ttl_s=_number(source, "PACKAGES_TTL_S", 1800.0, 0.0, 30 * DAY_S),
            webhooks_allow=_networks(source, "WEBHOOKS_ALLOW"),
            idle_exit_s=_number(source, "IDLE_EXIT_S", 600.0, 1.0),
            log_level=_one_of("LOG_LEVEL", _text(source, "LOG_LEVEL", "info").lower(), ("debug", "info", "warning", "error")),
            log_format=_one_of("LOG_FORMAT", _text(source, "LOG_FORMAT", "auto").lower(), ("auto", "text", "json")),
        )


def _bad(name: str, value: str, allowed: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"SANDLOT_{name} is {value!r}; it must be {allowed}.", hint="Correct it or unset it.", fields={"setting": f"SANDLOT_{name}"}
    )


def _text(env: Mapping[str, str], name: str, default: str) -> str:
    return env.get(f"SANDLOT_{name}", "").strip() or default


def _isolation(name: str, value: str) -> str:
    """Return the name of an isolation: one that every service knows, or an installed driver's.

    Raises:
        InvalidRequestError: There is no such isolation.
    """
    return value if value in ISOLATIONS else _one_of(name, value, tuple(dict.fromkeys((*ISOLATIONS, *driver_names()))))


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise _bad(name, value, f"one of {', '.join(allowed)}")
    return value


def _whole(env: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = _text(env, name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 20 and low <= int(text) <= high):  # noqa: PLR2004 - int() of more is slow
        raise _bad(name, text, f"a whole number from {low} to {high}")
    return int(text)


def _whole_or_none(env: Mapping[str, str], name: str, high: int) -> int | None:
    return _whole(env, name, 0, 0, high) if _text(env, name, "") else None


def _number(env: Mapping[str, str], name: str, default: float, low: float, high: float = math.inf) -> float:
    text = _text(env, name, str(default))
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and low <= value <= high):
        raise _bad(name, text, f"a number of at least {low:g}" if high == math.inf else f"a number from {low:g} to {high:g}")
    return value


def _networks(env: Mapping[str, str], name: str) -> tuple[AddressRange, ...]:
    found = []
    for text in filter(None, map(str.strip, _text(env, name, "").split(","))):
        try:
            found.append(ip_network(text))
        except ValueError:
            raise _bad(name, text[:64], "networks such as 10.1.2.0/24 or fd00::/8, separated by commas; no bit is set behind the mask") from None
    return tuple(found)


def _pools(env: Mapping[str, str], name: str) -> tuple[PoolConfig, ...]:
    text = _text(env, name, "")
    try:
        return parse_pools(text, builtin()) if text else DEFAULT_POOLS
    except InvalidRequestError as error:
        raise _bad(name, text[:200], f"TEMPLATE=WARM[:MAX][+PREPARED], separated by commas, or none. {error}") from None


def _folder(env: Mapping[str, str], name: str, default: Path) -> Path:
    path = Path(_text(env, name, str(default)))
    if not path.is_absolute():
        raise _bad(name, str(path), "an absolute path")
    return path


def _postgresql(env: Mapping[str, str], name: str) -> str | None:
    url = _text(env, name, "")
    if url and not url.startswith(("postgresql://", "postgres://")):
        scheme, mark, _ = url.partition("://")  # no more of it is shown: it may hold a password
        raise _bad(name, f"{scheme[:20]}{mark}..." if mark else "...", "postgresql://USER:PASSWORD@HOST/DATABASE")
    return url or None


def _home(env: Mapping[str, str]) -> Path:
    return Path(env.get("HOME") or "/nonexistent")
