"""Network policies and rules: canonical texts, and policies and rules that are refused."""

from __future__ import annotations

from ipaddress import ip_network

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sandlot.model import network
from sandlot.model.errors import InvalidRequestError
from sandlot.model.network import (
    MAX_ENTRIES,
    MAX_RULE_CHARS,
    METHODS,
    NetworkEntry,
    NetworkMode,
    NetworkPolicy,
    NetworkRule,
    local_domains,
    parse_rule,
)

ENTRY = NetworkEntry(allow=True, rule="example.com")


# Rules ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, rule, canonical",
    [
        ("example.com", NetworkRule("example.com"), "example.com"),
        ("API.Example.COM.", NetworkRule("api.example.com"), "api.example.com"),
        ("*.example.com", NetworkRule("example.com", "*"), "*.example.com"),
        ("**.Example.com:443", NetworkRule("example.com", "**", 443), "**.example.com:443"),
        ("example.com:*", NetworkRule("example.com", port="*"), "example.com:*"),
        ("example.com:0443", NetworkRule("example.com", port=443), "example.com:443"),
        ("_dmarc.xn--bcher-kva.example", NetworkRule("_dmarc.xn--bcher-kva.example"), "_dmarc.xn--bcher-kva.example"),
        ("post,GET,get a.b/v1/", NetworkRule("a.b", methods=("GET", "POST"), path="/v1"), "GET,POST a.b/v1"),
        ("GET *.a.b:8080/x/y", NetworkRule("a.b", "*", 8080, ("GET",), "/x/y"), "GET *.a.b:8080/x/y"),
        ("a.b/", NetworkRule("a.b"), "a.b"),
        ("a.b/%7euser/%c3%a9/a%2Ab", NetworkRule("a.b", path="/~user/%C3%A9/a*b"), "a.b/~user/%C3%A9/a*b"),
        ("a.b/é", NetworkRule("a.b", path="/%C3%A9"), "a.b/%C3%A9"),
        ("a.b/*", NetworkRule("a.b", path="/*"), "a.b/*"),
        ("*.BÜCHER.example", NetworkRule("xn--bcher-kva.example", "*"), "*.xn--bcher-kva.example"),
        ("192.0.2.1", NetworkRule(ip_network("192.0.2.1")), "192.0.2.1"),
        ("0x7F.1:80", NetworkRule(ip_network("127.0.0.1"), port=80), "127.0.0.1:80"),
        ("1.2.3", NetworkRule(ip_network("1.2.0.3")), "1.2.0.3"),
        ("2130706433", NetworkRule(ip_network("127.0.0.1")), "127.0.0.1"),
        ("012.1./x", NetworkRule(ip_network("10.0.0.1"), path="/x"), "10.0.0.1/x"),
        ("192.0.2.1/32:22", NetworkRule(ip_network("192.0.2.1"), port=22), "192.0.2.1:22"),
        ("10.0.0.0/8", NetworkRule(ip_network("10.0.0.0/8")), "10.0.0.0/8"),
        ("10.0.0.0/8:*", NetworkRule(ip_network("10.0.0.0/8"), port="*"), "10.0.0.0/8:*"),
        ("0.0.0.0/0", NetworkRule(ip_network("0.0.0.0/0")), "0.0.0.0/0"),
        ("10.0.0.1/v1", NetworkRule(ip_network("10.0.0.1"), path="/v1"), "10.0.0.1/v1"),
        ("10.0.0.1/8/x", NetworkRule(ip_network("10.0.0.1"), path="/8/x"), "10.0.0.1/8/x"),
        ("10.0.0.0/8:80/8", NetworkRule(ip_network("10.0.0.0/8"), port=80, path="/8"), "10.0.0.0/8:80/8"),
        ("2001:DB8::1", NetworkRule(ip_network("2001:db8::1")), "[2001:db8::1]"),
        ("[2001:db8::1]:443/x", NetworkRule(ip_network("2001:db8::1"), port=443, path="/x"), "[2001:db8::1]:443/x"),
        ("fd00::/8", NetworkRule(ip_network("fd00::/8")), "[fd00::]/8"),
        ("[fd00::]/8:443", NetworkRule(ip_network("fd00::/8"), port=443), "[fd00::]/8:443"),
        ("::/0", NetworkRule(ip_network("::/0")), "[::]/0"),
    ],
)
def test_rule_has_one_canonical_text(text: str, rule: NetworkRule, canonical: str) -> None:
    assert parse_rule(text) == rule
    assert str(rule) == canonical
    assert parse_rule(canonical) == rule


