"""Bodies, queries, headers and paths of requests. Pure."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Unpack
from urllib.parse import quote, urlsplit

from sandlot.model.access import Quota
from sandlot.model.errors import InvalidRequestError
from sandlot.model.network import NetworkMode
from sandlot.model.sizes import parse_size
from sandlot.model.specs import DISK_RANGE_BYTES, KIB, MEMORY_RANGE_BYTES, check_size
from sandlot.sdk.models.network import Network
from sandlot.sdk.models.programs import ProgramOptions
from sandlot.sdk.models.volumes import Mount

PAGE_SIZE = 100
"""Default number of items of a page."""


def quota_body(quota: Quota) -> dict[str, Any]:
    """Return the JSON object of a quota."""
    return asdict(quota)


def batch_body(programs: Iterable[Mapping[str, Any]], concurrency: int | None) -> dict[str, Any]:
    """Return the body of a request that runs a batch of programs.

    Raises:
        InvalidRequestError: A program has an unknown option or an invalid size.
    """
    return {"items": [_item(**program) for program in programs], **omit_none(concurrency=concurrency)}


def _item(language: Any = None, code: Any = None, **options: Unpack[ProgramOptions]) -> dict[str, Any]:  # noqa: ANN401 - the service checks the types
    unknown = options.keys() - ProgramOptions.__annotations__.keys()
    if unknown:
        raise InvalidRequestError(
            f"Unknown options of a program: {', '.join(sorted(unknown))}.",
            hint=f"The options are language, code, {', '.join(ProgramOptions.__annotations__)}.",
        )
    files, envs, cases = options.get("files"), options.get("envs"), options.get("cases")
    limits = limits_body(cpus=options.get("cpus"), memory=options.get("memory"), disk=options.get("disk"), pids=options.get("pids"))
    unchanged = ("stdin", "timeout", "expected_output", "comparison", "tolerance", "check_types", "output_bytes", "template", "isolation")
    return omit_none(
        language=language,
        code=code,
        files=None if files is None else {path: _content(content) for path, content in files.items()},
        env=None if envs is None else dict(envs),
        cases=None if cases is None else [dict(case) for case in cases],
        limits=limits or None,
        **{name: options.get(name) for name in unchanged},
    )


def _content(content: str | bytes) -> str | dict[str, str]:
    return content if isinstance(content, str) else {"content": base64.b64encode(content).decode(), "encoding": "base64"}


def mounts_body(volumes: Mapping[str, str | Mount]) -> list[dict[str, Any]]:
    """Return the volumes of a new sandbox as requests carry them.

    Args:
        volumes: Volumes by path: the name or id of a volume, or a mount; the ``path`` of a mount is not used.
    """
    mounts = ((path, Mount(volume) if isinstance(volume, str) else volume) for path, volume in volumes.items())
    return [{"volume": mount.volume, "path": path, **omit_none(read_only=mount.read_only or None)} for path, mount in mounts]


def idempotency_headers(key: str | None = None) -> dict[str, str]:
    """Return the header with which the service carries out repeated requests once.

    Args:
        key: Key of the caller. None: a new key.
    """
    return {"Idempotency-Key": key or uuid.uuid4().hex}


def encode_text(text: str, what: str = "text") -> bytes:
    """Return text as UTF-8.

    Args:
        text: Text.
        what: Name of the text in the error.

    Raises:
        InvalidRequestError: The text has lone surrogates, which Python uses for bytes that are not UTF-8.
    """
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError(f"The {what} is not valid Unicode text.", hint="Pass binary content as bytes, in a file.") from None


def encode_body(body: Mapping[str, Any]) -> bytes:
    """Return a body as JSON.

    Raises:
        InvalidRequestError: JSON cannot represent a value.
    """
    try:
        return encode_text(json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False), "request")
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(f"The request cannot be sent as JSON: {error}.", hint="Pass finite numbers and text.") from error


def omit_none(**fields: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def path_segment(text: str) -> str:
    """Return text encoded as one segment of a path."""
    return quote(text, safe="") or "%20"


def rebase_url(url: str, base_url: str | None) -> str:
    """Return a URL of the service with the address by which this client reaches it, which differs behind a proxy.

    Args:
        url: Absolute URL, or a path.
        base_url: Address that the client uses; None keeps the URL unchanged.
    """
    parts = urlsplit(url)
    return url if base_url is None else f"{base_url.rstrip('/')}{parts.path}?{parts.query}"


def limits_body(*, cpus: float | None, memory: int | str | None, disk: int | str | None, pids: int | None) -> dict[str, Any]:
    """Return the given limits as requests carry them.

    Raises:
        InvalidRequestError: A size is invalid or out of range. A number that was meant in MiB is the usual case.
    """
    return omit_none(
        cpus=cpus,
        memory_bytes=None if memory is None else _limit_bytes("memory", memory, *MEMORY_RANGE_BYTES),
        disk_bytes=None if disk is None else _limit_bytes("disk", disk, *DISK_RANGE_BYTES),
        pids=pids,
    )


def _limit_bytes(name: str, value: int | str, smallest_bytes: int, largest_bytes: int) -> int:
    size_bytes = parse_size(value)
    check_size(name, size_bytes, smallest_bytes, largest_bytes, hint='Pass bytes, or a string with a unit such as "512M".')
    return size_bytes


def sandbox_body(  # noqa: PLR0913 - passed by name
    *,
    template: str | None,
    snapshot: str | None,
    name: str | None,
    metadata: Mapping[str, str] | None,
    envs: Mapping[str, str] | None,
    timeout: float | None,
    persistent: bool,
    idle_timeout: float | None,
    on_timeout: str | None,
    auto_resume: bool | None,
    limits: Mapping[str, Any],
    isolation: str | None,
    network: Network | str | Iterable[str] | None,
    volumes: Mapping[str, str | Mount] | None,
    file_ids: Iterable[str] | None,
    cwd: str | None,
    public_ports: bool,
    mask_request_host: str | None,
) -> dict[str, Any]:
    """Return the body of a request that creates a sandbox."""
    return omit_none(
        template=template,
        snapshot=snapshot,
        name=name,
        metadata=None if metadata is None else dict(metadata),
        env=None if envs is None else dict(envs),
        timeout=timeout,
        persistent=persistent or None,
        idle_timeout=idle_timeout,
        on_timeout=on_timeout,
        auto_resume=auto_resume,
        limits=dict(limits) or None,
        isolation=isolation,
        network=network_body(network),
        volumes=None if volumes is None else mounts_body(volumes),
        file_ids=None if file_ids is None else list(file_ids),
        cwd=cwd,
        public_ports=public_ports or None,
        mask_request_host=mask_request_host,
    )


def network_body(network: Network | str | Iterable[str] | None) -> dict[str, Any] | None:
    """Return a network policy for a request, given a policy, its mode, or the rules of an allowlist."""
    if network is None:
        return None
    if isinstance(network, str):
        return {"mode": network}
    if not isinstance(network, Network):
        return {"mode": str(NetworkMode.ALLOWLIST), "allow": list(network)}
    rules = omit_none(allow=list(network.allow) or None, deny=list(network.deny) or None)
    return {"mode": network.mode, **rules, **omit_none(packages=network.packages)}


def sandboxes_query(*, state: str | Iterable[str] | None, metadata: Mapping[str, str] | None, ended: bool, name: str | None = None) -> dict[str, Any]:
    """Return the query of a list of sandboxes."""
    states = state if isinstance(state, str) or state is None else ",".join(state)
    entries = [f"{key}={value}" for key, value in (metadata or {}).items()]
    return omit_none(state=states, metadata=entries or None, ended="true" if ended else None, name=name)


def page_size(left: int | None) -> int | None:
    """Return the number of items to request when so many are left; None for the default of the service."""
    return None if left is None or left >= PAGE_SIZE else left


def process_body(
    command: str | Sequence[str],
    *,
    envs: Mapping[str, str] | None,
    cwd: str | None,
    user: str | None,
    timeout: float | None,
    background: bool,
    stdin: str | None,
    stdin_open: bool,
    tag: str | None = None,
) -> dict[str, Any]:
    """Return the body that starts a process. A ``timeout`` of None is sent, because it means "no limit"."""
    start: dict[str, Any] = {"command": command} if isinstance(command, str) else {"argv": [str(part) for part in command]}
    options = omit_none(env=None if envs is None else dict(envs), cwd=cwd, user=user, stdin=stdin, tag=tag)
    if stdin_open:
        options["stdin_open"] = True
    if background:
        options["background"] = True
    return {**start, **options, "timeout": timeout}


def split_stdin(data: str | bytes, inline_bytes: int = 64 * KIB) -> tuple[str | None, bytes]:
    """Divide standard input into a part of the request that starts the process, and bytes that are sent separately.

    Returns:
        Short text for the request and no bytes, or None and all bytes.
    """
    raw = encode_text(data, "standard input") if isinstance(data, str) else data
    if len(raw) <= inline_bytes:
        try:
            return raw.decode(), b""
        except UnicodeDecodeError:
            pass
    return None, raw
