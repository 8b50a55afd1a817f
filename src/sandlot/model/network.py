"""Network policies of sandboxes, and the rules of which their entries consist.

Invariants:
- A rule has one canonical text. Equal rules have equal texts, and parsing the canonical text of a rule returns the rule.
- No rule covers a whole top-level domain, and no host of a rule can be read both as a name and as an address.
- A policy has no setting that its mode does not use.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, Literal
from urllib.parse import quote, unquote_to_bytes

from sandlot.model.errors import InvalidRequestError

MAX_ENTRIES: Final = 1000
MAX_RULE_CHARS: Final = 2048
MAX_POLICY_CHARS: Final = 64 * 1024
"""Maximum length of all rules of a policy together. Records of sandboxes and snapshots contain their policies."""
DEFAULT_PORTS: Final = (80, 443)
"""Ports of a rule with a name and without a port."""
METHODS: Final = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE")
"""HTTP methods that a rule may name: those of RFC 9110 except CONNECT, and PATCH."""

RULE_EXAMPLE: Final = "api.example.com:443"
"""A valid rule, for hints."""

LOCAL_DOMAINS: Final = ("local", "internal")
"""Top-level domains of private networks. Their names get addresses in a sandbox only if the policy of the sandbox allows them."""
MAX_LOCAL_DOMAINS: Final = 64
MAX_LOCAL_DOMAINS_CHARS: Final = 2048
"""Total length of the local domains that a guest is sent: they fit into one frame of the link, together with the rest of the message."""
MAX_NAME_CHARS: Final = 253
"""Length of the longest host name (RFC 1035, 2.3.4)."""
_LABEL: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER: Final = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*", re.ASCII)
"""Last label of a host that programs read as an IPv4 address, even if the host is not written in the usual form (WHATWG URL, 3.5)."""
_IPV4_NUMBERS: Final = 4
_ADDRESS: Final = re.compile(
    r"(?:\[(?P<bracketed>[^\]/]*)\]|(?P<plain>\d+(?:\.\d+){3}|[0-9a-fA-F]{0,4}:[0-9a-fA-F:.]*:[0-9a-fA-F:.]*))(?P<bits>/\d+(?![^:]))?", re.ASCII
)
"""An address, of IPv6 with or without brackets, and the prefix length of a network. In ``10.0.0.1/8/x``, ``/8`` begins a path."""
_TAIL: Final = re.compile(r"(?::(?P<port>[^/]*))?(?P<path>/.*)?", re.DOTALL)
_PORT: Final = re.compile(r"\d{1,5}", re.ASCII)
MAX_PORT: Final = 65535
_PERCENT: Final = re.compile(rb"%(?![0-9a-fA-F]{2})")
_PATH_CHARS: Final = "-._~!$&'()*+,;=:@"
"""Characters of a path segment besides letters and digits that need no percent-encoding (RFC 3986, 3.3)."""


class NetworkMode(StrEnum):
    """Extent of the network access of a sandbox, from least to most open."""

    NONE = "none"
    """No access. The one exception: while ``install`` runs, the package indexes can be read if the quota of the API key allows installations."""
    PACKAGES = "packages"
    """Read access to the package indexes of this host, through the service."""
    ALLOWLIST = "allowlist"
    """Access to the destinations that the entries of the policy allow."""
    INTERNET = "internet"
    """Access to all public destinations that no entry of the policy denies."""

    def exceeds(self, other: NetworkMode) -> bool:
        """Return True if this mode is more open than another mode."""
        order = list(NetworkMode)
        return order.index(self) > order.index(other)


@dataclass(frozen=True, slots=True)
class NetworkEntry:
    """One decision of a network policy.

    Args:
        allow: True to allow, False to deny the destinations of the rule.
        rule: Text for :func:`parse_rule`. The entry stores the canonical text.
        parsed: The parsed rule. It is kept because 1,000 rules take 20 ms to parse.
    """

    allow: bool
    rule: str
    parsed: NetworkRule = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Replace the rule by its canonical text."""
        parsed = parse_rule(self.rule)
        canonical = str(parsed)
        if len(canonical) > MAX_RULE_CHARS:  # percent-encoding makes a path longer
            raise _bad_rule(self.rule, f"a rule has at most {MAX_RULE_CHARS} characters", "Split the rule.")
        object.__setattr__(self, "rule", canonical)
        object.__setattr__(self, "parsed", parsed)


