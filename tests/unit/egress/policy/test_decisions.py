"""Decisions of network policies, as tables: what an entry matches, which entry decides, and other ways of naming a denied server."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.egress.policy.decisions import Content, HttpRequest, Permission, PolicyDecisions
from sandlot.egress.policy.destinations import Destination, parse_destination
from sandlot.egress.policy.refusals import NEXT_STEPS, Refusal
from sandlot.model.errors import ErrorCode
from sandlot.model.network import MAX_ENTRIES, NetworkEntry, NetworkMode, NetworkPolicy
from sandlot.model.network_activity import RefusalReason


def policy(*entries: str, mode: NetworkMode = NetworkMode.ALLOWLIST) -> PolicyDecisions:
    """Return a policy. An entry is a rule, after a ``-`` if the entry denies."""
    return PolicyDecisions(NetworkPolicy(mode, tuple(NetworkEntry(not entry.startswith("-"), entry.removeprefix("-")) for entry in entries)))


def internet(*entries: str) -> PolicyDecisions:
    return policy(*entries, mode=NetworkMode.INTERNET)


def outcome(decisions: PolicyDecisions, host: str, port: int, content: Content = "unknown") -> str:
    """Return ``allowed``, ``limited`` (to some requests), or the reason of the refusal."""
    decision = decisions.decide(parse_destination(host, port), content)
    if isinstance(decision, Refusal):
        return str(decision.reason)
    return "limited" if decision.limits_requests else "allowed"


@pytest.mark.parametrize(
    "rule, host, port, expected",
    [
        ("github.com", "github.com", 443, "allowed"),
        ("github.com", "GitHub.com.", 80, "allowed"),
        ("github.com", "github.com", 22, "port_not_allowed"),
        ("github.com", "github.com", 8080, "port_not_allowed"),
        ("github.com", "api.github.com", 443, "host_not_allowed"),
        ("github.com", "evilgithub.com", 443, "host_not_allowed"),
        ("github.com", "github.com.evil.com", 443, "host_not_allowed"),
        ("github.com", "github.co", 443, "host_not_allowed"),
        ("github.com:22", "github.com", 22, "allowed"),
        ("github.com:22", "github.com", 443, "port_not_allowed"),
        ("github.com:*", "github.com", 1, "allowed"),
        ("github.com:*", "github.com", 65535, "allowed"),
        ("*.example.com", "a.example.com", 443, "allowed"),
        ("*.example.com", "example.com", 443, "host_not_allowed"),
        ("*.example.com", "a.b.example.com", 443, "host_not_allowed"),
        ("*.example.com", "aexample.com", 443, "host_not_allowed"),
        ("**.example.com", "a.example.com", 443, "allowed"),
        ("**.example.com", "a.b.c.example.com", 443, "allowed"),
        ("**.example.com", "example.com", 443, "host_not_allowed"),
        ("**.example.com", "xexample.com", 443, "host_not_allowed"),
        ("bücher.example", "xn--bcher-kva.example", 443, "allowed"),
        ("8.8.8.8", "8.8.8.8", 5432, "allowed"),
        ("8.8.8.8", "134744072", 53, "allowed"),
        ("8.8.8.8:53", "8.8.8.8", 853, "port_not_allowed"),
        ("8.8.8.0/24:443", "8.8.8.255", 443, "allowed"),
        ("8.8.8.0/24", "8.8.9.0", 443, "host_not_allowed"),
        ("0.0.0.0/0", "example.com", 443, "host_not_allowed"),
        ("0.0.0.0/0", "2606:4700::1111", 443, "host_not_allowed"),
        ("[2606:4700::1111]:443", "2606:4700::1111", 443, "allowed"),
        ("::/0", "8.8.8.8", 443, "host_not_allowed"),
        ("10.0.0.0/8", "::ffff:10.0.0.1", 443, "host_not_allowed"),
        ("0x7f.1", "2130706433", 80, "allowed"),
    ],
)
def test_allow_entry_covers_exactly_its_destinations(rule: str, host: str, port: int, expected: str) -> None:
    assert outcome(policy(rule), host, port) == expected
    assert (outcome(internet(f"-{rule}"), host, port) == "allowed") == (expected != "allowed")


@pytest.mark.parametrize(
    "entries, host, expected",
    [
        (("-a.example.com", "**.example.com"), "a.example.com", "host_not_allowed"),
        (("-a.example.com", "**.example.com"), "b.example.com", "allowed"),
        (("**.example.com", "-a.example.com"), "a.example.com", "allowed"),
        (("-a.b:443", "a.b:*"), "a.b", "port_not_allowed"),
        ((), "a.b", "host_not_allowed"),
    ],
)
def test_first_matching_entry_decides(entries: tuple[str, ...], host: str, expected: str) -> None:
    assert outcome(policy(*entries), host, 443) == expected


@pytest.mark.parametrize("mode", [NetworkMode.NONE, NetworkMode.PACKAGES, NetworkMode.ALLOWLIST])
def test_every_mode_but_internet_denies_by_default(mode: NetworkMode) -> None:
    assert outcome(policy(mode=mode), "example.com", 443) == "host_not_allowed"
    assert outcome(policy(mode=mode), "8.8.8.8", 443) == "host_not_allowed"


@pytest.mark.parametrize("host", ["router", "db", "printer.local", "metadata.google.internal", "a.b.internal"])
def test_local_name_is_found_only_with_an_entry(host: str) -> None:
    assert outcome(internet(), host, 80) == "name_not_found"
    if "." in host:
        assert outcome(internet(host), host, 80) == "allowed"
    assert outcome(internet(), f"{host}.example", 80) == "allowed"


GET = HttpRequest("GET", "/repos/x")
POST = HttpRequest("POST", "/repos/x")
OTHER = HttpRequest("GET", "/reposx")


@pytest.mark.parametrize(
    "entries, content, expected",
    [
        (("GET a.b/repos",), "unknown", "limited"),
        (("GET a.b/repos",), GET, "allowed"),
        (("GET a.b/repos",), HttpRequest("GET", "/repos"), "allowed"),
        (("GET a.b/repos",), POST, "method_not_allowed"),
        (("GET a.b/repos",), OTHER, "path_not_allowed"),
        (("GET a.b/repos",), HttpRequest("HEAD", "/repos"), "method_not_allowed"),
        (("GET a.b/repos",), "opaque", "protocol_not_supported"),
        (("GET a.b/repos", "POST a.b/other"), POST, "path_not_allowed"),
        (("GET a.b",), HttpRequest("GET", "/"), "allowed"),
        (("GET a.b/repos", "a.b"), "unknown", "allowed"),
        (("GET a.b/repos", "a.b"), "opaque", "allowed"),
        (("-DELETE a.b", "a.b"), "unknown", "limited"),
        (("-DELETE a.b", "a.b"), HttpRequest("DELETE", "/"), "method_not_allowed"),
        (("-DELETE a.b", "a.b"), GET, "allowed"),
        (("-DELETE a.b", "a.b"), "opaque", "protocol_not_supported"),
        (("-a.b/admin", "a.b"), HttpRequest("GET", "/admin/x"), "path_not_allowed"),
        (("-a.b/admin", "a.b"), HttpRequest("GET", "/administrator"), "allowed"),
        (("-a.b", "GET a.b"), "unknown", "host_not_allowed"),
        (("GET a.b/repos", "-a.b"), "unknown", "limited"),
        (("GET a.b/repos", "-a.b"), OTHER, "host_not_allowed"),
        (("-DELETE a.b",), "unknown", "host_not_allowed"),
        (("GET a.b",), HttpRequest("GET", "*"), "allowed"),
        (("GET a.b/repos",), HttpRequest("GET", None), "path_not_allowed"),
        (("-a.b/admin", "a.b"), HttpRequest("GET", None), "path_not_allowed"),
        (("-DELETE a.b", "a.b"), HttpRequest("GET", None), "allowed"),
        (("a.b",), HttpRequest("GET", None), "allowed"),
    ],
    ids=str,
)
def test_methods_and_paths_are_decided_by_request(entries: tuple[str, ...], content: Content, expected: str) -> None:
    assert outcome(policy(*entries), "a.b", 80, content) == expected


@pytest.mark.parametrize(
    "decisions, host, address, rule",
    [
        (internet("-203.0.113.0/24"), "a.b", "203.0.113.9", "203.0.113.0/24"),
        (internet("-203.0.113.0/24"), "a.b", "8.8.8.8", None),
        (internet("-203.0.113.0/24:22"), "a.b", "203.0.113.9", None),
        (internet("-0.0.0.0/0"), "a.b", "8.8.8.8", "0.0.0.0/0"),
        (policy("-203.0.113.0/24", "a.b"), "a.b", "203.0.113.9", "203.0.113.0/24"),
        (policy("a.b", "-203.0.113.0/24"), "a.b", "203.0.113.9", None),
        (internet("203.0.113.9", "-203.0.113.0/24"), "a.b", "203.0.113.9", None),
        (internet("-DELETE 203.0.113.0/24"), "a.b", "203.0.113.9", "DELETE 203.0.113.0/24"),
    ],
)
def test_denied_address_is_denied_to_the_names_that_resolve_to_it(decisions: PolicyDecisions, host: str, address: str, rule: str | None) -> None:
    destination = parse_destination(host, 443)
    permission = decisions.decide(destination)
    assert isinstance(permission, Permission)
    refusal = decisions.decide_address(permission, destination, ip_address(address))
    assert (refusal and refusal.rule) == rule
    if refusal:
        assert (refusal.host, refusal.port) == (host, 443)


@pytest.mark.parametrize(
    "decisions, name, content, reason",
    [
        (internet("-**.evil.com"), "a.evil.com", "opaque", "host_not_allowed"),
        (internet("-**.evil.com"), "good.com", "opaque", None),
        (internet("-evil.com:443"), "evil.com", "opaque", "port_not_allowed"),
        (internet("-evil.com:80"), "evil.com", "opaque", None),
        (internet("-DELETE evil.com"), "evil.com", "opaque", "protocol_not_supported"),
        (internet("-DELETE evil.com"), "evil.com", HttpRequest("DELETE", "/"), "method_not_allowed"),
        (internet("-DELETE evil.com"), "evil.com", HttpRequest("GET", "/"), None),
        (policy("-evil.com", "8.8.8.8"), "evil.com", "opaque", "host_not_allowed"),
        (policy("8.8.8.8", "-evil.com"), "evil.com", "opaque", None),
        (policy("8.8.8.8"), "any.com", "opaque", None),
    ],
)
def test_denied_name_is_denied_in_connections_to_addresses(decisions: PolicyDecisions, name: str, content: Content, reason: str | None) -> None:
    destination = parse_destination("8.8.8.8", 443)
    permission = decisions.decide(destination, content)
    assert isinstance(permission, Permission)
    refusal = decisions.decide_server_name(permission, destination, name, content)
    assert (refusal and str(refusal.reason)) == reason


def test_refusal_names_the_destination_the_rule_and_the_next_step() -> None:
    refusal = policy("-a.b/x").decide(parse_destination("A.B", 80), HttpRequest("GET", "/x/y"))
    assert refusal == Refusal(RefusalReason.PATH_NOT_ALLOWED, "a.b", 80, "a.b/x", "GET", "/x/y")
    assert refusal.status == 403
    assert refusal.body() == {
        "code": "forbidden",
        "reason": "path_not_allowed",
        "host": "a.b",
        "port": 80,
        "rule": "a.b/x",
        "next_steps": NEXT_STEPS[RefusalReason.PATH_NOT_ALLOWED],
    }


@pytest.mark.parametrize("reason", RefusalReason)
def test_every_reason_has_a_status_a_code_and_a_next_step(reason: RefusalReason) -> None:
    refusal = Refusal(reason, "a.b", 80)
    assert refusal.status == {"upstream_failed": 502, "limit_exceeded": 429}.get(str(reason), 403)
    assert refusal.body()["code"] in set(ErrorCode)
    assert refusal.body()["next_steps"]


HOSTS = st.sampled_from(["a.b", "x.a.b", "y.x.a.b", "c.d", "8.8.8.8", "2606:4700::1", "0x8080808"])
RULES = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(["", "-"]),
        st.sampled_from(["", "GET ", "GET,POST "]),
        st.sampled_from(["a.b", "*.a.b", "**.a.b", "c.d", "8.8.8.8", "8.8.0.0/16", "0.0.0.0/0", "[2606:4700::]/32"]),
        st.sampled_from(["", ":443", ":*"]),
        st.sampled_from(["", "/x", "/x/y"]),
    ),
)
REQUESTS = [HttpRequest(method, path) for method in ("GET", "POST", "PUT") for path in ("/", "/x", "/x/y", "/xy")]


@given(st.lists(RULES, max_size=5), HOSTS, st.sampled_from([80, 443, 22]), st.sampled_from([NetworkMode.ALLOWLIST, NetworkMode.INTERNET]))
def test_connection_is_refused_before_its_content_only_if_every_content_is_refused(
    entries: list[str], host: str, port: int, mode: NetworkMode
) -> None:
    decisions = policy(*entries, mode=mode)
    contents: list[Content] = [*REQUESTS, "opaque"]
    outcomes = [outcome(decisions, host, port, content) for content in contents]
    before = outcome(decisions, host, port)
    if before == "allowed":
        assert set(outcomes) == {"allowed"}
    elif before == "limited":
        assert set(outcomes) != {"allowed"}
    else:
        assert "allowed" not in outcomes


@given(st.lists(RULES, max_size=5), HOSTS, st.sampled_from([80, 443, 22]), st.sampled_from([*REQUESTS, "opaque", "unknown"]))
def test_later_entry_changes_no_decision_of_an_earlier_one(entries: list[str], host: str, port: int, content: Content) -> None:
    shorter = policy(*entries).decide(parse_destination(host, port), content)
    longer = policy(*entries, "-a.b:*", "**.a.b:*", "0.0.0.0/0").decide(parse_destination(host, port), content)
    if isinstance(shorter, Permission) and not shorter.limits_requests:
        assert shorter == longer
    if isinstance(shorter, Refusal) and shorter.rule and content != "unknown":
        assert shorter == longer


def test_policy_with_all_entries_decides() -> None:
    decisions = policy(*(f"host{number}.example" for number in range(MAX_ENTRIES)))
    assert outcome(decisions, f"host{MAX_ENTRIES - 1}.example", 443) == "allowed"
    assert outcome(decisions, "host.example", 443) == "host_not_allowed"


NAMES_AND_RULES = st.lists(
    st.tuples(st.booleans(), st.sampled_from(["a.test", "*.a.test", "**.test.test", "b.a.test:25", "a.test:*", "b.a.test:25/x", "GET a.test:80"])),
    max_size=5,
)


@given(
    NAMES_AND_RULES,
    st.sampled_from(["a.test", "b.a.test", "c.b.a.test", "x.test.test"]),
    st.sampled_from([NetworkMode.ALLOWLIST, NetworkMode.INTERNET]),
)
def test_name_is_allowed_if_a_connection_on_any_port_is(entries: list[tuple[bool, str]], name: str, mode: NetworkMode) -> None:
    decisions = PolicyDecisions(NetworkPolicy(mode, tuple(NetworkEntry(allow, rule) for allow, rule in entries)))
    on_ports = [decisions.decide(Destination(name, port)) for port in (80, 443, 25, 9)]
    assert decisions.allows_name(name) is any(isinstance(each, Permission) for each in on_ports)
