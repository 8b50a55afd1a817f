"""Sandbase's words into ours and back. Pure.

Laws:
- The template that was asked for is given back by that name; it is in the sandbox's metadata, among the service's own words, which are hidden here.
- A sandbox is told with the vendor's fields and with E2B's, whose wire it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from sandlot.compat.common import TEMPLATE_KEY, VENDOR_KEY, rfc3339_ms
from sandlot.compat.e2b_conventions import CLIENT_ID, ENVD_VERSION, NEVER
from sandlot.compat.sandbase.schemas import ProcessBody, SandboxBody
from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError, NotFoundError, UnsupportedError
from sandlot.model.executions import CommandResult, exit_code
from sandlot.model.files import Entry
from sandlot.model.network import NetworkMode, NetworkPolicy
from sandlot.model.sandboxes import RESERVED_PREFIX, CreateSandboxParams, SandboxInfo, SandboxUsage, check_reserved_names
from sandlot.model.service import TemplateInfo
from sandlot.model.specs import MIB, WORKSPACE, Limits, OnTimeout, ProcessSpec
from sandlot.model.states import State

NAME = "sandbase"

TEMPLATES: Mapping[str, tuple[str, str]] = MappingProxyType({"code_interpreter": ("code-interpreter", "Code Interpreter"), "base": ("base", "Base")})
"""What Sandbase calls a template -> ours, and its name for people."""

DEFAULT_TIMEOUT_S: Final = 300.0
MOST_TIMEOUT_S: Final = 3600.0
DEFAULT_PROCESS_S: Final = 60.0
INLINE_BYTES: Final = MIB
"""Of a file that is told inside of JSON."""

STATUSES: Mapping[State, str] = MappingProxyType(
    {
        State.CREATING: "creating",
        State.RUNNING: "running",
        State.SNAPSHOTTING: "running",
        State.PAUSING: "paused",
        State.PAUSED: "paused",
        State.HIBERNATING: "paused",
        State.HIBERNATED: "paused",
        State.WAKING: "paused",
        State.STOPPING: "stopped",
        State.STOPPED: "stopped",
        State.FAILED: "error",
    }
)
PAUSED: Final = "paused"
LIVE: Final = frozenset({"creating", "running", PAUSED})
E2B_STATES: Final = frozenset({"running", PAUSED})
"""All that E2B's client knows."""


def statuses(asked: str | None) -> Collection[str]:
    """Which sandboxes a list is to hold.

    Raises:
        InvalidRequestError: There is no such status.
    """
    if asked is None:
        return LIVE
    if asked not in STATUSES.values():
        known = ", ".join(dict.fromkeys(STATUSES.values()))
        raise InvalidRequestError(f"invalid status filter: {asked[:64]}.", hint=f"There are: {known}.", fields={"field": "status"})
    return {asked}


def ours(template: str, known: Collection[str]) -> str:
    """What we call a template.

    Raises:
        NotFoundError: ``template_not_found``: there is none of that name; says which there are.
    """
    name = TEMPLATES[template][0] if template in TEMPLATES else template
    if name not in known:
        raise NotFoundError(
            f"unknown template: {template[:64]}.",
            code=ErrorCode.TEMPLATE_NOT_FOUND,
            hint=f"There are: {', '.join(names(known))}. Install what else is needed in one of these.",
            fields={"template": template[:64]},
        )
    return name


def names(known: Collection[str]) -> list[str]:
    """What templates may be called, given ours."""
    return sorted({*known, *(theirs for theirs, (own, _) in TEMPLATES.items() if own in known)})


def template(theirs: str, about: TemplateInfo) -> dict[str, Any]:
    """A template."""
    limits = Limits()
    return {
        "templateID": theirs,
        "name": TEMPLATES[theirs][1] if theirs in TEMPLATES else theirs,
        "description": about.description,
        "defaultTimeout": int(DEFAULT_TIMEOUT_S),
        "buildID": about.digest or "",
        "buildStatus": "ready" if about.digest is not None else "building" if about.building else "waiting",
        "cpuCount": max(1, round(limits.cpus)),
        "memoryMB": limits.memory_bytes // MIB,
        "diskSizeMB": limits.disk_bytes // MIB,
        "public": True,
        "aliases": [theirs],
    }


def templates(known: Sequence[TemplateInfo]) -> list[tuple[str, TemplateInfo]]:
    """All templates, each by the name that Sandbase has for it, or ours where it has none."""
    called = {own: theirs for theirs, (own, _) in TEMPLATES.items()}
    return [(called.get(each.name, each.name), each) for each in known]


def timeout(seconds: float | None, default_s: float = DEFAULT_TIMEOUT_S, field: str = "timeout") -> float:
    """A timeout of a sandbox.

    Raises:
        InvalidRequestError: It is out of the vendor's bounds.
    """
    if seconds is None:
        return default_s
    if not 1 <= seconds <= MOST_TIMEOUT_S:
        raise InvalidRequestError(f"{field} is {seconds:g}; it must be from 1 to {MOST_TIMEOUT_S:g} seconds.", fields={"field": field})
    return seconds


