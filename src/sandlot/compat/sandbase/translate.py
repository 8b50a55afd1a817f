"""Translation between the Sandbase API and the node. Pure.

Invariants:
- Every sandbox of the key is a sandbox of this API, whichever API created it.
- The template is returned by the name that the client passed.
- Sandbox objects also have the fields of E2B's client.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from sandlot.compat.common import TEMPLATE_KEY, VENDOR_KEY, client_metadata, rfc3339_ms
from sandlot.compat.e2b_conventions import CLIENT_ID, ENVD_VERSION, NEVER, PAUSED, RUNNING, metrics_object
from sandlot.compat.sandbase.schemas import CreateSandboxRequest, RunProcessRequest
from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError, NotFoundError
from sandlot.model.executions import CommandResult, exit_code
from sandlot.model.files import Entry
from sandlot.model.network import MOST_OPEN, NetworkMode, NetworkPolicy
from sandlot.model.paths import WORKSPACE
from sandlot.model.ports import KILLED_BY_REQUEST
from sandlot.model.sandboxes import CreateSandboxParams, SandboxInfo, SandboxUsage, check_reserved_names
from sandlot.model.service import TemplateInfo
from sandlot.model.specs import MIB, OnTimeout, ProcessSpec
from sandlot.model.states import State

VENDOR: Final = "sandbase"
"""Value of the label ``VENDOR_KEY``, origin of runs in the execution log, and name of the payload format of webhooks."""

TEMPLATES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "code_interpreter": ("code-interpreter", "Code Interpreter"),
        "claude": ("claude", "Claude Code"),
        "codex": ("codex", "Codex"),
        "desktop": ("desktop", "Desktop"),
        "base": ("base", "Base"),
    }
)
"""Name of the vendor -> name of the template, and name to display."""

DEFAULT_TIMEOUT_S: Final = 300.0
MAX_TIMEOUT_S: Final = 3600.0
DEFAULT_PROCESS_S: Final = 60.0
INLINE_BYTES: Final = MIB
"""Maximum bytes of a file whose content is returned in JSON."""

STATUSES: Mapping[State, str] = MappingProxyType(
    {
        State.CREATING: "creating",
        State.RUNNING: RUNNING,
        State.SNAPSHOTTING: RUNNING,
        State.PAUSING: PAUSED,
        State.PAUSED: PAUSED,
        State.HIBERNATING: PAUSED,
        State.HIBERNATED: PAUSED,
        State.WAKING: PAUSED,
        State.STOPPING: "stopped",
        State.STOPPED: "stopped",
        State.FAILED: "error",
    }
)
LIVE: Final = frozenset({"creating", RUNNING, PAUSED})


def parse_status_filter(status: str | None) -> Collection[str]:
    """Return the statuses of a list of sandboxes. None: those of live sandboxes.

    Raises:
        InvalidRequestError: There is no such status.
    """
    if status is None:
        return LIVE
    if status not in STATUSES.values():
        names = ", ".join(dict.fromkeys(STATUSES.values()))
        raise InvalidRequestError(f"invalid status filter: {status[:64]}.", hint=f"Use one of: {names}.", fields={"field": "status"})
    return {status}


def template_name(template: str, known: Collection[str]) -> str:
    """Return the name of a template, given the name of the vendor or of Sandlot.

    Raises:
        NotFoundError: There is no such template (code ``template_not_found``).
    """
    name = TEMPLATES[template][0] if template in TEMPLATES else template
    if name not in known:
        raise NotFoundError(
            f"unknown template: {template[:64]}.",
            code=ErrorCode.TEMPLATE_NOT_FOUND,
            hint=f"Use one of: {', '.join(template_names(known))}. Install missing packages in the sandbox.",
            fields={"template": template[:64]},
        )
    return name


def template_names(known: Collection[str]) -> list[str]:
    """Return all names of templates, given those of Sandlot."""
    return sorted({*known, *(vendor_name for vendor_name, (name, _) in TEMPLATES.items() if name in known)})


def template_object(vendor_name: str, template: TemplateInfo) -> dict[str, Any]:
    """Return the object of a template."""
    limits = template.limits
    return {
        "templateID": vendor_name,
        "name": TEMPLATES[vendor_name][1] if vendor_name in TEMPLATES else vendor_name,
        "description": template.description,
        "defaultTimeout": int(DEFAULT_TIMEOUT_S),
        "buildID": template.digest or "",
        "buildStatus": "ready" if template.digest is not None else "building" if template.building else "waiting",
        "cpuCount": max(1, round(limits.cpus)),
        "memoryMB": limits.memory_bytes // MIB,
        "diskSizeMB": limits.disk_bytes // MIB,
        "public": True,
        "aliases": [vendor_name],
    }


def vendor_names(templates: Sequence[TemplateInfo]) -> list[tuple[str, TemplateInfo]]:
    """Return templates with their names of the vendor, or of Sandlot if the vendor has none."""
    names = {name: vendor_name for vendor_name, (name, _) in TEMPLATES.items()}
    return [(names.get(template.name, template.name), template) for template in templates]


def timeout_s(seconds: float | None, default_s: float = DEFAULT_TIMEOUT_S, field: str = "timeout") -> float:
    """Return a timeout.

    Raises:
        InvalidRequestError: The timeout is out of the vendor's bounds.
    """
    if seconds is None:
        return default_s
    if not 1 <= seconds <= MAX_TIMEOUT_S:
        raise InvalidRequestError(f"`{field}` is {seconds:g}; it must be from 1 to {MAX_TIMEOUT_S:g} seconds.", fields={"field": field})
    return seconds


def create_params(body: CreateSandboxRequest, known: Collection[str]) -> CreateSandboxParams:
    """Return the create request of a sandbox.

    Args:
        body: Request of the client.
        known: Names of the templates of the service.

    Raises:
        NotFoundError: There is no such template (code ``template_not_found``).
        InvalidRequestError: The timeout is out of bounds, or a metadata name is reserved.
    """
    metadata, name = body.metadata or {}, template_name(body.template_id, known)
    check_reserved_names(metadata)
    return CreateSandboxParams(
        template=name,
        env={"E2B_SANDBOX": "true", "E2B_TEMPLATE_ID": body.template_id, **(body.env_vars or {})},
        metadata={**metadata, VENDOR_KEY: VENDOR, TEMPLATE_KEY: body.template_id},
        timeout_s=timeout_s(body.timeout),
        network=NetworkPolicy(NetworkMode.NONE) if body.allow_internet_access is False else MOST_OPEN,
        on_timeout=OnTimeout.HIBERNATE if body.auto_pause else OnTimeout.KILL,
        auto_resume=False,
    )


def sandbox_object(sandbox: SandboxInfo, token: str | None = None, domain: str | None = None) -> dict[str, Any]:
    """Return the object of a sandbox.

    Args:
        sandbox: The sandbox.
        token: Token with which E2B's client accesses the inside of the sandbox and its private ports. None: the object has no token.
        domain: Domain of previews, from which E2B's client computes ``get_host``. None: the client uses the domain of its configuration.
    """
    limits = sandbox.spec.limits
    return {
        "sandboxID": sandbox.id,
        "templateID": template_of(sandbox),
        "clientID": CLIENT_ID,
        "status": status(sandbox),
        "state": status(sandbox),
        "metadata": client_metadata(sandbox.metadata),
        "startedAt": rfc3339_ms(sandbox.created_at),
        "endAt": rfc3339_ms(sandbox.ended_at or sandbox.expires_at or NEVER),
        "cpuCount": max(1, round(limits.cpus)),
        "memoryMB": limits.memory_bytes // MIB,
        "diskSizeMB": limits.disk_bytes // MIB,
        "envdVersion": ENVD_VERSION,
        "domain": domain,
        **({} if token is None else {"envdAccessToken": token, "trafficAccessToken": token}),
    }


def status(sandbox: SandboxInfo) -> str:
    """Return the status of a sandbox by the name of the vendor."""
    return STATUSES[sandbox.state]


def is_deleted(sandbox: SandboxInfo) -> bool:
    """Return whether a sandbox was killed by a request, as with ``DELETE``. Pure."""
    return sandbox.exit is not None and sandbox.exit.detail == KILLED_BY_REQUEST


def is_paused(sandbox: SandboxInfo) -> bool:
    """Return whether a sandbox is paused by the terms of the vendor, which include hibernation."""
    return status(sandbox) == PAUSED


def template_of(sandbox: SandboxInfo) -> str:
    """Return the name of a sandbox's template as the client passed it."""
    return sandbox.metadata.get(TEMPLATE_KEY, sandbox.spec.template.name)


