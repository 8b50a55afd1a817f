"""Comparison of TLS and HTTP with the destination: other names, two hosts, absolute targets, and requests that servers read in several ways."""

from __future__ import annotations

from ipaddress import ip_address

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.egress.gateway.checks import check_hello, check_request
from sandlot.egress.gateway.client_hello import ClientHello
from sandlot.egress.gateway.http_head import normal_path
from sandlot.egress.policy.decisions import PolicyDecisions
from sandlot.egress.policy.destinations import parse_destination
from sandlot.egress.policy.refusals import Refusal
from sandlot.model.errors import InvalidRequestError
from sandlot.model.network import parse_rule
from tests.unit.egress.policy.test_decisions import internet, policy

PUBLIC = ip_address("93.184.216.34")


def reason(refusal: Refusal | None) -> str | None:
    return None if refusal is None else str(refusal.reason)


@pytest.mark.parametrize(
    "decisions, host, hello, expected",
    [
        (policy("a.b"), "a.b", ClientHello("a.b"), None),
        (policy("a.b"), "A.B.", ClientHello("A.b"), None),
        (policy("a.b"), "a.b", ClientHello("a.b", may_hide_name=True), None),
        (policy("a.b"), "a.b", ClientHello(None), "tls_name_mismatch"),
        (policy("a.b"), "a.b", ClientHello("c.d"), "tls_name_mismatch"),
        (policy("a.b", "c.d"), "a.b", ClientHello("c.d"), "tls_name_mismatch"),
        (policy("a.b"), "a.b", ClientHello("c.d", may_hide_name=True), "tls_name_mismatch"),
        (policy("a.b"), "a.b", ClientHello("a.b\0.c.d"), "tls_name_mismatch"),
        (policy("a.b"), "a.b", ClientHello("x.a.b"), "tls_name_mismatch"),
        (policy("a.b"), "a.b", ClientHello("93.184.216.34"), "tls_name_mismatch"),
        (policy("GET a.b"), "a.b", ClientHello("a.b"), "protocol_not_supported"),
        (policy("-DELETE a.b", "a.b"), "a.b", ClientHello("a.b"), "protocol_not_supported"),
        (internet(), "8.8.8.8", ClientHello(None), None),
        (internet(), "8.8.8.8", ClientHello("c.d"), None),
        (internet(), "8.8.8.8", ClientHello("c.d", may_hide_name=True), None),
        (internet("-evil.com"), "8.8.8.8", ClientHello("evil.com"), "host_not_allowed"),
        (internet("-evil.com"), "8.8.8.8", ClientHello("EVIL.com."), "host_not_allowed"),
        (internet("-evil.com"), "8.8.8.8", ClientHello("c.d"), None),
        (internet("-evil.com"), "8.8.8.8", ClientHello("c.d", may_hide_name=True), "tls_name_mismatch"),
        (internet("-evil.com"), "8.8.8.8", ClientHello("a b"), "tls_name_mismatch"),
        (policy("8.8.8.8", "-evil.com"), "8.8.8.8", ClientHello("evil.com"), None),
    ],
)
def test_tls_name_must_be_the_name_that_was_connected_to(decisions: PolicyDecisions, host: str, hello: ClientHello, expected: str | None) -> None:
    assert reason(check_hello(hello, decisions, parse_destination(host, 443))) == expected


def request(*lines: str) -> h11.Request:
    connection = h11.Connection(h11.SERVER)
    connection.receive_data("".join(f"{line}\r\n" for line in (*lines, "")).encode("latin-1"))
    event = connection.next_event()
    assert isinstance(event, h11.Request)
    return event