def new_sandbox(body: SandboxBody, known: Collection[str]) -> CreateSandboxParams:
    """A sandbox as core makes it.

    Args:
        body: As it was asked for.
        known: Our templates.

    Raises:
        NotFoundError: ``template_not_found``.
        InvalidRequestError: A timeout out of bounds, or a name in the metadata that is the service's own.
        UnsupportedError: It asks for the internet.
    """
    metadata, name = body.metadata or {}, ours(body.template_id, known)
    check_reserved_names(metadata)
    if body.allow_internet_access:
        raise UnsupportedError(
            "allowInternetAccess: true cannot be had yet: it is refused rather than ignored.",
            code=ErrorCode.UNSUPPORTED,
            hint="Leave it out: pip, npm and apt work. Bring what else the code needs in as files.",
            fields={"field": "allowInternetAccess"},
        )
    return CreateSandboxParams(
        template=name,
        env={"E2B_SANDBOX": "true", "E2B_TEMPLATE_ID": body.template_id, **(body.env_vars or {})},
        metadata={**metadata, VENDOR_KEY: NAME, TEMPLATE_KEY: body.template_id},
        timeout_s=timeout(body.timeout),
        network=NetworkPolicy(NetworkMode.NONE) if body.allow_internet_access is False else None,
        on_timeout=OnTimeout.HIBERNATE if body.auto_pause else OnTimeout.KILL,
        auto_resume=False,
    )


def sandbox(sandbox: SandboxInfo, token: str | None = None) -> dict[str, Any]:
    """A sandbox.

    Args:
        sandbox: It.
        token: What opens it to E2B's client; None is not told.
    """
    told, limits = status(sandbox), sandbox.spec.limits
    return {
        "sandboxID": sandbox.id,
        "templateID": template_of(sandbox),
        "clientID": CLIENT_ID,
        "status": told,
        "state": told,
        "metadata": {name: value for name, value in sandbox.metadata.items() if not name.startswith(RESERVED_PREFIX)},
        "startedAt": rfc3339_ms(sandbox.created_at),
        "endAt": rfc3339_ms(sandbox.ended_at or sandbox.expires_at or NEVER),
        "cpuCount": max(1, round(limits.cpus)),
        "memoryMB": limits.memory_bytes // MIB,
        "diskSizeMB": limits.disk_bytes // MIB,
        "envdVersion": ENVD_VERSION,
        "domain": None,
        **({} if token is None else {"envdAccessToken": token}),
    }


def status(sandbox: SandboxInfo) -> str:
    """A sandbox's state in the vendor's words."""
    return STATUSES[sandbox.state]


def template_of(sandbox: SandboxInfo) -> str:
    """What its template was called when it was asked for."""
    return sandbox.metadata.get(TEMPLATE_KEY, sandbox.spec.template.name)


def not_active(sandbox: SandboxInfo) -> ConflictError:
    """What is said of a paused sandbox that has to run."""
    return ConflictError(
        f"Sandbox {sandbox.id} is {sandbox.state}.",
        code=ErrorCode.SANDBOX_PAUSED,
        hint="Resume the sandbox first.",
        fields={"sandbox": sandbox.id, "state": str(sandbox.state)},
    )


def envs(sandbox: SandboxInfo) -> dict[str, str]:
    """What every process starts with besides the template's own environment."""
    return {"E2B_SANDBOX": "true", "E2B_SANDBOX_ID": sandbox.id, "E2B_TEMPLATE_ID": template_of(sandbox), **sandbox.spec.env}


def process(body: ProcessBody, sandbox: SandboxInfo) -> ProcessSpec:
    """A command as core runs it.

    Raises:
        InvalidRequestError: It is none, or out of bounds.
    """
    return ProcessSpec(
        argv=(body.cmd, *(body.args or ())),
        env={**envs(sandbox), **(body.env_vars or {})},
        cwd=body.cwd or WORKSPACE,
        timeout_s=timeout(body.timeout, DEFAULT_PROCESS_S),
    )


def outcome(done: CommandResult) -> dict[str, Any]:
    """How a command ended that ran to its end."""
    return {
        "stdout": done.stdout.text(),
        "stderr": done.stderr.text(),
        "exitCode": exit_code(done.outcome.exit_code, done.outcome.signal),
        "processID": done.outcome.process,
    }


def entry(found: Entry) -> dict[str, Any]:
    """What is at a path."""
    folder = found.kind == "directory"
    return {"name": found.name, "path": found.path, "isDir": folder, "type": "dir" if folder else "file", "size": 0 if folder else found.size}


def metrics(used: SandboxUsage, now: datetime, lived_s: float) -> dict[str, Any]:
    """What a sandbox uses; of the processor the average over its life."""
    usage, limits = used.usage, used.limits
    return {
        "ts": int(now.timestamp()),
        "cpu_count": max(1, round(limits.cpus)),
        "cpu_used_pct": round(100 * usage.cpu_s / max(0.001, lived_s), 2),
        "mem_total": limits.memory_bytes,
        "mem_used": usage.memory_bytes,
        "mem_cache": 0,
        "mem_total_mib": limits.memory_bytes // MIB,
        "mem_used_mib": usage.memory_bytes // MIB,
        "disk_total": limits.disk_bytes,
        "disk_used": usage.disk_bytes,
    }


def e2b_metrics(used: SandboxUsage, now: datetime, lived_s: float) -> dict[str, Any]:
    """The same in the words of E2B's client."""
    told = metrics(used, now, lived_s)
    words = {"cpu_count": "cpuCount", "cpu_used_pct": "cpuUsedPct", "mem_used": "memUsed", "mem_total": "memTotal", "mem_cache": "memCache"}
    words |= {"disk_used": "diskUsed", "disk_total": "diskTotal"}
    return {"timestamp": rfc3339_ms(now), "timestampUnix": told["ts"], **{theirs: told[ours_] for ours_, theirs in words.items()}}