def not_active(sandbox: SandboxInfo) -> ConflictError:
    """Return the error of a request that needs a running sandbox."""
    return ConflictError(
        f"Sandbox {sandbox.id} is {sandbox.state}.",
        code=ErrorCode.SANDBOX_PAUSED,
        hint="Resume the sandbox first.",
        fields={"sandbox": sandbox.id, "state": str(sandbox.state)},
    )


def environment(sandbox: SandboxInfo) -> dict[str, str]:
    """Return the environment of every process, without that of the template."""
    return {"E2B_SANDBOX": "true", "E2B_SANDBOX_ID": sandbox.id, "E2B_TEMPLATE_ID": template_of(sandbox), **sandbox.spec.env}


def process_spec(body: RunProcessRequest, sandbox: SandboxInfo) -> ProcessSpec:
    """Return the process of a command.

    Raises:
        InvalidRequestError: The command is invalid, or its timeout is out of bounds.
    """
    return ProcessSpec(
        argv=(body.cmd, *(body.args or ())),
        env={**environment(sandbox), **(body.env_vars or {})},
        cwd=body.cwd or WORKSPACE,
        timeout_s=timeout_s(body.timeout, DEFAULT_PROCESS_S),
    )


def process_result(result: CommandResult) -> dict[str, Any]:
    """Return the result of a command that ran to its end."""
    return {
        "stdout": result.stdout.text(),
        "stderr": result.stderr.text(),
        "exitCode": exit_code(result.outcome.exit_code, result.outcome.signal),
        "processID": result.outcome.process,
    }


def file_entry(entry: Entry) -> dict[str, Any]:
    """Return the object of a file or directory."""
    is_directory = entry.kind == "directory"
    return {
        "name": entry.name,
        "path": entry.path,
        "isDir": is_directory,
        "type": "dir" if is_directory else "file",
        "size": 0 if is_directory else entry.size,
    }


def metrics(measured: SandboxUsage, sandbox: SandboxInfo) -> dict[str, Any]:
    """Return the resource usage of a sandbox by the names of the vendor. See :func:`~sandlot.compat.e2b_conventions.metrics_object`."""
    values = metrics_object(measured, sandbox)
    return {
        "ts": values["timestampUnix"],
        "cpu_count": values["cpuCount"],
        "cpu_used_pct": values["cpuUsedPct"],
        "mem_total": values["memTotal"],
        "mem_used": values["memUsed"],
        "mem_cache": values["memCache"],
        "mem_total_mib": values["memTotal"] // MIB,
        "mem_used_mib": values["memUsed"] // MIB,
        "disk_total": values["diskTotal"],
        "disk_used": values["diskUsed"],
    }
