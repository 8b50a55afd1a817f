"""Settings of a service: CLI options, ``SANDLOT_*`` variables and a TOML file.

Invariants:
- Every setting has a default that works on a plain Debian machine.
- An invalid value prevents the start. The error names the variable, or the file and its key, with the value and the allowed values. It never contains
  the URL of the database, which can have a password.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Final, Never, get_type_hints

from pydantic import PlainValidator, ValidationError, create_model
from pydantic_settings import BaseSettings, EnvSettingsSource, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from sandlot.agents.service.limits import HostedRunLimits
from sandlot.core.admission import ISOLATIONS
from sandlot.core.pools.models import PoolSetting, parse_pools
from sandlot.core.records.retention import DAY_S, Keep
from sandlot.core.resources.reservations import OvercommitConfig
from sandlot.drivers.registry import driver_names
from sandlot.egress.packages.config.oci import SYNTAX, parse_registries
from sandlot.egress.packages.config.values import ImageSource
from sandlot.egress.policy.addresses import Network as AddressRange
from sandlot.images.recipe import Recipe
from sandlot.images.recipe_files import NAME, builtin_templates, load_recipes
from sandlot.model.errors import InvalidRequestError
from sandlot.model.image_aliases import SYNTAX as ALIAS_SYNTAX
from sandlot.model.image_aliases import ImageAlias, ImageAliases, parse_aliases
from sandlot.model.network import NetworkMode
from sandlot.model.sizes import parse_size
from sandlot.model.specs import GIB, MIB
from sandlot.server.data_dir import DATABASE
from sandlot.web.preview_urls import PreviewAddress, parse_domain

CONFIG_FILE = Path("/etc/sandlot/sandlot.toml")
"""Default file of settings; it need not exist."""
CONFIG_VARIABLE: Final = "SANDLOT_CONFIG"
"""Variable that names another file, which must exist."""
PREFIX: Final = "SANDLOT_"
SYSTEM_DATA_DIR = Path("/var/lib/sandlot")
SYSTEM_CACHE_DIR = Path("/var/cache/sandlot")
MAX_CONNECTIONS = 16_384
"""A quarter of the descriptors that the service takes for itself (``server/process.py``)."""
_MAX_SHOWN = 64
"""Largest number of characters of a value that an error shows."""


class _NotAllowedError(ValueError):
    """Error of a value that a setting cannot have.

    Args:
        allowed: Values that are allowed, as a phrase that follows "it must be".
        shown: The value as it may be shown; None: the value itself.
    """

    def __init__(self, allowed: str, shown: str | None = None) -> None:
        super().__init__(allowed)
        self.allowed = allowed
        self.shown = shown


def _whole(low: int, high: int) -> PlainValidator:
    def parse(value: object) -> int:
        text = value if isinstance(value, str) else str(value) if type(value) is int else ""
        if not (text.isascii() and text.isdigit() and len(text) < 20 and low <= int(text) <= high):  # noqa: PLR2004 - int() of more is slow
            raise _NotAllowedError(f"a whole number from {low} to {high}")
        return int(text)

    return PlainValidator(parse)


def _size(low: int, high: int) -> PlainValidator:
    def parse(value: object) -> int:
        try:
            size = parse_size(value) if isinstance(value, str) or type(value) is int else -1
        except InvalidRequestError:
            size = -1
        if not low <= size <= high:
            raise _NotAllowedError(f"a size from {_spelled(low)} to {_spelled(high)}, in bytes or with a unit such as 512M or 1G")
        return size

    return PlainValidator(parse)


def _number(low: float, high: float = math.inf) -> PlainValidator:
    def parse(value: object) -> float:
        try:
            number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
        except (ValueError, OverflowError):
            number = math.nan
        if not (math.isfinite(number) and low <= number <= high):
            raise _NotAllowedError(f"a number of at least {low:g}" if high == math.inf else f"a number from {low:g} to {high:g}")
        return number

    return PlainValidator(parse)


def _one_of(*allowed: str) -> PlainValidator:
    def parse(value: object) -> str:
        text = value.lower() if isinstance(value, str) else ""
        if text not in allowed:
            raise _NotAllowedError(f"one of {', '.join(allowed)}")
        return text

    return PlainValidator(parse)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise _NotAllowedError("a text")
    return value


def _folder(value: object) -> Path:
    if isinstance(value, Path):
        return value
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
        raise _NotAllowedError("an absolute path")
    return Path(value)


def _postgresql(value: object) -> str:
    text = value if isinstance(value, str) else ""
    if not text.startswith(("postgresql://", "postgres://")):
        scheme, mark, _ = text.partition("://")
        raise _NotAllowedError("postgresql://USER:PASSWORD@HOST/DATABASE", shown=repr(f"{scheme[:20]}{mark}..." if mark else "..."))
    return text


def _isolation(value: object) -> str:
    # Installed drivers are looked up only if the name is none of those that every service knows.
    if isinstance(value, str) and value in ISOLATIONS:
        return value
    allowed = tuple(dict.fromkeys((*ISOLATIONS, *driver_names())))
    if value not in allowed:
        raise _NotAllowedError(f"one of {', '.join(allowed)}")
    return str(value)


def _isolations(value: object) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_isolation(name) for name in _items(value)))


def _domain(value: object) -> PreviewAddress:
    if isinstance(value, PreviewAddress):
        return value
    address = parse_domain(value) if isinstance(value, str) else None
    if address is None:
        raise _NotAllowedError("a domain, such as preview.example.com or localhost:8081, with http:// or https:// in front if the default is wrong")
    return address


_HOST_NAME = re.compile(r"[a-z0-9._-]{1,253}")


def _host_names(value: object) -> tuple[str, ...]:
    names = tuple(text.lower() for text in _items(value))
    if any(_HOST_NAME.fullmatch(name) is None for name in names):
        raise _NotAllowedError("host names such as sandbox.example.com, separated by commas, without ports")
    return names


def _networks(value: object) -> tuple[AddressRange, ...]:
    try:
        return tuple(ip_network(text) for text in _items(value))
    except ValueError:
        raise _NotAllowedError("networks such as 10.1.2.0/24 or fd00::/8, separated by commas, without bits behind the mask") from None


def _registries(value: object) -> tuple[ImageSource, ...]:
    try:
        return parse_registries(_items(value))
    except ValueError as error:
        raise _NotAllowedError(f"registries, separated by commas: {SYNTAX}. {error}") from None


def _aliases(value: object) -> tuple[ImageAlias, ...]:
    try:
        return parse_aliases(_items(value))
    except ValueError as error:
        raise _NotAllowedError(f"aliases of images, separated by commas: {ALIAS_SYNTAX}. {error}") from None


def _template_aliases(value: object) -> tuple[tuple[str, str], ...]:
    pairs = tuple((name.strip(), target.strip()) for name, _, target in (text.partition("=") for text in _items(value)))
    known = builtin_templates()
    for name, target in pairs:
        if not NAME.fullmatch(name) or target not in known:
            raise _NotAllowedError(f"NAME=TEMPLATE, separated by commas; TEMPLATE is one of {', '.join(sorted(known))}")
    return pairs


def _modes(value: object) -> tuple[NetworkMode, ...]:
    texts = [text.lower() for text in _items(value)]
    if not texts or not set(texts) <= set(NetworkMode):
        raise _NotAllowedError(f"one or more of {', '.join(NetworkMode)}, separated by commas")
    return tuple(mode for mode in NetworkMode if mode in texts)


def _pools(value: object) -> tuple[PoolSetting, ...]:
    try:
        return parse_pools(",".join(_items(value)))  # `Settings.load` checks the templates
    except InvalidRequestError as error:
        raise _NotAllowedError(f"TEMPLATE=WARM[:MAX][+PREPARED], separated by commas, or none. {error}") from None


def _items(value: object) -> list[str]:
    """Return the items of a list: a text in which commas separate them, or a list of texts in a file."""
    texts = value.split(",") if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise _NotAllowedError("a list of texts, or a text in which commas separate the items")
    return [text.strip() for text in texts if text.strip()]


_Kept = Annotated[float, _number(60.0, 3.2e9)]
"""A minute to a hundred years."""
_KeptRows = Annotated[int, _whole(100, 10_000_000)]
_Ratio = Annotated[float, _number(0.01, 100.0)]
_Reserve = Annotated[int | None, _size(0, 1024 * GIB)]


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one service.

    A field is the variable ``SANDLOT_`` and its name in capitals, and the key of its name in the file. Sizes are bytes or texts such as ``1G``,
    durations are seconds. Lists are separated by commas; a file can also have a list of texts.

    Args:
        data_dir: State of this service: database, socket, lock, sandboxes. Each service has its own directory.
        cache_dir: Images, template snapshots and the package cache. Several services can share the directory.
        recipes_dir: Folder with recipes of further templates: a file NAME.toml for each, and their lock files. A recipe with the name of a built-in
            template replaces it. None: only the built-in templates.
        database_url: URL of a PostgreSQL database, which several services can share. None: SQLite in the data directory.
        host: Address to listen on for TCP; None: only the unix socket.
        port: TCP port, 0 to 65535; 0: any free port.
        isolation_default: Isolation of create requests with the isolation ``auto``.
        isolation_allowed: Isolations that create requests may choose.
        max_sandboxes: Largest number of live sandboxes, 1 to 10,000.
        max_creates: Largest number of sandboxes that start at the same time, 1 to 64.
        pools: Warm pools ``TEMPLATE=WARM[:MAX][+PREPARED]``, or ``none``. Default: one warm ``code-interpreter`` and one warm ``base``, each growing
            to one for each 2 GiB of memory, at most 4, once the image exists.
        template_aliases: Names of templates ``NAME=TEMPLATE`` that stand for built-in templates, also in place of one of the same name:
            ``code-interpreter=code-interpreter-slim`` saves 3 GiB of disk and most of the time of the first build. Default: none.
        memory_ratio: Ratio of memory that can be reserved to the memory of the host, 0.01 to 100.
        disk_ratio: The same for the disk of the data directory. With at most 1, each disk of a sandbox or volume has its space on the host from the
            beginning. With more than 1, disks take space as they are written, and sandboxes that fill their disks can fill the host's.
        pids_ratio: The same for processes and threads.
        memory_reserve_bytes: Memory that is kept for the host and the service. None: 5 %, 512 MiB to 4 GiB.
        disk_reserve_bytes: The same for disk space. None: 5 %, 1 to 4 GiB.
        pids_reserve: The same for processes and threads. None: 5 %, 512 to 4,096.
        suspend_reserve: Memory in bytes that is kept for hibernations on a full node.
        max_connections: Largest number of connections, for TCP and for the unix socket each, 8 to 16,384. On TCP, each API key and each address
            without a key has at most a quarter.
        trusted_proxies: Networks of proxies whose ``X-Forwarded-For`` names the address of a client, such as ``127.0.0.1/32``.
        mcp_allowed_hosts: Host names of the service whose requests and web pages the MCP endpoints accept on a loopback address, besides
            ``localhost``. A reverse proxy on the same machine needs the public name here.
        buffer_bytes: Memory for the buffered requests, output and responses of all clients, 64 MiB to 1 TiB.
        upload_max_bytes: Largest file of the file store, 1 MiB to 1 TiB. Files of sandboxes are limited by their disk.
        executions_keep_s: Seconds for which entries of the execution log are kept, at least 60.
        executions_keep: Largest number of these entries, 100 to 10,000,000.
        executions_max_bytes: Largest size of these entries together, 16 MiB to 1 TiB.
        events_keep_s: Seconds for which events are kept, at least 60.
        events_keep: Largest number of events, 100 to 10,000,000.
        sandboxes_keep_s: Seconds for which the records of ended sandboxes are kept, at least 60.
        sandboxes_keep: Largest number of these records, 100 to 10,000,000.
        suspended_keep_s: Seconds after which a paused or hibernated sandbox is ended, at least 60.
        packages_max_bytes: Disk space of the package cache, 64 MiB to 16 TiB.
        packages_ttl_s: Seconds for which a page of a package index is used without a check for a newer one, 0 to 30 days.
        registries: Registries of images that templates and sandboxes with packages may use, such as ``docker.io`` or ``registry.example:5000``. They
            must speak TLS; ``http://127.0.0.1:5000`` allows plain HTTP. ``docker.io=mirror.example:5000/hub`` gets the images of ``docker.io`` from
            the repositories below ``hub`` of another registry. The logins of this machine are used. Default: none, and no image can be pulled.
        image_aliases: Templates and images that stand for others in builds of templates: ``python:3.12=my-python``, ``node=mirror.example/node:*``
            or ``debian=none``. An alias without a tag is for all tags. Default: ``python``, ``node``, ``golang``, ``debian``, ``ubuntu:22.04``,
            ``e2bdev/base`` and ``e2bdev/code-interpreter`` stand for built-in templates, unless ``docker.io`` is one of the registries.
        network_allowed: Network modes that create requests may choose: ``none``, ``packages``, ``allowlist`` and ``internet``. Default: all modes for
            operators and local services, and all but ``internet`` for API keys.
        network_mbit: Megabits per second that one sandbox sends and receives at most, both together, up to 100,000. 0: no limit.
        network_private: Networks that sandboxes, webhooks and redirects of registries may reach although they are not public, such as
            ``10.1.2.0/24``. An address of this host must be listed alone, such as ``127.0.0.1``.
        preview_host: Address to listen on for previews. None: that of ``host``, or 127.0.0.1 if ``host`` is not set.
        preview_port: TCP port of previews, 0 to 65535; 0: any free port. None: ``sandlot serve`` serves no previews. A local service serves them on
            127.0.0.1 and a free port.
        preview_domain: Domain of preview URLs, ``[http://|https://]DOMAIN[:PORT]``, of which each preview has a subdomain. Default:
            ``localhost:PORT``, which works on this machine only. Without a scheme, URLs have ``http`` for ``localhost`` and names below it, and
            ``https`` for other domains; with ``preview_tls_cert``, all URLs have ``https``.
        preview_tls_cert: PEM file with the certificate chain of previews, for the domain and its subdomains (``*.DOMAIN``). None: previews are served
            over plain HTTP, and a proxy in front serves TLS.
        preview_tls_key: PEM file with the key of the certificate. None: the file of the certificate has it.
        agent_models: File in TOML with the models that agents may use. Default: none, and agents cannot be created.
        agent_mcp_servers: File in TOML with the MCP servers whose tools agents may use. Default: none.
        agent_model_requests: Largest number of requests to the model in one run of an agent, 1 to 10,000.
        agent_tool_calls: Largest number of calls of tools in one run, 1 to 10,000.
        agent_run_s: Largest duration of one run in seconds, 1 to 86,400.
        agent_session_tokens: Largest number of tokens that one session may use, read and written. Default: no limit.
        agent_session_cost_usd: Largest price in US dollars of the tokens of one session, for models with prices. Default: no limit.
        agent_sessions_keep_s: Seconds without a new event after which a session of an agent is deleted with its events and files, at least 60.
        agent_runs_per_key: Largest number of active runs of one key, 1 to 1,000.
        agent_runs: Largest number of active runs of the service, 1 to 1,000.
        low_latency: on keeps the processors of the host awake while requests arrive, and for 20 ms after them; off lets idle processors sleep.
            Commands and requests for files get up to a tenth faster, and the host uses more power. Only a host with /dev/cpu_dma_latency has the
            effect.
        idle_exit_s: Seconds without a sandbox after which a local service ends, at least 1.
        log_level: debug, info, warning or error.
        log_format: auto (text on a terminal, JSON lines elsewhere), text or json.
    """

    data_dir: Annotated[Path, PlainValidator(_folder)] = SYSTEM_DATA_DIR
    cache_dir: Annotated[Path, PlainValidator(_folder)] = SYSTEM_CACHE_DIR
    recipes_dir: Annotated[Path | None, PlainValidator(_folder)] = None
    database_url: Annotated[str | None, PlainValidator(_postgresql)] = field(default=None, repr=False)
    host: Annotated[str | None, PlainValidator(_text)] = None
    port: Annotated[int, _whole(0, 65535)] = 8080
    isolation_default: Annotated[str, PlainValidator(_isolation)] = "gvisor"
    isolation_allowed: Annotated[tuple[str, ...], PlainValidator(_isolations), NoDecode] = ("gvisor",)
    max_sandboxes: Annotated[int, _whole(1, 10_000)] = 50
    max_creates: Annotated[int, _whole(1, 64)] = 4
    pools: Annotated[tuple[PoolSetting, ...] | None, PlainValidator(_pools), NoDecode] = None
    template_aliases: Annotated[tuple[tuple[str, str], ...], PlainValidator(_template_aliases), NoDecode] = ()
    memory_ratio: _Ratio = 1.0
    disk_ratio: _Ratio = 1.0
    pids_ratio: _Ratio = 1.0
    memory_reserve_bytes: _Reserve = None
    disk_reserve_bytes: _Reserve = None
    pids_reserve: Annotated[int | None, _whole(0, 4_194_304)] = None
    suspend_reserve: Annotated[int, _size(0, 1024 * GIB)] = 256 * MIB
    max_connections: Annotated[int, _whole(8, MAX_CONNECTIONS)] = 1000
    trusted_proxies: Annotated[tuple[AddressRange, ...], PlainValidator(_networks), NoDecode] = ()
    mcp_allowed_hosts: Annotated[tuple[str, ...], PlainValidator(_host_names), NoDecode] = ()
    buffer_bytes: Annotated[int, _size(64 * MIB, 1024 * GIB)] = 256 * MIB
    upload_max_bytes: Annotated[int, _size(MIB, 1024 * GIB)] = 100 * MIB
    executions_keep_s: _Kept = 7 * DAY_S
    executions_keep: _KeptRows = 50_000
    executions_max_bytes: Annotated[int, _size(16 * MIB, 1024 * GIB)] = 256 * MIB
    events_keep_s: _Kept = 7 * DAY_S
    events_keep: _KeptRows = 100_000
    sandboxes_keep_s: _Kept = 7 * DAY_S
    sandboxes_keep: _KeptRows = 10_000
    suspended_keep_s: _Kept = 7 * DAY_S
    packages_max_bytes: Annotated[int, _size(64 * MIB, 16 * 1024 * GIB)] = 10 * GIB
    packages_ttl_s: Annotated[float, _number(0.0, 30 * DAY_S)] = 1800.0
    registries: Annotated[tuple[ImageSource, ...], PlainValidator(_registries), NoDecode] = ()
    image_aliases: Annotated[tuple[ImageAlias, ...], PlainValidator(_aliases), NoDecode] = ()
    network_allowed: Annotated[tuple[NetworkMode, ...] | None, PlainValidator(_modes), NoDecode] = None
    network_mbit: Annotated[int, _whole(0, 100_000)] = 0
    network_private: Annotated[tuple[AddressRange, ...], PlainValidator(_networks), NoDecode] = ()
    preview_host: Annotated[str | None, PlainValidator(_text)] = None
    preview_port: Annotated[int | None, _whole(0, 65535)] = None
    preview_domain: Annotated[PreviewAddress | None, PlainValidator(_domain)] = None
    preview_tls_cert: Annotated[Path | None, PlainValidator(_folder)] = None
    preview_tls_key: Annotated[Path | None, PlainValidator(_folder)] = None
    agent_models: Annotated[Path | None, PlainValidator(_folder)] = None
    agent_mcp_servers: Annotated[Path | None, PlainValidator(_folder)] = None
    agent_model_requests: Annotated[int, _whole(1, 10_000)] = 50
    agent_tool_calls: Annotated[int, _whole(1, 10_000)] = 100
    agent_run_s: Annotated[float, _number(1.0, DAY_S)] = 1200.0
    agent_session_tokens: Annotated[int | None, _whole(1, 2**53)] = None
    agent_session_cost_usd: Annotated[float | None, _number(0.0)] = None
    agent_sessions_keep_s: _Kept = 30 * DAY_S
    agent_runs_per_key: Annotated[int, _whole(1, 1000)] = 4
    agent_runs: Annotated[int, _whole(1, 1000)] = 16
    low_latency: Annotated[str, _one_of("off", "on")] = "off"
    idle_exit_s: Annotated[float, _number(1.0)] = 600.0
    log_level: Annotated[str, _one_of("debug", "info", "warning", "error")] = "info"
    log_format: Annotated[str, _one_of("auto", "text", "json")] = "auto"

    @property
    def socket(self) -> Path:
        """Unix socket of this service."""
        return self.data_dir / "sandlot.sock"

    @property
    def database(self) -> Path | str:
        """File of the SQLite database, or URL of the PostgreSQL database."""
        return self.database_url or self.data_dir / DATABASE

    @property
    def files(self) -> Path:
        """Folder with the contents of the file store."""
        return self.data_dir / "files"

    @property
    def builds(self) -> Path:
        """Folder of builds of templates: layers, uploads and temporary files."""
        return self.data_dir / "builds"

    @property
    def build_uploads(self) -> Path:
        """Folder with the archives that clients upload for builds."""
        return self.builds / "uploads"

    @property
    def layers(self) -> Path:
        """Folder with the layers of users' templates."""
        return self.builds / "layers"

    @property
    def saved(self) -> Path:
        """Folder of hibernation images and snapshots."""
        return self.data_dir / "saved"

    @property
    def volumes(self) -> Path:
        """Folder of the volumes."""
        return self.data_dir / "volumes"

    @property
    def packages(self) -> Path:
        """Folder of the package cache."""
        return self.cache_dir / "packages"

    @property
    def recipes(self) -> Mapping[str, Recipe]:
        """Recipes of all templates, internal ones included, by name.

        Raises:
            InvalidRequestError: A recipe of the folder is invalid, or the folder cannot be read.
        """
        return load_recipes(self.recipes_dir, dict(self.template_aliases))

    @property
    def aliases(self) -> ImageAliases:
        """Templates and images that stand for others in builds of templates."""
        return ImageAliases(self.image_aliases, [source.name for source in self.registries])

    @property
    def allocates_disks(self) -> bool:
        """True if the disks of sandboxes and volumes have their space on the host from the beginning."""
        return self.disk_ratio <= 1

    @property
    def overcommit(self) -> OvercommitConfig:
        """Shares of the host's memory, disk space and tasks that can be reserved."""
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
    def agent_limits(self) -> HostedRunLimits:
        """Limits of the runs of agents."""
        return HostedRunLimits(
            model_requests=self.agent_model_requests,
            tool_calls=self.agent_tool_calls,
            run_s=self.agent_run_s,
            session_tokens=self.agent_session_tokens,
            session_cost_usd=self.agent_session_cost_usd,
            runs_per_key=self.agent_runs_per_key,
            runs=self.agent_runs,
            session_keep_s=self.agent_sessions_keep_s,
        )

    @property
    def retention(self) -> Keep:
        """Limits of time and number for which records of the past are kept."""
        return Keep(
            executions_s=self.executions_keep_s,
            executions=self.executions_keep,
            executions_bytes=self.executions_max_bytes,
            events_s=self.events_keep_s,
            events=self.events_keep,
            sandboxes_s=self.sandboxes_keep_s,
            sandboxes=self.sandboxes_keep,
        )

    @classmethod
    def load(
        cls, env: Mapping[str, str] | None = None, *, host: str | None = None, port: int | None = None, preview_port: int | None = None
    ) -> Settings:
        """Read the settings. Options of the command line come before variables, variables before the file.

        Args:
            env: Environment; None: the environment of this process.
            host: Option of the command line.
            port: Option of the command line.
            preview_port: Option of the command line.

        Raises:
            InvalidRequestError: A value is invalid, the file is invalid or cannot be read, or has an unknown key.
        """
        variables = os.environ if env is None else env
        file = Path(variables.get(CONFIG_VARIABLE) or CONFIG_FILE)
        given = {name: value for name, value in {"host": host, "port": port, "preview_port": preview_port}.items() if value is not None}
        sources = [
            _Source(lambda name: f"--{name.replace('_', '-')}", given, "Correct the option."),
            _Source(lambda name: f"{PREFIX}{name.upper()}", _Environment(_model(), variables)(), "Correct the variable, or unset it."),
            _Source(lambda name: f"`{name}` in {file}", _read_file(file, is_required=CONFIG_VARIABLE in variables), f"Correct the line in {file}."),
        ]
        values = _home_directories(variables)
        for source in reversed(sources):
            values |= source.values
        try:
            parsed = _model()(**values)
        except ValidationError as error:
            _refuse(error, sources)
        settings = cls(**{each.name: getattr(parsed, each.name) for each in fields(cls)})
        if settings.isolation_default not in settings.isolation_allowed:
            allowed = ", ".join(settings.isolation_allowed) or "which is empty"
            raise _error("isolation_default", settings.isolation_default, _NotAllowedError(f"one of SANDLOT_ISOLATION_ALLOWED ({allowed})"), sources)
        if settings.recipes_dir is not None or settings.pools:
            templates = sorted(name for name, recipe in settings.recipes.items() if not recipe.internal)
            unknown = [pool.template for pool in settings.pools or () if pool.template not in templates]
            if unknown:
                raise _error("pools", unknown[0], _NotAllowedError(f"pools of these templates: {', '.join(templates)}"), sources)
        return settings