def _check_count(entries: int) -> None:
    if entries > MAX_ENTRIES:
        raise _invalid(
            f"The network policy has {entries} entries; at most {MAX_ENTRIES} are allowed.",
            "Combine entries, for example with '*.' and '**.'.",
            "entries",
        )


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """Network access of a sandbox.

    Args:
        entries: Decisions in order; the first entry whose rule matches a destination decides. At most 1,000 with 65,536 characters together, and
            only with the modes ``allowlist`` and ``internet``.
        packages: True if the package indexes can be read as well. Only the modes ``allowlist`` and ``internet`` have a choice.
        unknown: Decision about a destination that no entry matches: deny the destination, or ask. With the mode ``internet``, such a
            destination is allowed, so ``ask`` needs the mode ``allowlist``.
        generation: Number of earlier changes of the policy of this sandbox.
    """

    mode: NetworkMode = NetworkMode.PACKAGES
    entries: tuple[NetworkEntry, ...] = ()
    packages: bool = True
    unknown: Literal["deny", "ask"] = "deny"
    generation: int = 0

    @property
    def reaches_packages(self) -> bool:
        """True if processes of the sandbox may read the package indexes at any time."""
        return self.packages and self.mode is not NetworkMode.NONE

    def __post_init__(self) -> None:
        """Refuse settings that the mode does not use, and values that are out of range.

        Raises:
            InvalidRequestError: A field is invalid.
        """
        has_rules = self.mode in {NetworkMode.ALLOWLIST, NetworkMode.INTERNET}
        if self.entries and not has_rules:
            raise _invalid(f"A network policy of mode {str(self.mode)!r} has no entries.", "Pass the mode 'allowlist' or 'internet'.", "entries")
        _check_count(len(self.entries))
        if (chars := sum(len(entry.rule) for entry in self.entries)) > MAX_POLICY_CHARS:
            raise _invalid(
                f"The rules of the network policy have {chars} characters together; at most {MAX_POLICY_CHARS} are allowed.",
                "Combine rules, for example with '*.' and '**.'.",
                "entries",
            )
        if not self.packages and not has_rules:
            raise _invalid(f"A network policy of mode {str(self.mode)!r} has no choice of `packages`.", "Omit `packages`.", "packages")
        if self.unknown not in {"deny", "ask"}:
            raise _invalid(f"`unknown` is {str(self.unknown)[:50]!r}.", "Pass 'deny' or 'ask'.", "unknown")
        if self.unknown == "ask" and self.mode is not NetworkMode.ALLOWLIST:
            raise _invalid(
                f"A network policy of mode {str(self.mode)!r} asks nothing about destinations.",
                "Omit `unknown`, or pass the mode 'allowlist'.",
                "unknown",
            )
        if self.generation < 0:
            raise _invalid(f"`generation` is {self.generation}; it must be at least 0.", "Omit `generation`.", "generation")


@dataclass(frozen=True, slots=True)
class NetworkUpTo:
    """Request for the most open network policy that is allowed, up to a policy.

    Args:
        policy: Most open policy. If its mode is not allowed, the most open mode below it that is allowed takes its place.
    """

    policy: NetworkPolicy


MOST_OPEN: Final = NetworkUpTo(NetworkPolicy(NetworkMode.INTERNET))
"""Request for the most open network policy that is allowed."""


@dataclass(frozen=True, slots=True)
class NetworkRule:
    """A set of destinations. A rule that names methods or a path covers HTTP requests only.

    Args:
        host: Name in lower case, or a network; a single address is a network with one address.
        subdomains: Names that a rule with a name covers: an empty text for ``host`` itself, ``*`` for names with exactly one more label, ``**``
            for names with one or more further labels. The wildcards do not cover ``host`` itself.
        port: Port; ``*``: all ports; None: ``DEFAULT_PORTS`` of a name, and all ports of a network.
        methods: HTTP methods, sorted. Empty: all methods.
        path: Prefix of the path, in whole segments: ``/v1`` covers ``/v1`` and ``/v1/models`` but not ``/v10``. Empty: all paths.
    """

    host: str | IPv4Network | IPv6Network
    subdomains: Literal["", "*", "**"] = ""
    port: int | Literal["*"] | None = None
    methods: tuple[str, ...] = ()
    path: str = ""

    def __str__(self) -> str:
        """Return the canonical text of the rule."""
        methods = f"{','.join(self.methods)} " if self.methods else ""
        wildcard = f"{self.subdomains}." if self.subdomains else ""
        port = "" if self.port is None else f":{self.port}"
        return f"{methods}{wildcard}{_host_text(self.host)}{port}{self.path}"