@pytest.mark.parametrize("host", ["com", "COM.", "*.com", "**.com", "localhost", "*.xn--p1ai", "GET com/x"])
def test_top_level_domain_is_refused(host: str) -> None:
    with pytest.raises(InvalidRequestError, match="top-level domain") as refused:
        parse_rule(host)
    assert "two labels" in refused.value.hint


@pytest.mark.parametrize(
    "text, problem, hint",
    [
        ("", "host is missing", "api.example.com"),
        ("GET ", "host is missing", "api.example.com"),
        (":443", "host is missing", "api.example.com"),
        ("*./x", "host is missing", "api.example.com"),
        ("*", "not a host", "'internet'"),
        ("**:443", "not a host", "'internet'"),
        ("*.*", "not a host", "'internet'"),
        ("***.a.b", "whole label", "front of a name"),
        ("a.*.b", "whole label", "front of a name"),
        ("x*.a.b", "whole label", "front of a name"),
        ("*.*.a.b", "whole label", "front of a name"),
        ("https://a.b", "no scheme", "Omit the scheme"),
        ("☃.example", "internationalized", "xn--"),
        ("。.example", "internationalized", "xn--"),
        ("a..b", "not a host name", "labels"),
        (".a.b", "not a host name", "labels"),
        ("a.b..", "not a host name", "labels"),
        ("-a.b", "not a host name", "labels"),
        ("a-.b", "not a host name", "labels"),
        ("user@a.b", "not a host name", "labels"),
        ("a.b\0", "not a host name", "labels"),
        ("a.b\n", "not a host name", "labels"),
        (f"{'a' * 64}.b", "not a host name", "labels"),
        (".".join(["a" * 49] * 6), "not a host name", "labels"),
        ("4294967296", "ends in a number", "four decimal numbers"),
        ("08.1", "ends in a number", "four decimal numbers"),
        ("1.256.1", "ends in a number", "four decimal numbers"),
        ("1.2.3/24", "ends in a number", "four decimal numbers"),
        ("1.2.3/24:80", "ends in a number", "four decimal numbers"),
        ("a.\N{FULLWIDTH DIGIT ONE}", "ends in a number", "four decimal numbers"),
        ("a.0x7f", "ends in a number", "four decimal numbers"),
        ("*.1.2.3.4", "ends in a number", "four decimal numbers"),
        ("1.2.3.4.", "cannot follow", "':443'"),
        ("1.2.3.4.example.com", "cannot follow", "':443'"),
        ("1.2.3.4.5", "cannot follow", "':443'"),
        ("256.1.1.1", "neither", "10.0.0.0/8"),
        ("010.1.1.1", "neither", "10.0.0.0/8"),
        ("10.0.0.0/33", "neither", "10.0.0.0/8"),
        ("[]", "neither", "2001:db8::1"),
        ("[a.b]", "neither", "2001:db8::1"),
        ("1::2::3", "neither", "2001:db8::1"),
        ("[192.0.2.1]", "no brackets", "Omit"),
        ("10.0.0.1/8", "behind the prefix", "10.0.0.0/8"),
        ("[fe80::1%eth0]", "of its own", "zone"),
        ("::ffff:10.0.0.1", "of its own", "IPv4 address"),
        ("[2001:db8::1]x", "cannot follow", "':443'"),
        ("[a.b", "not a host name", "labels"),
        ("a.b:", "not a port", "1 to 65535"),
        ("a.b:0", "not a port", "1 to 65535"),
        ("a.b:65536", "not a port", "1 to 65535"),
        ("a.b:-1", "not a port", "1 to 65535"),
        ("a.b:4 3", "not a method", "GET"),
        ("GET  a.b", "not a host name", "labels"),
        ("a.b:٤٤٣", "not a port", "1 to 65535"),
        ("a.b:80:90", "not a port", "1 to 65535"),
        ("PSOT a.b", "not a method", "GET"),
        ("CONNECT a.b", "not a method", "GET"),
        ("GET, POST a.b", "not a method", "GET"),
        (" a.b", "not a method", "GET"),
        ("a.b ", "not a method", "GET"),
        ("a.b/x?y=1", "query", "%3F"),
        ("a.b/x#y", "query", "%23"),
        ("a.b/%zz", "query", "%25"),
        ("a.b/%", "query", "%25"),
        ("a.b/%ff", "UTF-8", "UTF-8"),
        ("a.b/\ud800", "UTF-8", "UTF-8"),
        ("a.b/../x", "'..'", "/v1/models"),
        ("a.b/%2E%2e/x", "'..'", "/v1/models"),
        ("a.b/.", "'..'", "/v1/models"),
        ("a.b/x//y", "empty segment", "/v1/models"),
        ("a.b//", "empty segment", "/v1/models"),
        ("a.b/x%2Fy", "separator", "/v1/models"),
        ("a.b/x\\y", "separator", "/v1/models"),
        ("a.b/%00", "separator", "/v1/models"),
        (f"a.b/{'x' * MAX_RULE_CHARS}", "at most 2048 characters", "Split"),
    ],
)
def test_text_that_is_no_rule_is_refused_with_a_hint(text: str, problem: str, hint: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        parse_rule(text)
    assert problem in refused.value.message
    assert hint in refused.value.hint
    assert refused.value.fields == {"field": "network", "rule": text[:256]}


LABELS = st.from_regex(r"[a-z0-9_]([a-z0-9_-]{0,10}[a-z0-9_])?", fullmatch=True)
NAMES = st.builds(
    lambda labels, last: ".".join([*labels, last]), st.lists(LABELS, min_size=1, max_size=4), st.from_regex(r"[a-z]{2,6}", fullmatch=True)
)
NETWORKS = st.ip_addresses().flatmap(
    lambda address: st.integers(0, address.max_prefixlen).map(lambda bits: ip_network((address, bits), strict=False))
)
SEGMENTS = st.text(min_size=1, max_size=8).filter(lambda text: text.isprintable() and text not in {".", ".."} and not set(text) & set("/\\%?# "))
PORTS = st.one_of(st.none(), st.just("*"), st.integers(1, 65535))
RULE_METHODS = st.lists(st.sampled_from(METHODS), unique=True)


@given(NAMES, st.sampled_from(["", "*.", "**."]), PORTS, RULE_METHODS, st.lists(SEGMENTS, max_size=3))
def test_canonical_text_of_any_name_rule_is_stable(name: str, wildcard: str, port: object, methods: list[str], segments: list[str]) -> None:
    text = (
        f"{','.join(methods)}{' ' if methods else ''}{wildcard}{name}{'' if port is None else f':{port}'}{''.join(f'/{each}' for each in segments)}"
    )
    rule = parse_rule(text)
    assert (rule.host, rule.port, rule.methods) == (name, port, tuple(sorted(methods)))
    assert parse_rule(str(rule)) == rule


@given(NETWORKS.filter(lambda network: not str(network).startswith("::ffff:")))
def test_canonical_text_of_any_network_rule_is_stable(network: object) -> None:
    rule = parse_rule(str(network))
    assert rule.host == network
    assert parse_rule(str(rule)) == rule


@given(st.text(max_size=40))
@example("GET a.b:1/x")
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        rule = parse_rule(text)
    except InvalidRequestError:
        return
    assert parse_rule(str(rule)) == rule


# Policies -------------------------------------------------------------------------------------------------------------


def test_default_policy_reaches_packages_only() -> None:
    assert NetworkPolicy() == NetworkPolicy(NetworkMode.PACKAGES, entries=(), packages=True, unknown="deny", generation=0)


@pytest.mark.parametrize(
    "policy, reaches",
    [
        (NetworkPolicy(NetworkMode.NONE), False),
        (NetworkPolicy(NetworkMode.PACKAGES), True),
        (NetworkPolicy(NetworkMode.ALLOWLIST), True),
        (NetworkPolicy(NetworkMode.ALLOWLIST, packages=False), False),
        (NetworkPolicy(NetworkMode.INTERNET, packages=False), False),
    ],
)
def test_package_access_follows_the_policy(policy: NetworkPolicy, *, reaches: bool) -> None:
    assert policy.reaches_packages is reaches


def test_modes_are_ordered_from_least_to_most_open() -> None:
    modes = [NetworkMode.NONE, NetworkMode.PACKAGES, NetworkMode.ALLOWLIST, NetworkMode.INTERNET]
    for number, mode in enumerate(modes):
        assert [other for other in modes if mode.exceeds(other)] == modes[:number]


def test_rule_of_an_entry_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = NetworkEntry(allow=True, rule="get API.Example.local:8080/v1/")
    policy = NetworkPolicy(NetworkMode.ALLOWLIST, (entry,))
    assert entry.parsed == parse_rule(entry.rule)
    monkeypatch.setattr(network, "parse_rule", None)
    assert local_domains(policy) == ("api.example.local",)


def test_entry_stores_the_canonical_text_of_its_rule() -> None:
    assert NetworkEntry(allow=False, rule="get EXAMPLE.com.") == NetworkEntry(allow=False, rule="GET example.com")


@pytest.mark.parametrize(
    "fields, named",
    [
        ({"mode": NetworkMode.NONE, "entries": (ENTRY,)}, "network.entries"),
        ({"mode": NetworkMode.PACKAGES, "entries": (ENTRY,)}, "network.entries"),
        ({"mode": NetworkMode.ALLOWLIST, "entries": (ENTRY,) * (MAX_ENTRIES + 1)}, "network.entries"),
        ({"mode": NetworkMode.NONE, "packages": False}, "network.packages"),
        ({"mode": NetworkMode.PACKAGES, "packages": False}, "network.packages"),
        ({"mode": NetworkMode.ALLOWLIST, "unknown": "allow"}, "network.unknown"),
        ({"mode": NetworkMode.PACKAGES, "unknown": "ask"}, "network.unknown"),
        ({"mode": NetworkMode.INTERNET, "unknown": "ask"}, "network.unknown"),
        ({"generation": -1}, "network.generation"),
    ],
)
def test_policy_with_a_setting_that_its_mode_does_not_use_is_refused(fields: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        NetworkPolicy(**fields)  # type: ignore[arg-type]
    assert refused.value.fields["field"] == named
    assert refused.value.hint


def test_policy_accepts_the_largest_number_of_entries() -> None:
    policy = NetworkPolicy(NetworkMode.ALLOWLIST, entries=(ENTRY,) * MAX_ENTRIES, unknown="ask")
    assert len(policy.entries) == MAX_ENTRIES


@pytest.mark.parametrize(
    "allow, expected",
    [
        (["example.com", "10.0.0.0/8"], ()),
        (["db.corp.internal:5432", "*.lab.local", "**.corp.internal", "GET db.corp.internal/x"], ("db.corp.internal", "lab.local", "corp.internal")),
        (["local.example.com", "x.local.example.com"], ()),
        ([f"host{number}.internal" for number in range(64)], tuple(f"host{number}.internal" for number in range(64))),
        ([f"host{number}.internal" for number in range(65)], ("local", "internal")),
        ([f"{'x' * 60}.{'y' * 60}.z{number}.local" for number in range(17)], ("local", "internal")),
    ],
)
def test_local_domains_are_those_of_rules_that_allow(allow: list[str], expected: tuple[str, ...]) -> None:
    denied = [NetworkEntry(allow=False, rule="denied.internal")]
    policy = NetworkPolicy(NetworkMode.ALLOWLIST, (*denied, *(NetworkEntry(allow=True, rule=rule) for rule in allow)))
    assert local_domains(policy) == expected


def test_rules_of_a_policy_have_a_limited_length_together() -> None:
    rules = [NetworkEntry(allow=True, rule=f"h{number}.example.com/{'a' * 100}") for number in range(1000)]
    with pytest.raises(InvalidRequestError, match="65536"):
        NetworkPolicy(NetworkMode.ALLOWLIST, tuple(rules))
    with pytest.raises(InvalidRequestError, match="2048"):
        NetworkEntry(allow=True, rule=f"example.com:80/{'é' * 400}")