@dataclass(frozen=True, slots=True)
class _Source:
    """Values of one source.

    Args:
        describe: Function that returns what a field is called in this source.
        hint: Remedy for an invalid value.
    """

    describe: Callable[[str], str]
    values: Mapping[str, Any]
    hint: str


class _Environment(EnvSettingsSource):
    """Variables of an environment. A variable that is empty counts as unset."""

    def __init__(self, model: type[BaseSettings], env: Mapping[str, str]) -> None:
        self._env = env
        super().__init__(model)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return {name.lower(): value.strip() for name, value in self._env.items() if name.startswith(PREFIX) and value.strip()}


class _Model(BaseSettings):
    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", validate_default=False)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read only the values that are passed: :meth:`Settings.load` must know the source of each value for its errors."""
        return (init_settings,)


@cache
def _model() -> type[_Model]:
    """Return a model that has the fields of :class:`Settings` and parses their values."""
    hints = get_type_hints(Settings, include_extras=True)
    definitions: dict[str, Any] = {each.name: (hints[each.name], each.default) for each in fields(Settings)}
    return create_model("SettingsModel", __base__=_Model, **definitions)


def _read_file(file: Path, *, is_required: bool) -> Mapping[str, Any]:
    try:
        if not file.exists() and not is_required:
            return {}
        file.open("rb").close()
        return TomlConfigSettingsSource(_model(), file)()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidRequestError(
            f"The file of settings {file} cannot be read: {reason}.",
            hint="Correct the file, or set SANDLOT_CONFIG to another file.",
            fields={"file": str(file)},
        ) from None


