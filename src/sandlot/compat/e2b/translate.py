"""E2B's words into ours and back. Pure.

Laws:
- The template that was asked for is given back by that name; it is in the sandbox's metadata, among the service's own words, which are hidden here.
- A sandbox that E2B's client made is a sandbox like any other, and any other of the same key is one for E2B's client.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any

from sandlot.compat.common import TEMPLATE_KEY, VENDOR_KEY, client_metadata, rfc3339_ms
from sandlot.compat.e2b.control.schemas import CreateBody, NetworkBody
from sandlot.compat.e2b_conventions import CLIENT_ID, ENVD_VERSION, NEVER
from sandlot.model.errors import ErrorCode, NotFoundError, UnsupportedError
from sandlot.model.network import NetworkMode, NetworkPolicy
from sandlot.model.sandboxes import CreateSandboxParams, SandboxInfo, check_reserved_names
from sandlot.model.specs import MIB, OnTimeout, VolumeMount
from sandlot.model.states import State

NAME = "e2b"

TEMPLATES: Mapping[str, str] = MappingProxyType({"base": "base", "code-interpreter-v1": "code-interpreter", "code-interpreter": "code-interpreter"})
"""What E2B calls a template -> ours."""

RUNNING, PAUSED = "running", "paused"
STATES: Mapping[State, str] = MappingProxyType(
    {
        State.RUNNING: RUNNING,
        State.SNAPSHOTTING: RUNNING,
        State.PAUSING: PAUSED,
        State.PAUSED: PAUSED,
        State.HIBERNATING: PAUSED,
        State.HIBERNATED: PAUSED,
        State.WAKING: PAUSED,
    }
)
"""Our state -> E2B's; a sandbox in any other is none there."""

ALL_TRAFFIC = "0.0.0.0/0"

_FIXED = "It is refused rather than ignored. pip, npm and apt work all the same, through the service's package indexes."
_LEAST_TIMEOUT_S = 1.0


def plain(name: str) -> str:
    """A template's name without the tag that says its newest build: there is only one."""
    return name.removesuffix(":latest").removesuffix(":default")


def ours(name: str) -> str:
    """What we call a template of E2B's; any other name as it is."""
    return TEMPLATES.get(plain(name), plain(name))


def names(known: Collection[str]) -> list[str]:
    """What templates may be called, given ours."""
    return sorted({*known, *(theirs for theirs, own in TEMPLATES.items() if own in known)})


def names_of(template: str) -> list[str]:
    """All that one of our templates may be called."""
    return [template, *(theirs for theirs, own in TEMPLATES.items() if own == template and theirs != template)]


def no_template(name: str, known: Collection[str]) -> NotFoundError:
    """What is told of a template that there is not."""
    return NotFoundError(
        f"There is no template or snapshot {name[:64]!r}.",
        code=ErrorCode.TEMPLATE_NOT_FOUND,
        hint=f"Templates are: {', '.join(names(known))}. Templates of one's own are not built here; snapshots are listed by GET /snapshots.",
        fields={"template": name[:64]},
    )


def new_sandbox(body: CreateBody, timeout_s: float, *, snapshot: str | None = None) -> CreateSandboxParams:
    """A sandbox as core makes it.

    Args:
        body: As it was asked for.
        timeout_s: Its timeout where the body has none.
        snapshot: The snapshot that it starts from; None is a template.

    Raises:
        InvalidRequestError: A name in the metadata is the service's own.
        UnsupportedError: It asks for what is not enforced here.
    """
    metadata = body.metadata or {}
    check_reserved_names(metadata)
    check_unsupported(body)
    return CreateSandboxParams(
        template=None if snapshot is not None else ours(body.template_id),
        snapshot=snapshot,
        env=body.env_vars or {},
        metadata={**metadata, VENDOR_KEY: NAME, TEMPLATE_KEY: body.template_id},
        timeout_s=timeout_s if body.timeout is None else timeout(body.timeout),
        network=network_of(allow=body.allow_internet_access, network=body.network),
        on_timeout=OnTimeout.HIBERNATE if body.auto_pause else OnTimeout.KILL,
        auto_resume=body.auto_resume is not None and body.auto_resume.enabled,
        volumes=tuple(VolumeMount(each.name, each.path) for each in body.volume_mounts or ()),
    )


def timeout(seconds: float) -> float:
    """A timeout as core takes it: E2B's may be 0, which ends a sandbox as soon as possible."""
    return _LEAST_TIMEOUT_S if 0 <= seconds < _LEAST_TIMEOUT_S else seconds


