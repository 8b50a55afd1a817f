"""Heads of requests and responses, translated between clients and programs."""

from __future__ import annotations

import pytest

from sandlot.model.errors import InvalidRequestError, NotFoundError
from sandlot.server.preview import forwarding
from sandlot.server.preview.forwarding import Client, PreviewRequest
from sandlot.web.preview_urls import PreviewAddress
from tests.unit.server.preview.world import OTHER, SANDBOX, token_of

ADDRESS = PreviewAddress("https", "preview.example.com")
HOST = ADDRESS.host(SANDBOX, 3000)
ORIGIN = f"https://{HOST}"
TOKEN = token_of(SANDBOX)
CLIENT = Client("192.0.2.7", "https")


def parse(target: str = "/", *headers: tuple[str, str], method: str = "GET", host: str = HOST, address: PreviewAddress = ADDRESS) -> PreviewRequest:
    """Parse a request to the preview of the tests."""
    fields = [(b"host", host.encode()), *((name.encode(), value.encode()) for name, value in headers)]
    return forwarding.parse_request(method.encode(), target.encode(), fields, address, address.scheme)


def to_program(request: PreviewRequest, *headers: tuple[str, str], host: str = "localhost:3000") -> dict[str, str]:
    """Return the headers that a program receives."""
    fields = [(b"host", HOST.encode()), *((name.encode(), value.encode()) for name, value in headers)]
    return {name.decode(): value.decode() for name, value in forwarding.request_to_program(fields, request, host, CLIENT)}


def to_client(request: PreviewRequest, *headers: tuple[str, str], origin_is_null: bool = False) -> list[tuple[str, str]]:
    """Return the headers that a client receives."""
    fields = [(name.encode(), value.encode()) for name, value in headers]
    sent = forwarding.response_to_client(fields, request, "localhost:3000", origin_is_null=origin_is_null)
    return [(name.decode(), value.decode()) for name, value in sent]


@pytest.mark.parametrize(
    "host",
    [HOST, HOST.upper(), f"{HOST}:443", f"{HOST}:8443", f"{HOST}."],
)
def test_a_host_names_sandbox_and_port_in_any_spelling(host: str) -> None:
    found = parse(host=host)
    assert (found.sandbox, found.port, found.path) == (SANDBOX, 3000, None)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "preview.example.com",
        f"x.{HOST}",
        f"3000-{SANDBOX}.example.com",
        f"3000-{SANDBOX}",
        f"-3000-{SANDBOX}.preview.example.com",
        f"3000-{SANDBOX}.preview.example.com.evil",
    ],
)
def test_other_hosts_name_no_preview(host: str) -> None:
    with pytest.raises(NotFoundError):
        parse(host=host)