def _home_directories(env: Mapping[str, str]) -> dict[str, Any]:
    """Return the default directories of a user who is not root."""
    if os.geteuid() == 0:
        return {}
    home = Path(env.get("HOME") or "/nonexistent")
    return {"data_dir": home / ".local/share/sandlot", "cache_dir": home / ".cache/sandlot"}


def _refuse(error: ValidationError, sources: list[_Source]) -> Never:
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0])
    cause = first.get("ctx", {}).get("error")
    if not isinstance(cause, _NotAllowedError):
        message = f"{next(source for source in sources if name in source.values).describe(name)} is not a setting."
        raise InvalidRequestError(
            message, hint="Remove the key, or correct its name; docs/reference/settings.md lists all settings.", fields={"setting": name}
        ) from None
    raise _error(name, first["input"], cause, sources) from None


def _error(name: str, value: object, cause: _NotAllowedError, sources: list[_Source]) -> InvalidRequestError:
    source = next((source for source in sources if name in source.values), sources[1])
    shown = cause.shown or repr(value)[:_MAX_SHOWN]
    return InvalidRequestError(
        f"{source.describe(name)} is {shown}; it must be {cause.allowed}.", hint=source.hint, fields={"setting": source.describe(name)}
    )


def _spelled(size: int) -> str:
    unit, bytes_ = next(((unit, bytes_) for unit, bytes_ in (("TiB", 1024 * GIB), ("GiB", GIB), ("MiB", MIB)) if size >= bytes_), ("bytes", 1))
    return f"{size // bytes_} {unit}"
