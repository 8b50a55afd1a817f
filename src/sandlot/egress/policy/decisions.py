"""Decisions of a network policy about connections and HTTP requests. Pure.

Invariants:
- The first entry that matches decides. If none matches, ``internet`` allows and every other mode denies.
- An allow entry matches what the program names: a name never matches an entry with an address, nor an address an entry with a name.
- A deny entry also matches the addresses that a name resolves to, and the names in TLS and HTTP of a connection to an address, unless an earlier
  entry allows the connection. So another name or address of a server does not get around a deny entry.
- An entry with methods or a path matches HTTP requests only. A connection whose requests cannot be read is refused if such an entry denies some of
  them, and is not allowed by such an entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

from sandlot.egress.policy.addresses import Address
from sandlot.egress.policy.destinations import Destination
from sandlot.egress.policy.refusals import Refusal
from sandlot.model.network import DEFAULT_PORTS, NetworkMode, NetworkPolicy, NetworkRule
from sandlot.model.network_activity import RefusalReason

_LOCAL_DOMAINS: Final = (".internal", ".local")
"""Domains of local networks (RFC 6762; ICANN, 2024). Like names without a dot, they are found only if an entry allows them."""

_OTHER_PORT: Final = 1
"""Stands for a port that no entry names. No server uses the port."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """The part of an HTTP request that rules can limit.

    Args:
        path: Path in the normal form of rules: no dot segments, no empty segments, and percent-encoding only where it is needed. None: servers
            could read the path in several ways; every entry with a path that denies covers it, and none that allows.
    """

    method: str
    path: str | None


Content = HttpRequest | Literal["unknown", "opaque"]
"""Content of a connection: an HTTP request, bytes that were not read yet, or a protocol that rules cannot limit, such as TLS."""


@dataclass(frozen=True, slots=True)
class Permission:
    """Decision that allows a connection or a request.

    Args:
        position: Index of the entry that allows. If the default of the mode allows, the number of all entries.
        limits_requests: True if the policy allows only some HTTP requests of the connection, so that each has to be decided.
    """

    position: int
    limits_requests: bool = False


class PolicyDecisions:
    """Decides which destinations a sandbox may reach.

    Args:
        policy: Policy of the sandbox.
    """

    def __init__(self, policy: NetworkPolicy) -> None:
        self.policy = policy
        self._entries = [(entry.allow, entry.parsed) for entry in policy.entries]
        self._by_name: dict[str, list[int]] = {}
        """Names of rules -> positions of their entries."""
        self._by_network: dict[tuple[int, int], dict[int, list[int]]] = {}
        """Version of IP and number of the host's bits -> bits of networks -> positions of their entries. There are at most 162 different keys."""
        for position, (_, rule) in enumerate(self._entries):
            if isinstance(rule.host, str):
                self._by_name.setdefault(rule.host, []).append(position)
            else:
                bits = rule.host.max_prefixlen - rule.host.prefixlen
                networks = self._by_network.setdefault((rule.host.version, bits), {})
                networks.setdefault(int(rule.host.network_address) >> bits, []).append(position)
        self.denies_names = any(not allow and isinstance(rule.host, str) for allow, rule in self._entries)
        """True if an entry denies a name, which a connection to an address may hide."""
        rules = [rule for _, rule in self._entries]
        self.http_ports = frozenset(DEFAULT_PORTS) | {rule.port for rule in rules if isinstance(rule.port, int) and (rule.methods or rule.path)}
        """Ports on which programs are expected to speak HTTP or HTTPS: the default ports, and those of entries with methods or a path."""

    def decide(self, destination: Destination, content: Content = "unknown") -> Permission | Refusal:
        """Decide about a connection, or about one request of an allowed connection.

        Args:
            destination: Destination that the program named.
            content: Content of the connection. With ``unknown``, the connection is refused only if the policy refuses it with every content.
        """
        allows_some: Permission | None = None
        denies_some = False
        decision: Permission | Refusal | None = None
        for position, allow, rule in self._matching(destination.host, destination.port):
            covers = _covers(allow, rule, content)
            if covers:
                decision = Permission(position) if allow else _denied_by(rule, destination, content)
                break
            if covers is None and allow:
                allows_some = allows_some or Permission(position, limits_requests=True)
            elif covers is None:
                denies_some = True
        decision = decision or self._default(destination, content)
        if isinstance(decision, Permission):
            return replace(decision, limits_requests=denies_some)
        return allows_some or decision

    def allows_name(self, name: str) -> bool:
        """Return True if a connection to a name is allowed on any port."""
        denied: set[int] = set()
        for _, allow, rule in self._of_host(name):
            ports = DEFAULT_PORTS if rule.port is None else () if rule.port == "*" else (rule.port,)
            if allow and (not ports or not denied.issuperset(ports)):
                return True
            if not allow and not rule.methods and not rule.path:
                if not ports:
                    return False
                denied.update(ports)
        return isinstance(self._default(Destination(name, _OTHER_PORT), "unknown"), Permission)

    def decide_address(self, permission: Permission, destination: Destination, address: Address) -> Refusal | None:
        """Return the refusal of a connection to one address of an allowed name. None: no entry denies the address.

        An entry that denies only some requests to an address denies all connections of names to the address.
        """
        return self._denied_before(permission, address, destination, "unknown")

    def decide_server_name(self, permission: Permission, destination: Destination, name: str | Address, content: Content) -> Refusal | None:
        """Return the refusal of an allowed connection to an address, if TLS or HTTP asks for a name there. None: no entry denies the name."""
        return self._denied_before(permission, name, destination, content)

    def _denied_before(self, permission: Permission, host: str | Address, destination: Destination, content: Content) -> Refusal | None:
        """Return the refusal by an entry that denies another host of a connection, and that stands before the entry that allows it."""
        for position, allow, rule in self._matching(host, destination.port):
            if position >= permission.position:
                break
            covers = _covers(allow, rule, content)
            if covers and allow:
                break
            if not allow and covers is not False:
                return _denied_by(rule, destination, content)
        return None

    def _matching(self, host: str | Address, port: int) -> Iterator[tuple[int, bool, NetworkRule]]:
        """Return the entries that match a host and a port, each as its position, its decision and its rule."""
        return (entry for entry in self._of_host(host) if _covers_port(entry[2], port))

    def _of_host(self, host: str | Address) -> Iterator[tuple[int, bool, NetworkRule]]:
        """Yield the entries that match a host, each as its position, its decision and its rule."""
        if isinstance(host, str):
            labels = host.split(".")
            names = (".".join(labels[at:]) for at in range(len(labels)))
            found = (self._by_name.get(name, ()) for name in names)
        else:
            number = int(host)
            found = (networks.get(number >> bits, ()) for (version, bits), networks in self._by_network.items() if version == host.version)
        for position in sorted(position for positions in found for position in positions):
            allow, rule = self._entries[position]
            if _covers_host(rule, host):
                yield position, allow, rule

    def _default(self, destination: Destination, content: Content) -> Permission | Refusal:
        """Return the decision about a destination that no entry decides."""
        host = destination.host
        if self.policy.mode is not NetworkMode.INTERNET:
            return _refusal(self._closest_reason(destination, content), destination, content)
        if isinstance(host, str) and ("." not in host or host.endswith(_LOCAL_DOMAINS)):
            return _refusal(RefusalReason.NAME_NOT_FOUND, destination, content)
        return Permission(len(self._entries))

    def _closest_reason(self, destination: Destination, content: Content) -> RefusalReason:
        """Return the reason that names the last part of a destination that differs from an entry that allows."""
        rules = [rule for _, allow, rule in self._of_host(destination.host) if allow]
        if not rules:
            return RefusalReason.HOST_NOT_ALLOWED
        rules = [rule for rule in rules if _covers_port(rule, destination.port)]
        if not rules:
            return RefusalReason.PORT_NOT_ALLOWED
        if not isinstance(content, HttpRequest):
            return RefusalReason.PROTOCOL_NOT_SUPPORTED
        is_method_allowed = any(content.method in rule.methods or not rule.methods for rule in rules)
        return RefusalReason.PATH_NOT_ALLOWED if is_method_allowed else RefusalReason.METHOD_NOT_ALLOWED