def check_unsupported(body: CreateBody) -> None:
    """Refuse what is asked for and means nothing here.

    Raises:
        UnsupportedError: It is; says what to do.
    """
    if not body.auto_pause_memory:
        raise without_memory("autoPauseMemory")
    if body.mcp:
        raise _unsupported("An MCP gateway", "Start the MCP server in the sandbox by a command.", "mcp")
    if any((body.iam or {}).values()):
        raise _unsupported("Workload identity", "Give what the code needs to know as envs.", "iam")
    if body.secure is False:
        raise _unsupported("A sandbox without a token", "Leave it out: clients show the token by themselves.", "secure")


def network_of(*, allow: bool | None, network: NetworkBody | None) -> NetworkPolicy | None:
    """The network policy that was asked for; None where nothing was said that differs from the default.

    Raises:
        UnsupportedError: It cannot be enforced.
    """
    if allow:  # no client says so unless it was told to
        raise _unsupported("Internet access", f"Leave allow_internet_access out. {_FIXED}", "allow_internet_access")
    asked = network or NetworkBody()
    for name, given in asked.beyond().items():
        raise _unsupported(f"'{name}' of the network ({str(given)[:50]})", _FIXED, f"network.{name}")
    closed = False
    if asked.deny_out:
        if set(asked.deny_out) != {ALL_TRAFFIC} or asked.allow_out:
            raise _unsupported("A list of denied addresses", f"{_FIXED} deny_out=['{ALL_TRAFFIC}'] alone closes the network.", "network.denyOut")
        closed = True
    if asked.allow_out:
        raise _unsupported("A list of allowed addresses", _FIXED, "network.allowOut")
    return NetworkPolicy(NetworkMode.NONE) if closed or allow is False else None


def check_same_network(sandbox: SandboxInfo, wanted: NetworkPolicy | None) -> None:
    """Refuse a change of a sandbox's network; what it has may be said again.

    Raises:
        UnsupportedError: It would be another one.
    """
    if (wanted or NetworkPolicy()).mode is not sandbox.spec.network.mode:
        raise _unsupported("Changing the network of a sandbox that runs", "Give allow_internet_access when you create it.", "network")


def without_memory(field: str) -> UnsupportedError:
    """What is told of a pause that is to keep files alone, or a resume that is to boot."""
    return _unsupported("A pause, or a resume, without memory", "Take a snapshot of the files alone (memory=false), and start from that.", field)


def _unsupported(what: str, hint: str, field: str) -> UnsupportedError:
    return UnsupportedError(f"{what} is not there in Sandlot.", code=ErrorCode.UNSUPPORTED, hint=hint, fields={"field": field})


# ------------------------------------------------------------------------------------------------------------------------ what is told


def made(sandbox: SandboxInfo, token: str) -> dict[str, Any]:
    """A sandbox as whoever made it, or connects to it, is told of it, with what stands for a key inside of it."""
    return {**_named(sandbox), "envdAccessToken": token, "trafficAccessToken": token, "domain": None}


def listed(sandbox: SandboxInfo) -> dict[str, Any]:
    """A sandbox as lists tell of it."""
    limits = sandbox.spec.limits
    return {
        **_named(sandbox),
        "startedAt": rfc3339_ms(sandbox.created_at),
        "endAt": rfc3339_ms(sandbox.expires_at or NEVER),
        "cpuCount": max(1, round(limits.cpus)),
        "memoryMB": limits.memory_bytes // MIB,
        "diskSizeMB": limits.disk_bytes // MIB,
        "state": STATES.get(sandbox.state, RUNNING),
        "metadata": client_metadata(sandbox.metadata),
        "volumeMounts": [{"name": each.requested_as or each.volume, "path": each.path} for each in sandbox.spec.volumes],
    }


def detailed(sandbox: SandboxInfo, token: str) -> dict[str, Any]:
    """A sandbox as it is told of where one asks for it alone."""
    return {
        **listed(sandbox),
        "envdAccessToken": token,
        "domain": None,
        "allowInternetAccess": False if sandbox.spec.network.mode is NetworkMode.NONE else None,
        "lifecycle": {"autoResume": sandbox.spec.auto_resume, "onTimeout": "kill" if sandbox.spec.on_timeout is OnTimeout.KILL else "pause"},
    }


def _named(sandbox: SandboxInfo) -> dict[str, Any]:
    name = template_name(sandbox)
    return {"templateID": name, "alias": name, "sandboxID": sandbox.id, "clientID": CLIENT_ID, "envdVersion": ENVD_VERSION}


def template_name(sandbox: SandboxInfo) -> str:
    """What its template, or its snapshot, was called when it was asked for."""
    return sandbox.metadata.get(TEMPLATE_KEY, sandbox.spec.template.name)


def is_there(sandbox: SandboxInfo) -> bool:
    """Whether E2B's client is told of it: it was made, and has not ended."""
    return sandbox.state in STATES


def left_s(sandbox: SandboxInfo) -> float:
    """Seconds until its timeout."""
    return ((sandbox.expires_at or NEVER) - sandbox.as_of) / timedelta(seconds=1)