def network_entries(allow: Sequence[str] = (), deny: Sequence[str] = (), *, allow_first: bool = False) -> tuple[NetworkEntry, ...]:
    """Return the entries of a policy. Pure.

    Args:
        allow: Rules of the destinations to allow.
        deny: Rules of the destinations to deny.
        allow_first: True if the entries that allow come before those that deny.

    Raises:
        InvalidRequestError: A rule is invalid, or there are too many. The fields ``field``, ``position`` and ``rule`` name an invalid rule.
    """
    _check_count(len(allow) + len(deny))
    allowed = [_entry(True, rule, position) for position, rule in enumerate(allow)]
    denied = [_entry(False, rule, position) for position, rule in enumerate(deny)]
    return (*allowed, *denied) if allow_first else (*denied, *allowed)


def _entry(allow: bool, rule: str, position: int) -> NetworkEntry:  # noqa: FBT001 - the decision of the entry
    try:
        return NetworkEntry(allow, rule)
    except InvalidRequestError as error:
        raise rule_error(error.message, error.hint, allow=allow, position=position, rule=rule) from None


def rule_error(message: str, hint: str, *, allow: bool, position: int, rule: str) -> InvalidRequestError:
    """Return the error of a rule of a request, with an example of a valid rule.

    Args:
        message: Message of the error.
        hint: How to correct the rule.
        allow: True if the rule is in the list of rules that allow.
        position: Position of the rule in this list, from 0.
        rule: Text of the rule.
    """
    fields = {"field": f"network.{'allow' if allow else 'deny'}", "position": position, "rule": rule[:256]}
    return InvalidRequestError(message, hint=f"{hint} Example of a valid rule: {RULE_EXAMPLE!r}.", fields=fields)


def local_domains(policy: NetworkPolicy) -> tuple[str, ...]:
    """Return the domains ending in ``.local`` or ``.internal`` that a policy allows, without wildcards, in order. Pure.

    If they are too many or too long, all local names get addresses in the sandbox: return both top-level domains. The policy decides in any case.
    """
    hosts = (entry.parsed.host for entry in policy.entries if entry.allow and any(f".{domain}" in entry.rule for domain in LOCAL_DOMAINS))
    domains = tuple(dict.fromkeys(host for host in hosts if isinstance(host, str) and host.rpartition(".")[2] in LOCAL_DOMAINS))
    if len(domains) > MAX_LOCAL_DOMAINS or sum(map(len, domains)) > MAX_LOCAL_DOMAINS_CHARS:
        return LOCAL_DOMAINS
    return domains


def is_host_name(name: str) -> bool:
    """Return True if a lower-case name without a trailing dot is one that the DNS can contain."""
    return len(name) <= MAX_NAME_CHARS and all(map(_LABEL.fullmatch, name.split(".")))


def ends_in_number(host: str) -> bool:
    """Return True if programs read a host as an IPv4 address: its last label is a decimal, octal or hexadecimal number."""
    return _NUMBER.fullmatch(host.removesuffix(".").rpartition(".")[2]) is not None


def numeric_address(host: str) -> IPv4Address:
    """Return the address of a host for which :func:`ends_in_number` is true, such as ``10.1``, ``2130706433`` or ``0x7f.1`` (WHATWG URL, 3.5).

    Raises:
        ValueError: The host is not an address.
    """
    labels = host.removesuffix(".").split(".")
    if not all(map(_NUMBER.fullmatch, labels)):
        raise ValueError(f"{host[:50]!r} ends in a number but is not an address")
    *leading, last = [_ipv4_number(label) for label in labels]
    if len(labels) > _IPV4_NUMBERS or any(number >> 8 for number in leading) or last >= 256 ** (_IPV4_NUMBERS - len(leading)):
        raise ValueError(f"{host[:50]!r} is larger than an IPv4 address")
    return IPv4Address(last + sum(number << 8 * (3 - position) for position, number in enumerate(leading)))


def _ipv4_number(label: str) -> int:
    """Return the value of a number of an IPv4 address. A leading ``0x`` means hexadecimal, a leading zero octal."""
    if label[:2] in {"0x", "0X"}:
        return int(label[2:] or "0", 16)
    return int(label, 8 if label.startswith("0") else 10)