@pytest.mark.parametrize(
    "target, method, headers",
    [
        ("http://example.com/", "GET", ()),
        ("*", "OPTIONS", ()),
        ("example.com:443", "CONNECT", ()),
        ("/", "POST", (("content-length", "1"), ("transfer-encoding", "chunked"))),
        ("/", "GET", (("upgrade", "tcp"),)),
        ("/", "GET", (("upgrade", "websocket"), ("content-length", "1"))),
        (f"/p/{TOKEN}/sw.js", "GET", (("service-worker", "script"),)),
    ],
)
def test_requests_that_must_not_be_forwarded_are_refused(target: str, method: str, headers: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(InvalidRequestError):
        parse(target, *headers, method=method, host="preview.example.com" if target.startswith("/p/") else HOST)


@pytest.mark.parametrize(
    "target, rest",
    [
        ("/?sandlot_token=T", "/"),
        ("/a?sandlot_token=T&b=1", "/a?b=1"),
        ("/a?b=1&sandlot_token=T", "/a?b=1"),
        ("/a?b=1&sandlot_token=T&c=%26&sandlot_token=U", "/a?b=1&c=%26"),
        ("/a?xsandlot_token=T", "/a?xsandlot_token=T"),
        ("/sandlot_token=T", "/sandlot_token=T"),
        ("/a?", "/a?"),
    ],
)
def test_the_token_of_a_query_is_taken_out_and_the_rest_stays_as_it_is(target: str, rest: str) -> None:
    found = parse(target)
    assert found.target.decode() == rest
    assert bool(found.tokens) == (target != rest)


def test_the_path_form_takes_the_token_from_the_path() -> None:
    found = parse(f"/p/{TOKEN}/a/b?c=d", host="127.0.0.1:8081")
    assert (found.sandbox, found.port, found.target, found.tokens, found.path) == (SANDBOX, 3000, b"/a/b?c=d", (TOKEN,), f"/p/{TOKEN}")
    assert (found.redeem, parse(f"/p/{TOKEN}", host="x").redeem) == (False, True)


def test_tokens_of_headers_and_cookies_are_found() -> None:
    cookie = ("cookie", "x=1; sandlot_preview=c; __Host-sandlot_preview=d")
    found = parse("/?sandlot_token=e", ("x-sandlot-preview-token", "a"), ("e2b-traffic-access-token", "b"), cookie, ("sec-fetch-site", "none"))
    assert (found.header_tokens, found.tokens, found.cookie_tokens) == (("a", "b"), ("e",), ("c", "d"))


def test_few_tokens_of_a_request_are_checked() -> None:
    many = "; ".join(["sandlot_preview=c"] * 100)
    found = parse("/?" + "&".join(["sandlot_token=t"] * 100), ("cookie", many), ("sec-fetch-site", "none"))
    assert (len(found.tokens), len(found.cookie_tokens)) == (forwarding.MAX_TOKENS, forwarding.MAX_TOKENS)


@pytest.mark.parametrize("host", [f"{HOST}:80@evil.example", f"{HOST}/x", "a b", "localhost:x", "[::1"])
def test_a_host_that_is_none_is_refused(host: str) -> None:
    with pytest.raises(InvalidRequestError):
        parse(host=host)


@pytest.mark.parametrize(
    "name, value, kept",
    [
        ("x-access-token", "theirs", True),
        ("x-access-token", f"0123456789ab.{SANDBOX}.signature", False),
        ("authorization", f"Bearer local.{SANDBOX}.signature", False),
        ("authorization", "Bearer sandlot_" + "a" * 43, False),
        ("x-api-key", "e2b_" + "0" * 64, False),
        ("x-api-key", "e2b_" + "0" * 40, True),
        ("x_forwarded_for", "10.0.0.1", False),
        ("x-real-ip", "10.0.0.1", False),
    ],
)
def test_keys_and_tokens_of_the_service_and_addresses_that_a_client_claims_reach_no_program(name: str, value: str, *, kept: bool) -> None:
    assert (name in to_program(parse(), (name, value))) == kept


@pytest.mark.parametrize(
    "sent, received",
    [
        ([], "private"),
        (["public, max-age=60"], "private, max-age=60"),
        (["s-maxage=9, no-cache", "no-store"], "private, no-cache, no-store"),
        (["private"], "private"),
    ],
)
def test_a_shared_cache_keeps_no_private_response(sent: list[str], received: str) -> None:
    headers = [(b"etag", b"e"), (b"cdn-cache-control", b"max-age=9"), *((b"cache-control", value.encode()) for value in sent)]
    assert forwarding.without_shared_caches(headers) == [(b"etag", b"e"), (b"cache-control", received.encode())]


@pytest.mark.parametrize(
    "scheme, header, counts",
    [
        ("https", ("accept", "*/*"), False),
        ("http", ("accept", "*/*"), False),
        ("http", ("upgrade-insecure-requests", "1"), True),
        ("http", ("referer", f"http://{HOST}/page"), True),
        ("http", ("referer", f"http://{HOST}.evil.example/"), False),
    ],
)
def test_cookie_without_fetch_metadata_counts_for_the_own_page_and_tabs(scheme: str, header: tuple[str, str], *, counts: bool) -> None:
    address = PreviewAddress(scheme, ADDRESS.domain)
    assert bool(parse("/", ("cookie", "sandlot_preview=a"), header, address=address).cookie_tokens) == counts


def test_a_program_gets_the_local_host_and_nothing_of_the_service() -> None:
    headers = (
        ("cookie", "a=1; sandlot_preview=t; b=2; __Host-sandlot_preview=t"),
        ("x-sandlot-preview-token", TOKEN),
        ("e2b-traffic-access-token", TOKEN),
        ("x-forwarded-for", "10.0.0.1"),
        ("x-forwarded-user", "root"),
        ("forwarded", "for=10.0.0.1"),
        ("connection", "close, x-secret"),
        ("x-secret", "1"),
        ("te", "trailers"),
        ("accept", "*/*"),
        ("authorization", "Bearer theirs"),
    )
    assert to_program(parse("/", *headers), *headers) == {
        "host": "localhost:3000",
        "cookie": "a=1; b=2",
        "accept": "*/*",
        "authorization": "Bearer theirs",
        "x-forwarded-for": "192.0.2.7",
        "x-forwarded-host": HOST,
        "x-forwarded-proto": "https",
    }


@pytest.mark.parametrize(
    "sent, received",
    [
        (ORIGIN, "http://localhost:3000"),
        ("https://example.com", "https://example.com"),
        (f"https://{ADDRESS.host(OTHER, 3000)}", f"https://{ADDRESS.host(OTHER, 3000)}"),
    ],
)
def test_only_the_own_origin_is_translated(sent: str, received: str) -> None:
    assert to_program(parse(), ("origin", sent))["origin"] == received


@pytest.mark.parametrize(
    "sent, received",
    [
        (f"{ORIGIN}/a?b=1", "http://localhost:3000/a?b=1"),
        (f"{ORIGIN}/a?sandlot_token=x", "http://localhost:3000/a"),
        (ORIGIN, "http://localhost:3000/"),
        ("https://example.com/", "https://example.com/"),
        (f"https://preview.example.com/p/{TOKEN}/a", None),
        (f"https://{ADDRESS.host(OTHER, 3000)}/?sandlot_token=x", None),
    ],
)
def test_a_referer_is_translated_and_carries_no_token(sent: str, received: str | None) -> None:
    assert to_program(parse(), ("referer", sent)).get("referer") == received


def test_the_masked_host_is_used_for_host_and_origin() -> None:
    found = to_program(parse(), ("origin", ORIGIN), host="app.example.com")
    assert (found["host"], found["origin"]) == ("app.example.com", "http://app.example.com")


@pytest.mark.parametrize(
    "sent, received",
    [
        ("a=1; Path=/; Domain=preview.example.com; Secure", "a=1; Path=/; Secure"),
        ("a=1; domain = .example.com", "a=1"),
        ("a=1;DOMAIN=x;HttpOnly", "a=1;HttpOnly"),
        ("a=Domain; Path=/Domain=x", "a=Domain; Path=/Domain=x"),
        ("sandlot_preview=x", None),
        ("=sandlot_preview=x", None),
        ("__Host-sandlot_preview = x; Secure", None),
    ],
)
def test_cookies_of_a_program_are_for_its_host_only(sent: str, received: str | None) -> None:
    assert dict(to_client(parse(), ("set-cookie", sent))).get("set-cookie") == received


@pytest.mark.parametrize(
    "sent, received",
    [
        ("http://localhost:3000/login?a=b", f"{ORIGIN}/login?a=b"),
        ("http://localhost:3000", ORIGIN),
        ("http://localhost:30001/", "http://localhost:30001/"),
        ("/login", "/login"),
        ("https://example.com/", "https://example.com/"),
    ],
)
def test_redirects_to_the_local_address_lead_to_the_preview(sent: str, received: str) -> None:
    assert dict(to_client(parse(), ("location", sent)))["location"] == received


@pytest.mark.parametrize(
    "sent, received",
    [
        ("http://localhost:3000/a", f"https://preview.example.com/p/{TOKEN}/a"),
        ("/a", f"/p/{TOKEN}/a"),
        ("a", "a"),
        ("//example.com/a", "//example.com/a"),
    ],
)
def test_redirects_stay_in_the_path_form(sent: str, received: str) -> None:
    request = parse(f"/p/{TOKEN}/", host="preview.example.com")
    assert dict(to_client(request, ("location", sent)))["location"] == received


def test_headers_of_a_connection_and_of_another_framing_are_dropped() -> None:
    headers = (
        ("connection", "keep-alive, x-hop"),
        ("x-hop", "1"),
        ("transfer-encoding", "chunked"),
        ("content-length", "5"),
        ("alt-svc", "h3=x"),
        ("etag", "e"),
    )
    assert to_client(parse(), *headers) == [("etag", "e")]


def test_the_path_form_removes_what_changes_its_origin_and_isolates_the_page() -> None:
    request = parse(f"/p/{TOKEN}/", host="preview.example.com")
    headers = (
        ("set-cookie", "a=1"),
        ("clear-site-data", "*"),
        ("strict-transport-security", "max-age=1"),
        ("service-worker-allowed", "/"),
        ("access-control-allow-origin", "*"),
        ("access-control-allow-credentials", "true"),
        ("content-type", "text/html"),
    )
    policy = ("content-security-policy", "sandbox allow-scripts allow-forms")
    isolated = [policy, ("vary", "Origin"), ("access-control-allow-origin", "null")]
    assert to_client(request, *headers, origin_is_null=True) == [("content-type", "text/html"), *isolated]


@pytest.mark.parametrize("target", ["//evil.example/x", "/\\evil.example", "///evil.example"])
def test_the_redirect_after_redemption_stays_on_the_host(target: str) -> None:
    request = parse(f"{target}?sandlot_token={TOKEN}", ("accept", "text/html"))
    headers = dict(forwarding.redemption(request, TOKEN, "https", 60))
    assert headers[b"location"] == b"/" + target.lstrip("/\\").encode()