def _covers_host(rule: NetworkRule, host: str | Address) -> bool:
    if not isinstance(host, str):
        return not isinstance(rule.host, str) and host in rule.host
    if not isinstance(rule.host, str):
        return False
    if not rule.subdomains:
        return host == rule.host
    labels = host[: -len(rule.host) - 1]
    return host.endswith(f".{rule.host}") and bool(labels) and (rule.subdomains == "**" or "." not in labels)


def _covers_port(rule: NetworkRule, port: int) -> bool:
    if rule.port is None:
        return not isinstance(rule.host, str) or port in DEFAULT_PORTS
    return rule.port in {"*", port}


def _covers(allow: bool, rule: NetworkRule, content: Content) -> bool | None:  # noqa: FBT001 - the decision of the entry
    """Return whether an entry that matches host and port covers the content of the connection. None: some contents only."""
    if not rule.methods and not rule.path:
        return True
    if isinstance(content, HttpRequest):
        if content.path is None:
            is_path_covered = not rule.path or not allow
        else:
            is_path_covered = content.path == rule.path or content.path.startswith(f"{rule.path}/") or not rule.path
        return is_path_covered and (not rule.methods or content.method in rule.methods)
    return None if content == "unknown" else not allow


def _denied_by(rule: NetworkRule, destination: Destination, content: Content) -> Refusal:
    """Return the refusal by an entry that denies. The reason names the narrowest part of its rule."""
    if (rule.path or rule.methods) and content == "opaque":
        reason = RefusalReason.PROTOCOL_NOT_SUPPORTED
    elif rule.path:
        reason = RefusalReason.PATH_NOT_ALLOWED
    elif rule.methods:
        reason = RefusalReason.METHOD_NOT_ALLOWED
    else:
        reason = RefusalReason.PORT_NOT_ALLOWED if isinstance(rule.port, int) else RefusalReason.HOST_NOT_ALLOWED
    return _refusal(reason, destination, content, str(rule))


def _refusal(reason: RefusalReason, destination: Destination, content: Content, rule: str = "") -> Refusal:
    method, path = (content.method, content.path or "") if isinstance(content, HttpRequest) else ("", "")
    return Refusal(reason, str(destination.host), destination.port, rule, method, path)