@pytest.mark.parametrize(
    "decisions, host, lines, expected",
    [
        (policy("a.b"), "a.b", ("GET / HTTP/1.1", "Host: a.b"), None),
        (policy("a.b"), "a.b", ("GET / HTTP/1.1", "Host: A.B.:80"), None),
        (policy("a.b"), "a.b", ("GET / HTTP/1.1", "Host: a.b:"), None),
        (policy("a.b"), "a.b", ("OPTIONS * HTTP/1.1", "Host: a.b"), None),
        (policy("a.b"), "a.b", ("GET /../x HTTP/1.1", "Host: a.b"), None),
        (policy("a.b"), "a.b", ("GET / HTTP/1.1", "Host: c.d"), "http_host_mismatch"),
        (policy("a.b", "c.d"), "a.b", ("GET / HTTP/1.1", "Host: c.d"), "http_host_mismatch"),
        (policy("a.b"), "a.b", ("GET / HTTP/1.1", "Host: a.b:8080"), "http_host_mismatch"),
        (policy("a.b"), "a.b", ("GET / HTTP/1.1", "Host: a.b:99999"), "http_host_mismatch"),
        (policy("a.b"), "a.b", ("GET / HTTP/1.1", "Host: a.b@c.d"), "http_host_mismatch"),
        (policy("a.b"), "a.b", ("GET / HTTP/1.1", "Host: a.b, c.d"), "http_host_mismatch"),
        (policy("a.b"), "a.b", ("GET / HTTP/1.1", "Host:"), "http_host_mismatch"),
        (policy("a.b"), "a.b", ("GET / HTTP/1.1", "Host: 93.184.216.34"), "http_host_mismatch"),
        (policy("a.b"), "a.b", ("GET / HTTP/1.1", "Host: \xe4.b"), "http_host_mismatch"),
        (policy("a.b"), "a.b", ("GET / HTTP/1.0",), "http_host_mismatch"),
        (policy("a.b"), "a.b", ("GET http://a.b/ HTTP/1.1", "Host: a.b"), "http_host_mismatch"),
        (policy("a.b"), "a.b", ("GET http://c.d/ HTTP/1.1", "Host: a.b"), "http_host_mismatch"),
        (policy("a.b"), "a.b", ("GET //c.d/ HTTP/1.1", "Host: a.b"), None),
        (policy("a.b"), "a.b", ("CONNECT c.d:443 HTTP/1.1", "Host: a.b"), "method_not_allowed"),
        (policy("a.b"), "a.b", ("POST / HTTP/1.1", "Host: a.b", "Content-Length: 3", "Transfer-Encoding: chunked"), "protocol_not_supported"),
        (policy("GET a.b/x"), "a.b", ("GET /x/y?z=1 HTTP/1.1", "Host: a.b"), None),
        (policy("GET a.b/x"), "a.b", ("GET /%78/y HTTP/1.1", "Host: a.b"), None),
        (policy("GET a.b/x"), "a.b", ("POST /x HTTP/1.1", "Host: a.b", "Content-Length: 0"), "method_not_allowed"),
        (policy("GET a.b/x"), "a.b", ("get /x HTTP/1.1", "Host: a.b"), "method_not_allowed"),
        (policy("GET a.b/x"), "a.b", ("GET /y HTTP/1.1", "Host: a.b"), "path_not_allowed"),
        (policy("GET a.b/x"), "a.b", ("GET /x/../y HTTP/1.1", "Host: a.b"), "path_not_allowed"),
        (policy("GET a.b/x"), "a.b", ("GET /x/%2e%2E/y HTTP/1.1", "Host: a.b"), "path_not_allowed"),
        (policy("GET a.b/x"), "a.b", ("GET /x/..;/y HTTP/1.1", "Host: a.b"), "path_not_allowed"),
        (policy("GET a.b/x"), "a.b", ("GET /x%2f..%2fy HTTP/1.1", "Host: a.b"), "path_not_allowed"),
        (policy("GET a.b/x"), "a.b", ("GET /x/\\y HTTP/1.1", "Host: a.b"), "path_not_allowed"),
        (policy("-a.b/admin", "a.b"), "a.b", ("GET /%61dmin HTTP/1.1", "Host: a.b"), "path_not_allowed"),
        (policy("-a.b/admin", "a.b"), "a.b", ("GET //admin HTTP/1.1", "Host: a.b"), "path_not_allowed"),
        (policy("-a.b/admin", "a.b"), "a.b", ("GET /x/../admin HTTP/1.1", "Host: a.b"), "path_not_allowed"),
        (policy("-a.b/admin", "a.b"), "a.b", ("GET /admin;x HTTP/1.1", "Host: a.b"), "path_not_allowed"),
        (policy("-a.b/admin", "a.b"), "a.b", ("GET /x HTTP/1.1", "Host: a.b"), None),
        (policy("GET a.b/x", "-93.184.216.0/24", "POST a.b"), "a.b", ("GET /x HTTP/1.1", "Host: a.b"), None),
        (policy("GET a.b/x", "-93.184.216.0/24", "POST a.b"), "a.b", ("POST / HTTP/1.1", "Host: a.b"), "host_not_allowed"),
        (internet("-evil.com"), "93.184.216.34", ("GET / HTTP/1.1", "Host: evil.com"), "host_not_allowed"),
        (internet("-evil.com"), "93.184.216.34", ("GET / HTTP/1.1", "Host: good.com"), None),
        (internet("-evil.com"), "93.184.216.34", ("GET / HTTP/1.1", "Host: evil.com:8080"), "http_host_mismatch"),
        (internet("-evil.com/x"), "93.184.216.34", ("GET //x HTTP/1.1", "Host: evil.com"), "path_not_allowed"),
        (internet("-evil.com/x"), "93.184.216.34", ("GET /y HTTP/1.1", "Host: evil.com"), None),
        (internet(), "93.184.216.34", ("GET / HTTP/1.1", "Host: 93.184.216.34"), None),
        (internet(), "93.184.216.34", ("GET / HTTP/1.0",), None),
    ],
)
def test_request_must_be_for_the_host_that_was_connected_to(
    decisions: PolicyDecisions, host: str, lines: tuple[str, ...], expected: str | None
) -> None:
    assert reason(check_request(request(*lines), decisions, parse_destination(host, 80), PUBLIC)) == expected


@pytest.mark.parametrize(
    "target, path",
    [
        (b"/", "/"),
        (b"*", "*"),
        (b"/a/b/", "/a/b"),
        (b"/a?b=/../c", "/a"),
        (b"/%7euser/%c3%a9", "/~user/%C3%A9"),
        (b"/a%20b", "/a%20b"),
        (b"/?x", "/"),
        *(
            (target, None)
            for target in (b"//", b"/a//b", b"/.", b"/a/..", b"/%2e", b"/%2F", b"/%5c", b"/\\", b"/a;b", b"/%00", b"/%", b"/%zz", b"/%ff", b"/a#b")
        ),
    ],
)
def test_path_has_one_normal_form(target: bytes, path: str | None) -> None:
    assert normal_path(target) == path


@given(st.text(max_size=30))
def test_path_of_a_rule_matches_itself(text: str) -> None:
    try:
        rule = parse_rule(f"a.b/{text}")
    except InvalidRequestError:
        return
    if ";" not in rule.path:
        assert normal_path(rule.path.encode() or b"/") == (rule.path or "/")
