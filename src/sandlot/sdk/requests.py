"""Bodies, queries, headers and paths of requests. Pure."""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Unpack
from urllib.parse import quote, urlsplit

from sandlot.model.access import Quota
from sandlot.model.errors import InvalidRequestError
from sandlot.model.specs import GIB, KIB, MAX_TIMEOUT_S, MIB
from sandlot.sdk.models.programs import ProgramOptions
from sandlot.sdk.models.sandboxes import Network
from sandlot.sdk.models.volumes import Mount

PAGE_SIZE = 100
"""What the service puts on a page by default."""

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B?)\s*", re.IGNORECASE)

_UNITS = {"": 1, "K": KIB, "M": MIB, "G": GIB, "T": 1024 * GIB}


def quota_body(quota: Quota) -> dict[str, Any]:
    """A quota as the API takes it."""
    return asdict(quota)


def batch_body(programs: Iterable[Mapping[str, Any]], concurrency: int | None) -> dict[str, Any]:
    """A batch as the API takes it.

    Raises:
        InvalidRequestError: A program has what cannot be sent, or a word that is none.
    """
    return {"items": [_item(**program) for program in programs], **omit_none(concurrency=concurrency)}


def _item(language: Any = None, code: Any = None, **options: Unpack[ProgramOptions]) -> dict[str, Any]:  # noqa: ANN401 - the service looks
    unknown = options.keys() - ProgramOptions.__annotations__.keys()
    if unknown:
        raise InvalidRequestError(
            f"A program has no {', '.join(sorted(unknown))}.", hint=f"There are: language, code, {', '.join(ProgramOptions.__annotations__)}."
        )
    files, envs = options.get("files"), options.get("envs")
    limits = limits_body(cpus=options.get("cpus"), memory=options.get("memory"), disk=options.get("disk"), pids=options.get("pids"))
    as_they_are = ("stdin", "timeout", "expected_output", "comparison", "tolerance", "output_bytes", "template", "isolation")
    return omit_none(
        language=language,
        code=code,
        files=None if files is None else {path: _content(content) for path, content in files.items()},
        env=None if envs is None else dict(envs),
        limits=limits or None,
        **{name: options.get(name) for name in as_they_are},
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


def parse_size(value: int | str) -> int:
    """A size in bytes: a number as it is, or text with a unit of 1024s: ``512M``, ``1.5GiB``.

    Raises:
        InvalidRequestError: The text is no size.
    """
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value)
    if match is None:
        raise InvalidRequestError(f"{value!r} is no size.", hint="Sizes are bytes, or a number with a unit: 512M, 1.5GiB.")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def encode_text(text: str, what: str = "text") -> bytes:
    """Text as UTF-8.

    Raises:
        InvalidRequestError: It has lone surrogates, which are what Python makes of bytes that are no text.
    """
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError(f"The {what} is not valid Unicode text.", hint="Pass binary content as bytes, in a file.") from None


def encode_body(body: Mapping[str, Any]) -> bytes:
    """A request's body as JSON.

    Raises:
        InvalidRequestError: It holds something that JSON cannot carry.
    """
    try:
        return encode_text(json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False), "request")
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(f"The request cannot be sent as JSON: {error}.", hint="Numbers are finite, everything else is text.") from error


def omit_none(**fields: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """The fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def path_segment(text: str) -> str:
    """Text as one path_segment of a URL's path, whatever is in it."""
    return quote(text, safe="") or "%20"


def rebase_url(url: str, base_url: str | None) -> str:
    """A URL that the service gave, by the address that this client reaches it at: proxies between them have others. Pure.

    Args:
        url: Absolute, or a path.
        base_url: The client's; None leaves it as it is.
    """
    parts = urlsplit(url)
    return url if base_url is None else f"{base_url.rstrip('/')}{parts.path}?{parts.query}"


def limits_body(*, cpus: float | None, memory: int | str | None, disk: int | str | None, pids: int | None) -> dict[str, Any]:
    """The limits that are omit_none, as requests carry them.

    Raises:
        InvalidRequestError: A size that is none.
    """
    return omit_none(
        cpus=cpus,
        memory_bytes=None if memory is None else parse_size(memory),
        disk_bytes=None if disk is None else parse_size(disk),
        pids=pids,
    )


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
    network: Network | str | None,
    volumes: Mapping[str, str | Mount] | None,
    file_ids: Iterable[str] | None,
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
        network=None if network is None else {"mode": network.mode if isinstance(network, Network) else network},
        volumes=None if volumes is None else mounts_body(volumes),
        files=None if file_ids is None else list(file_ids),
    )


def sandboxes_query(*, state: str | Iterable[str] | None, metadata: Mapping[str, str] | None, ended: bool, name: str | None = None) -> dict[str, Any]:
    """The query that lists sandboxes."""
    states = state if isinstance(state, str) or state is None else ",".join(state)
    entries = [f"{word}={value}" for word, value in (metadata or {}).items()]
    return omit_none(state=states, metadata=entries or None, all="true" if ended else None, name=name)


def page_size(left: int | None) -> int | None:
    """How many items to ask for, of so many that are wanted; None where the service may choose."""
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
    """The body that starts a process; ``timeout`` None is sent, because it means "no limit"."""
    start: dict[str, Any] = {"command": command} if isinstance(command, str) else {"argv": [str(part) for part in command]}
    options = omit_none(env=None if envs is None else dict(envs), cwd=cwd, user=user, stdin=stdin, tag=tag)
    if stdin_open:
        options["stdin_open"] = True
    if background:
        options["background"] = True
    return {**start, **options, "timeout": timeout}


def response_wait_s(timeout_s: float | None, beyond_s: float) -> float | None:
    """How long the answer of a run may take to begin; None where the run may take for ever.

    Args:
        timeout_s: The run's own limit; one that is none is the service's to refuse, and is not waited for.
        beyond_s: How much later the answer may come.
    """
    return None if timeout_s is None else min(max(0.0, timeout_s), MAX_TIMEOUT_S) + beyond_s


def split_stdin(data: str | bytes, inline_bytes: int = 64 * KIB) -> tuple[str | None, bytes]:
    """How standard input travels: small text inside of the request, everything else beside it.

    Returns:
        The text to put into the request, or None and the bytes to send by themselves.
    """
    raw = encode_text(data, "standard input") if isinstance(data, str) else data
    if len(raw) <= inline_bytes:
        try:
            return raw.decode(), b""
        except UnicodeDecodeError:
            pass
    return None, raw