def parse_rule(text: str) -> NetworkRule:
    """Parse a rule: ``[METHOD[,METHOD] ]host[:port|:*][/path]``. Pure.

    The host is a name such as ``api.example.com``, a name after ``*.`` or ``**.``, an address, or a network such as ``10.0.0.0/8``. An IPv6
    address that is followed by a port or a path is written in brackets. Upper and lower case of methods and hosts, the order of methods, a trailing
    dot of the host and a trailing slash of the path make no difference. A host that ends in a number, such as ``0x7f.1``, is an IPv4 address. Names
    in Unicode become their ASCII form (IDNA 2008, UTS 46).

    Raises:
        InvalidRequestError: The text is not a rule, or the rule covers a whole top-level domain. The field ``rule`` holds the text.
    """
    if len(text) > MAX_RULE_CHARS:
        raise _bad_rule(text, f"a rule has at most {MAX_RULE_CHARS} characters", "Split the rule.")
    if "://" in text:
        raise _bad_rule(text, "a rule has no scheme", "Omit the scheme, for example 'api.example.com' instead of 'https://api.example.com'.")
    names, separator, destination = text.partition(" ") if " " in text else ("", "", text)
    methods = _parse_methods(text, names.split(",")) if separator else ()
    if not destination:
        raise _bad_rule(text, "the host is missing", "Write a host, for example 'api.example.com'.")
    host: str | IPv4Network | IPv6Network
    subdomains: Literal["", "*", "**"] = ""
    if (address := _ADDRESS.match(destination)) is not None:
        host, rest = _parse_network(text, address), destination[address.end() :]
    else:
        (name,) = re.findall(r"\A[^:/]*", destination)
        rest = destination[len(name) :]
        if ends_in_number(name) and not name.startswith("*"):
            host = _parse_numeric(text, name, rest)
        else:
            host, subdomains = _parse_name(text, name)
    tail = _TAIL.fullmatch(rest)
    if tail is None:
        raise _bad_rule(text, f"{rest[:20]!r} cannot follow the host", "Write a port such as ':443', or a path such as '/v1', after the host.")
    port = None if tail["port"] is None else _parse_port(text, tail["port"])
    return NetworkRule(host, subdomains, port, methods, _parse_path(text, tail["path"] or ""))


def _parse_methods(text: str, names: Sequence[str]) -> tuple[str, ...]:
    methods = {name.upper() for name in names}
    if unknown := methods - set(METHODS):
        raise _bad_rule(text, f"{min(unknown)[:20]!r} is not a method", f"Write methods of {', '.join(METHODS)}, separated by ',', and one space.")
    return tuple(sorted(methods))


def _parse_network(text: str, match: re.Match[str]) -> IPv4Network | IPv6Network:
    bits = match["bits"] or ""
    try:
        address = ip_address(match["bracketed"] if match["plain"] is None else match["plain"])
        if match["bracketed"] is not None and isinstance(address, IPv4Address):
            raise _bad_rule(text, "an IPv4 address has no brackets", "Omit the brackets.")
        network = ip_network(f"{address}{bits}", strict=False)
    except ValueError:
        raise _bad_rule(
            text, f"{match[0][:50]!r} is neither an address nor a network", "Write for example '192.0.2.1', '10.0.0.0/8' or '[2001:db8::1]:443'."
        ) from None
    if isinstance(address, IPv6Address) and (address.scope_id is not None or address.ipv4_mapped is not None):
        raise _bad_rule(text, f"{match[0][:50]!r} is not a destination of its own", "Write an IPv4 address, or an IPv6 address without a zone.")
    if network.network_address != address:
        raise _bad_rule(text, f"bits of {match[0][:50]!r} are set behind the prefix", f"Write '{network}' for the network.")
    return network


def _parse_numeric(text: str, name: str, rest: str) -> IPv4Network:
    """Return the network with the one address that a numeric host means."""
    problem, hint = f"{name[:50]!r} ends in a number but is not an IPv4 address", "Write four decimal numbers, for example '192.0.2.1'."
    if re.match(r"/\d+(?![^:])", rest):  # the prefix length of a network, which would be read as a path
        raise _bad_rule(text, problem, hint)
    try:
        return IPv4Network(numeric_address(name))
    except ValueError:
        raise _bad_rule(text, problem, hint) from None


