"""Translation between E2B's control plane and the node. Pure.

Invariants:
- Every sandbox of the key is a sandbox of this API, whichever API created it.
- The template is returned by the name that the client passed, which is stored in a label.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Final

from sandlot.compat.common import TEMPLATE_KEY, VENDOR_KEY, client_metadata, rfc3339_ms
from sandlot.compat.e2b.control.schemas import CreateSandboxRequest, NetworkOptions, UpdateNetworkRequest
from sandlot.compat.e2b_conventions import CLIENT_ID, ENVD_VERSION, NEVER, PAUSED, RUNNING
from sandlot.model.errors import ErrorCode, InvalidRequestError, NotFoundError, UnsupportedError
from sandlot.model.network import MOST_OPEN, NetworkMode, NetworkPolicy, NetworkUpTo, network_entries
from sandlot.model.sandboxes import CreateSandboxParams, SandboxInfo, UpdateSandboxParams, check_reserved_names
from sandlot.model.specs import MIB, OnTimeout, SandboxSpec, VolumeMount
from sandlot.model.states import State

VENDOR: Final = "e2b"
"""Value of the label ``VENDOR_KEY``, and origin of runs in the execution log."""

TEMPLATES: Mapping[str, str] = MappingProxyType({"base": "base", "code-interpreter-v1": "code-interpreter", "code-interpreter": "code-interpreter"})
"""Template name of E2B -> template name of Sandlot."""

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
"""State -> state of E2B. Sandboxes in other states are not visible."""

ALL_TRAFFIC: Final = "0.0.0.0/0"

_NETWORK_HINT: Final = "It is refused rather than ignored. Pass allow_out and deny_out to limit the network."
_MIN_TIMEOUT_S: Final = 1.0
_NO_USER: Final = re.compile(r"Step \d+ \(RUN (?P<command>.*) (?P<user>\S+)\) failed: The sandbox has no user '(?P=user)'\.", re.DOTALL)


def without_tag(name: str) -> str:
    """Return the name of a template without the tag of its newest build, which is the only one."""
    return name.removesuffix(":latest").removesuffix(":default")


def template_name(name: str) -> str:
    """Return the name of a template in Sandlot. A name that E2B does not have is returned unchanged."""
    return TEMPLATES.get(without_tag(name), without_tag(name))


def template_names(name: str) -> tuple[str, ...]:
    """Return the names of Sandlot that the name of a template can mean, in the order in which they are tried: a template of the key has priority."""
    return tuple(dict.fromkeys((name, template_name(name))))


def all_names(templates: Collection[str]) -> list[str]:
    """Return all names of templates, given those of Sandlot."""
    return sorted({*templates, *(e2b_name for e2b_name, name in TEMPLATES.items() if name in templates)})


def names_of(template: str) -> list[str]:
    """Return all names of one template, given that of Sandlot."""
    return [template, *(e2b_name for e2b_name, name in TEMPLATES.items() if name == template and e2b_name != template)]


def template_not_found(name: str, templates: Collection[str]) -> NotFoundError:
    """Return the error for an unknown template."""
    return NotFoundError(
        f"There is no template or snapshot {name[:64]!r}.",
        code=ErrorCode.TEMPLATE_NOT_FOUND,
        hint=f"Use one of: {', '.join(all_names(templates))}, or a snapshot of GET /snapshots.",
        fields={"template": name[:64]},
    )


def create_params(
    body: CreateSandboxRequest, default_timeout_s: float, *, template: str | None = None, snapshot: str | None = None
) -> CreateSandboxParams:
    """Return the create request of a sandbox. Ports are public by default at E2B, and here where the quota of the key allows it.

    Args:
        body: Request of the client.
        default_timeout_s: Timeout if the request has none.
        template: Template from which the sandbox starts. None: the one of the name that E2B has.
        snapshot: Snapshot from which the sandbox starts. None: it starts from a template.

    Raises:
        InvalidRequestError: A metadata name is reserved, or the masked host is no host name.
        UnsupportedError: The request has an option that Sandlot does not enforce.
    """
    metadata = body.metadata or {}
    check_reserved_names(metadata)
    check_unsupported(body)
    network = body.network or NetworkOptions()
    return CreateSandboxParams(
        template=None if snapshot is not None else template or template_name(body.template_id),
        snapshot=snapshot,
        env=body.env_vars or {},
        metadata={**metadata, VENDOR_KEY: VENDOR, TEMPLATE_KEY: body.template_id},
        timeout_s=default_timeout_s if body.timeout is None else timeout_s(body.timeout),
        network=_new_network(body, from_snapshot=snapshot is not None),
        on_timeout=on_timeout(body),
        auto_resume=body.auto_resume is not None and body.auto_resume.enabled,
        volumes=tuple(VolumeMount(each.name, each.path) for each in body.volume_mounts or ()),
        public_ports=False if network.allow_public_traffic is False else None,
        mask_request_host=network.mask_request_host or None,
    )


def on_timeout(body: CreateSandboxRequest) -> OnTimeout:
    """Return the action at the timeout."""
    if not body.auto_pause:
        return OnTimeout.KILL
    return OnTimeout.HIBERNATE if body.auto_pause_memory else OnTimeout.HIBERNATE_FILES


def timeout_s(seconds: float) -> float:
    """Return a timeout. E2B allows 0, which ends a sandbox as soon as possible."""
    return _MIN_TIMEOUT_S if 0 <= seconds < _MIN_TIMEOUT_S else seconds


def check_unsupported(body: CreateSandboxRequest) -> None:
    """Refuse options that Sandlot does not have.

    Raises:
        UnsupportedError: The request has such an option.
    """
    if any((body.iam or {}).values()):
        raise _unsupported("Workload identity", "Pass the values that the code needs as envs.", "iam")


def network_update(body: UpdateNetworkRequest, *, may_have_public_ports: bool) -> UpdateSandboxParams:
    """Return the update of a sandbox's network. The network policy is replaced as a whole.

    E2B's clients cannot update the access to ports and the masked host, which stay as they are if the request does not have them. Otherwise an
    update of the policy would open the ports of a sandbox that was created with ``allowPublicTraffic: false``.
    """
    return UpdateSandboxParams(
        network=network_policy(allow=body.allow_internet_access, network=body),
        public_ports=None if body.allow_public_traffic is None else body.allow_public_traffic and may_have_public_ports,
        mask_request_host=body.mask_request_host,
    )


def _new_network(body: CreateSandboxRequest, *, from_snapshot: bool) -> NetworkPolicy | NetworkUpTo | None:
    """Return the network policy of a create request. None: the policy of the snapshot, because the request opens and closes nothing."""
    policy = network_policy(allow=body.allow_internet_access, network=body.network)
    return None if from_snapshot and policy == MOST_OPEN else policy


def network_policy(*, allow: bool | None, network: NetworkOptions | None) -> NetworkPolicy | NetworkUpTo:
    """Return the network policy of a request: rules that allow come first, and all other destinations are allowed unless all traffic is denied.

    Args:
        allow: Value of ``allow_internet_access``. False denies all traffic. True is the same as None: clients before 2.55 send True unless their user
            passes False.
        network: Value of ``network``.

    Raises:
        InvalidRequestError: A rule is invalid, a name is denied, or a name is allowed although all traffic is.
        UnsupportedError: Sandlot cannot enforce the policy.
    """
    options = network or NetworkOptions()
    for name, value in options.unsupported().items():
        raise _unsupported(f"'{name}' of the network ({str(value)[:50]})", _NETWORK_HINT, f"network.{name}")
    denied = [rule for rule in options.deny_out or () if rule != ALL_TRAFFIC]
    is_closed = allow is False or ALL_TRAFFIC in (options.deny_out or ())
    entries = network_entries([_rule(rule) for rule in options.allow_out or () if rule != ALL_TRAFFIC], denied, allow_first=True)
    for entry in entries:
        if isinstance(entry.parsed.host, str) and not (entry.allow and is_closed):
            raise InvalidRequestError(
                f"The name {entry.rule!r} is {'allowed although all traffic is' if entry.allow else 'denied'}.",
                hint=f"Pass deny_out=['{ALL_TRAFFIC}'] with names in allow_out." if entry.allow else "Pass addresses and CIDR blocks in deny_out.",
                fields={"field": "network.allowOut" if entry.allow else "network.denyOut", "rule": entry.rule},
            )
    if ALL_TRAFFIC in (options.allow_out or ()):
        return MOST_OPEN
    if not is_closed:
        return NetworkUpTo(NetworkPolicy(NetworkMode.INTERNET, entries))
    allowed = tuple(entry for entry in entries if entry.allow)
    return NetworkPolicy(NetworkMode.ALLOWLIST, allowed, packages=False) if allowed else NetworkPolicy(NetworkMode.NONE)


def network_object(spec: SandboxSpec) -> dict[str, Any]:
    """Return the fields of a sandbox's network. The network of modes other than ``internet`` has all traffic denied."""
    policy = spec.network
    is_open = policy.mode is NetworkMode.INTERNET
    denied = [entry.rule for entry in policy.entries if not entry.allow]
    return {
        "allowInternetAccess": {NetworkMode.INTERNET: True, NetworkMode.NONE: False}.get(policy.mode),
        "network": {
            "allowOut": [entry.rule.removeprefix("*") if entry.rule.startswith("**.") else entry.rule for entry in policy.entries if entry.allow],
            "denyOut": denied if is_open else [ALL_TRAFFIC, *denied],
            "allowPublicTraffic": spec.public_ports,
            **({} if spec.mask_request_host is None else {"maskRequestHost": spec.mask_request_host}),
        },
    }


def _rule(destination: str) -> str:
    """Return the rule of a destination. A wildcard of E2B stands for any number of labels."""
    return f"*{destination}" if destination.startswith("*.") else destination


def _unsupported(what: str, hint: str, field: str) -> UnsupportedError:
    return UnsupportedError(f"{what} is not supported by Sandlot.", code=ErrorCode.UNSUPPORTED, hint=hint, fields={"field": field})


# -- responses ------------------------------------------------------------------------------------------------------


def created_sandbox(sandbox: SandboxInfo, token: str, domain: str | None) -> dict[str, Any]:
    """Return the object of a sandbox that a client has created or connected to.

    Args:
        sandbox: The sandbox.
        token: Token for the inside of the sandbox, which also opens its previews.
        domain: Domain of previews, from which the client computes ``get_host``. None: the client uses the domain of its configuration.
    """
    return {**_identity(sandbox), "envdAccessToken": token, "trafficAccessToken": token, "domain": domain}


def listed_sandbox(sandbox: SandboxInfo) -> dict[str, Any]:
    """Return the object of a sandbox in a list."""
    limits = sandbox.spec.limits
    return {
        **_identity(sandbox),
        "startedAt": rfc3339_ms(sandbox.created_at),
        "endAt": rfc3339_ms(sandbox.expires_at or NEVER),
        "cpuCount": max(1, round(limits.cpus)),
        "memoryMB": limits.memory_bytes // MIB,
        "diskSizeMB": limits.disk_bytes // MIB,
        "state": STATES.get(sandbox.state, RUNNING),
        "metadata": client_metadata(sandbox.metadata),
        "volumeMounts": [{"name": each.requested_as or each.volume, "path": each.path} for each in sandbox.spec.volumes],
    }