def _parse_name(text: str, host: str) -> tuple[str, Literal["", "*", "**"]]:
    """Return the name of a rule without its wildcard, and the wildcard."""
    subdomains: Literal["", "*", "**"] = "**" if host.startswith("**.") else "*" if host.startswith("*.") else ""
    name = host[len(subdomains) + 1 if subdomains else 0 :].lower().removesuffix(".")
    if host in {"*", "**"} or name in {"*", "**"}:
        raise _bad_rule(text, "'*' alone is not a host", "Use the mode 'internet' to allow all public destinations.")
    if "*" in name:
        raise _bad_rule(text, "a wildcard is a whole label at the beginning of the host", "Write '*.' or '**.' in front of a name.")
    if not name:
        raise _bad_rule(text, "the host is missing", "Write a host, for example 'api.example.com'.")
    if not name.isascii():
        name = _ascii_name(text, name)
    labels = name.split(".")
    if not is_host_name(name):
        raise _bad_rule(
            text,
            f"{name[:50]!r} is not a host name",
            f"Write up to {MAX_NAME_CHARS} letters, digits, '-' and '_', in labels of up to 63, separated by '.'.",
        )
    if ends_in_number(name):
        raise _bad_rule(text, f"{name[:50]!r} ends in a number but is not an IPv4 address", "Write four decimal numbers, for example '192.0.2.1'.")
    if len(labels) == 1:
        raise _bad_rule(text, f"{name[:50]!r} is a top-level domain", "Write at least two labels, for example '**.example.com'.")
    return name, subdomains


def _ascii_name(text: str, name: str) -> str:
    import idna  # noqa: PLC0415 - its tables take 10 ms to import, and few rules need them

    try:
        return idna.encode(name, uts46=True).decode("ascii").removesuffix(".")
    except UnicodeError:  # idna.IDNAError is one
        raise _bad_rule(
            text, f"{name[:50]!r} is not an internationalized host name", "Write its ASCII form, whose labels begin with 'xn--'."
        ) from None


def _parse_port(text: str, port: str) -> int | Literal["*"]:
    if port == "*":
        return "*"
    if not _PORT.fullmatch(port) or not 1 <= int(port) <= MAX_PORT:
        raise _bad_rule(
            text, f"{port[:20]!r} is not a port", "Write a port from 1 to 65535, or '*' for all ports; write an IPv6 address in brackets."
        )
    return int(port)


def _parse_path(text: str, path: str) -> str:
    try:
        raw = path.encode()
        normal = normal_path(path)
    except UnicodeError:
        raise _bad_rule(text, "the path is not in UTF-8", "Write the path as text, or percent-encode its bytes in UTF-8.") from None
    if "?" in path or "#" in path or _PERCENT.search(raw):
        raise _bad_rule(
            text, "the path has a query, a fragment or an incomplete percent-encoding", "Write '?', '#' and '%' as '%3F', '%23' and '%25'."
        )
    if normal is None:
        raise _bad_rule(
            text,
            "the path has an empty segment, a segment '.' or '..', or an encoded separator",
            "Write the path as servers receive it: '/v1/models'.",
        )
    return normal


def normal_path(path: str | bytes, separators: str = "/\\") -> str | None:
    """Return a path with percent-encoding only where it is needed, and without a slash at its end. The path has no query or fragment.

    Args:
        path: Path whose percent-encoding is complete.
        separators: Characters that no segment may have, because some servers divide segments there.

    Returns:
        None if servers could read the path in several ways: it has dot segments, empty segments, separators or control characters.

    Raises:
        UnicodeError: The path is not in UTF-8.
    """
    parts = path.split("/") if isinstance(path, str) else path.split(b"/")
    segments = [unquote_to_bytes(part).decode() for part in parts]
    if any(segment in {".", ".."} or not segment.isprintable() or not set(segment).isdisjoint(separators) for segment in segments):
        return None
    return None if "" in segments[1:-1] else "/".join(quote(segment, safe=_PATH_CHARS) for segment in segments).removesuffix("/")


def _host_text(host: str | IPv4Network | IPv6Network) -> str:
    if isinstance(host, str):
        return host
    address = f"[{host.network_address}]" if isinstance(host, IPv6Network) else str(host.network_address)
    return address if host.prefixlen == host.max_prefixlen else f"{address}/{host.prefixlen}"


def _bad_rule(text: str, problem: str, hint: str) -> InvalidRequestError:
    return InvalidRequestError(f"The network rule {text[:80]!r} is not valid: {problem}.", hint=hint, fields={"field": "network", "rule": text[:256]})


def _invalid(message: str, hint: str, name: str) -> InvalidRequestError:
    return InvalidRequestError(message, hint=hint, fields={"field": f"network.{name}"})