def detailed_sandbox(sandbox: SandboxInfo, token: str, domain: str | None) -> dict[str, Any]:
    """Return the object of a single sandbox, with the token for its inside and the domain of previews."""
    return {
        **listed_sandbox(sandbox),
        "envdAccessToken": token,
        "domain": domain,
        **network_object(sandbox.spec),
        "lifecycle": {"autoResume": sandbox.spec.auto_resume, "onTimeout": "kill" if sandbox.spec.on_timeout is OnTimeout.KILL else "pause"},
    }


def _identity(sandbox: SandboxInfo) -> dict[str, Any]:
    name = template_of(sandbox)
    return {"templateID": name, "alias": name, "sandboxID": sandbox.id, "clientID": CLIENT_ID, "envdVersion": ENVD_VERSION}


def build_failure(error: str) -> str:
    """Return the reason of a failed build. Pure. A step of a user who does not exist has E2B's words, for which programs look."""
    found = _NO_USER.match(error)
    if found is None:
        return error
    return f"failed to run command '{found['command']}': command failed: unauthenticated: invalid username: '{found['user']}'"


def template_of(sandbox: SandboxInfo) -> str:
    """Return the name of a sandbox's template or snapshot as the client passed it."""
    return sandbox.metadata.get(TEMPLATE_KEY, sandbox.spec.template.name)


def is_visible(sandbox: SandboxInfo) -> bool:
    """Return whether a sandbox is visible to E2B's clients: it has started and has not ended."""
    return sandbox.state in STATES
