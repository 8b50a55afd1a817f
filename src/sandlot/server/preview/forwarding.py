"""Rules of forwarding: find the preview that a request is for, and translate the heads of requests and responses. Pure.

Invariants:
- A program sees the same Host in requests and in upgrades, that of its loopback address unless ``mask_request_host`` says otherwise. Development
  servers refuse other hosts, and end hot reload if the two differ.
- Tokens and cookies of the service never reach a program, and a program cannot set such cookies.
- The framing of a message is decided anew for each connection: no header that describes a connection, or where a body ends, is copied.
- A cookie of a program is valid for its own host only.
- The path form has one origin for all previews. The browser is told to isolate its pages (``sandbox`` of Content-Security-Policy), and headers by
  which a page would change the origin as a whole are removed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from sandlot.model.errors import InvalidRequestError, NotFoundError
from sandlot.model.ids import SandboxId
from sandlot.model.previews import check_port, parse_preview_label
from sandlot.web.preview_urls import PATH_PREFIX, TOKEN_HEADERS, TOKEN_PARAMETER, PreviewAddress

Headers = list[tuple[bytes, bytes]]

COOKIE: Final = b"sandlot_preview"
HOST_COOKIE: Final = b"__Host-sandlot_preview"
"""Name of the cookie over HTTPS. Browsers accept a name with this prefix only from the host itself, not from a subdomain of the same domain."""

PATH_FORM_POLICY: Final = b"sandbox allow-scripts allow-forms"
"""Content-Security-Policy of the path form. Without ``allow-same-origin``, each page has an opaque origin and neither cookies nor storage."""

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    }
)
_OWN_REQUEST_HEADERS = frozenset({*TOKEN_HEADERS, b"host", b"cookie", b"origin", b"referer", b"forwarded"})
"""Headers of a request that are removed or translated, with all that begin with ``x-forwarded-``."""
_DROPPED_RESPONSE_HEADERS = frozenset({b"alt-svc", b"clear-site-data"})
"""Headers of a response by which a page would lead the browser to other servers, or delete the cookies of the whole domain."""
_ORIGIN_WIDE = frozenset(
    {
        b"accept-ch",
        b"nel",
        b"public-key-pins",
        b"public-key-pins-report-only",
        b"report-to",
        b"reporting-endpoints",
        b"service-worker-allowed",
        b"set-cookie",
        b"set-login",
        b"strict-transport-security",
        b"use-as-dictionary",
        b"www-authenticate",
    }
)
"""Headers of a response that change an origin as a whole."""
_DEFAULT_PORTS = {"http": 80, "https": 443}
_PAIR = re.compile(rb"\s*;\s*")
_SHARED_CACHES = frozenset({b"surrogate-control", b"cdn-cache-control"})
_CLIENT_ADDRESS = frozenset({b"x-real-ip", b"true-client-ip", b"x-client-ip", b"cf-connecting-ip"})
_CREDENTIALS = frozenset({b"authorization", b"x-access-token", b"x-api-key"})
"""Headers in which clients of this service send API keys and tokens of sandboxes, and clients of programs something else."""
_KEY = re.compile(rb"\b(?:sandlot_[A-Za-z0-9_-]{43}|e2b_[0-9a-f]{64})")
MAX_TOKENS: Final = 4
"""Number of tokens of a request that are checked. Each check takes some microseconds."""
_HOST = re.compile(r"[A-Za-z0-9._-]+(?::[0-9]{1,5})?|\[[0-9A-Fa-f:.]+\](?::[0-9]{1,5})?")
_TOKEN_IN_URL = re.compile(rb"%s=|%s[0-9]+-sb-" % (TOKEN_PARAMETER.encode(), PATH_PREFIX.encode()))


@dataclass(frozen=True, slots=True)
class Client:
    """Client of a connection.

    Args:
        address: Address of the client, or of the nearest proxy that is not trusted.
        scheme: ``http`` or ``https``, as the client sees it.
    """

    address: str
    scheme: str


@dataclass(frozen=True, slots=True)
class PreviewRequest:
    """A request for a preview.

    Args:
        sandbox: Id of the sandbox, as received.
        port: Port, as received.
        target: Target of the request for the program: path and query.
        origin: Origin of the preview as the client sees it, such as ``http://3000-sb-….localhost:8081``.
        path: Prefix of the path form, ``/p/TOKEN``; None for the host form.
        header_tokens: Tokens of headers, which programs send.
        tokens: Tokens of the query or of the path, which stand in URLs.
        cookie_tokens: Tokens of cookies, which browsers send also for requests that another site's page makes.
        redeem: True if the token stands in the query, and a browser navigates: the token is exchanged for a cookie.
        is_preflight: True for a request by which a browser asks whether a page of the path form may send another request.
        upgrade: True for a WebSocket.
    """

    sandbox: SandboxId
    port: int
    target: bytes
    origin: str
    path: str | None
    header_tokens: tuple[str, ...]
    tokens: tuple[str, ...]
    cookie_tokens: tuple[str, ...]
    redeem: bool
    is_preflight: bool
    upgrade: bool

    @property
    def is_path_form(self) -> bool:
        """True for the path form."""
        return self.path is not None


def parse_request(method: bytes, target: bytes, headers: Iterable[tuple[bytes, bytes]], address: PreviewAddress, scheme: str) -> PreviewRequest:
    """Find the preview that a request is for.

    Args:
        method: Method of the request.
        target: Target of the request, as received.
        headers: Lower-case names and values.
        address: Address of the previews.
        scheme: ``http`` or ``https``, as the client sees it.

    Raises:
        InvalidRequestError: The request must not be forwarded: a target without a path, two lengths of the body, an upgrade other than to
            WebSocket, a service worker of the path form.
        NotFoundError: The request names no preview (``not_found``).
    """
    fields: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        fields.setdefault(name, []).append(value)
    if not target.startswith(b"/") or method == b"CONNECT":
        raise InvalidRequestError("The target of the request is not a path.", hint="Send the request directly, not as to a proxy.")
    if has_two_lengths(fields):
        raise InvalidRequestError("The request has both Transfer-Encoding and Content-Length.", hint="Send one of the two.")
    upgrade = _wants_websocket(fields)
    host = _first(fields, b"host")
    if host and _HOST.fullmatch(host) is None:
        raise InvalidRequestError("The Host header of the request is not a host.", hint="Send the host of the URL, such as example.com:8080.")
    named = address.parse_host(host)
    is_navigation = method in {b"GET", b"HEAD"} and "text/html" in _first(fields, b"accept") and _first(fields, b"sec-fetch-mode") in {"", "navigate"}
    header_tokens = tuple(value.decode("latin-1") for name in TOKEN_HEADERS for value in fields.get(name, ()))[:MAX_TOKENS]
    if named is not None:
        check_port(named[1])
        origin = f"{scheme}://{_without_default_port(host.lower(), scheme)}"
        stripped, query_tokens = _take_query_token(target)
        return PreviewRequest(
            sandbox=named[0],
            port=named[1],
            target=stripped,
            origin=origin,
            path=None,
            header_tokens=header_tokens,
            tokens=tuple(query_tokens[:MAX_TOKENS]),
            cookie_tokens=_cookie_tokens(fields)[:MAX_TOKENS] if _is_from_own_page(method, fields, origin) else (),
            redeem=bool(query_tokens) and is_navigation and not upgrade,
            is_preflight=False,
            upgrade=upgrade,
        )
    return _parse_path_form(method, target, fields, f"{scheme}://{host}", upgrade=upgrade)


def _parse_path_form(method: bytes, target: bytes, fields: dict[bytes, list[bytes]], origin: str, *, upgrade: bool) -> PreviewRequest:
    path = target.decode("latin-1")
    token, slash, rest = path.removeprefix(PATH_PREFIX).partition("/")
    token, question, query = token.partition("?")
    named = parse_preview_label(unquote(token).partition(".")[0]) if path.startswith(PATH_PREFIX) else None
    if named is None:
        raise NotFoundError("There is no preview at this address.", hint="Open the URL that `get_url` or `sandlot url` returned.")
    if b"service-worker" in fields:
        raise InvalidRequestError(
            "Pages of the path form cannot register service workers.", hint="Open the preview in its host form; see `get_url` in the documentation."
        )
    check_port(named[1])
    is_preflight = method == b"OPTIONS" and b"access-control-request-method" in fields and _first(fields, b"origin") == "null"
    return PreviewRequest(
        sandbox=named[0],
        port=named[1],
        target=f"/{rest}".encode("latin-1") if slash else f"/{question}{query}".encode("latin-1"),
        origin=origin,
        path=f"{PATH_PREFIX}{token}",
        header_tokens=(),
        tokens=(unquote(token),),
        cookie_tokens=(),
        redeem=not slash,
        is_preflight=is_preflight,
        upgrade=upgrade,
    )


def redemption(request: PreviewRequest, token: str | None, scheme: str, lifetime_s: float | None) -> Headers:
    """Return the headers of the redirect by which a browser exchanges the token of a URL for a cookie.

    In the path form, the redirect adds the slash behind the token, to which relative links refer.

    Args:
        request: The request, parsed.
        token: Token that opened the port; None if the port is public.
        scheme: ``http`` or ``https``, as the client sees it.
        lifetime_s: Seconds until the token expires; None: the cookie is kept until the browser ends.
    """
    headers = [(b"cache-control", b"no-store"), (b"referrer-policy", b"no-referrer"), (b"content-length", b"0")]
    if request.path is not None:
        return [(b"location", request.path.encode("latin-1") + request.target), *headers]
    headers.append((b"location", _relative(request.target)))
    if token is not None:
        name, secure = (HOST_COOKIE, b"; Secure") if scheme == "https" else (COOKIE, b"")
        age = b"" if lifetime_s is None else b"; Max-Age=%d" % lifetime_s
        headers.append((b"set-cookie", b"%s=%s; Path=/%s; HttpOnly; SameSite=Lax%s" % (name, token.encode("latin-1"), age, secure)))
    return headers


def request_to_program(headers: Iterable[tuple[bytes, bytes]], request: PreviewRequest, host: str, client: Client) -> Headers:
    """Return the headers that the program receives.

    Args:
        headers: Lower-case names and values of the client's request.
        request: The request, parsed.
        host: Value of Host.
        client: Client of the connection.
    """
    headers = list(headers)
    dropped = _HOP_BY_HOP | _OWN_REQUEST_HEADERS | _CLIENT_ADDRESS | _named_in_connection(headers)
    program_origin = f"http://{host}".encode("latin-1")
    sent: Headers = [(b"host", host.encode("latin-1"))]
    for name, value in headers:
        if name == b"origin":
            is_own = value.decode("latin-1") == request.origin or (request.is_path_form and value == b"null")
            sent.append((name, program_origin if is_own else value))
        elif name == b"referer":
            if (own_page := _own_target(value, request)) is not None:
                sent.append((name, program_origin + own_page))
            elif _TOKEN_IN_URL.search(value) is None:
                sent.append((name, value))
        elif name not in dropped and not name.replace(b"_", b"-").startswith(b"x-forwarded-") and not _is_own_secret(name, value, request.sandbox):
            sent.append((name, value))
    if cookies := [] if request.is_path_form else _program_cookies(headers):
        sent.append((b"cookie", b"; ".join(cookies)))
    if any(name == b"transfer-encoding" for name, _ in headers):
        sent.append((b"transfer-encoding", b"chunked"))  # Content-Length is copied with the other headers, once it was validated
    client_host = next((value for name, value in headers if name == b"host"), b"")
    sent += [
        (b"x-forwarded-for", client.address.encode("latin-1")),
        (b"x-forwarded-host", client_host),
        (b"x-forwarded-proto", client.scheme.encode()),
    ]
    if request.upgrade:
        sent += [(b"connection", b"Upgrade"), (b"upgrade", b"websocket")]
    return sent


def response_to_client(headers: Iterable[tuple[bytes, bytes]], request: PreviewRequest, host: str, *, origin_is_null: bool = False) -> Headers:
    """Return the headers that the client receives.

    Args:
        headers: Lower-case names and values of the program's response.
        request: The request, parsed.
        host: Value of Host that the program received.
        origin_is_null: True if the request came from a page of the path form (``Origin: null``).
    """
    headers = list(headers)
    dropped = _HOP_BY_HOP | _named_in_connection(headers) | _DROPPED_RESPONSE_HEADERS | (_ORIGIN_WIDE if request.is_path_form else frozenset())
    program_origin = f"http://{host}".encode("latin-1")
    if any(name == b"transfer-encoding" for name, _ in headers):
        dropped |= {b"content-length"}  # which has no meaning then (RFC 9112, 6.3)
    sent: Headers = []
    for name, value in headers:
        if name in dropped or (request.is_path_form and origin_is_null and name.startswith(b"access-control-allow-")):
            continue
        if name in {b"location", b"content-location"}:
            sent.append((name, _location(value, program_origin, request)))
        elif name == b"access-control-allow-origin" and value == program_origin:
            sent.append((name, request.origin.encode("latin-1")))
        elif name == b"set-cookie":
            if (cookie := _own_host_only(value)) is not None:
                sent.append((name, cookie))
        else:
            sent.append((name, value))
    if request.is_path_form:
        sent += path_form_headers(origin_is_null=origin_is_null)
    return sent


def path_form_headers(*, origin_is_null: bool) -> Headers:
    """Return the headers that isolate a page of the path form, and let such a page read its own data."""
    return [
        (b"content-security-policy", PATH_FORM_POLICY),
        (b"vary", b"Origin"),
        *([(b"access-control-allow-origin", b"null")] if origin_is_null else []),
    ]


def preflight_headers(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return the headers of the response to a preflight of a page of the path form: what the browser asks for is allowed.

    For the program, such a page and its data have one origin, and it would refuse or not know the request. Whoever sends it knows the token.
    """
    wanted = dict(headers)
    allowed: Headers = [(b"access-control-allow-methods", wanted.get(b"access-control-request-method", b"*"))]
    if b"access-control-request-headers" in wanted:
        allowed.append((b"access-control-allow-headers", wanted[b"access-control-request-headers"]))
    return [*allowed, *path_form_headers(origin_is_null=True), (b"content-length", b"0")]


def without_shared_caches(headers: Headers) -> Headers:
    """Return the headers of a response that only its client may keep: a cache in front would give a private response to strangers."""
    kept = [(name, value) for name, value in headers if name not in _SHARED_CACHES and not name.endswith(b"-cdn-cache-control")]
    policies = [value for name, value in kept if name == b"cache-control"]
    directives = [each.strip() for value in policies for each in value.split(b",")]
    own = [each for each in directives if each and each.lower() not in {b"public", b"private"} and not each.lower().startswith(b"s-maxage")]
    return [*((name, value) for name, value in kept if name != b"cache-control"), (b"cache-control", b", ".join([b"private", *own]))]


def has_two_lengths(headers: Iterable[tuple[bytes, bytes]] | dict[bytes, list[bytes]]) -> bool:
    """Return whether a request has both Transfer-Encoding and Content-Length, about whose end two servers can disagree (RFC 9112, 11.2)."""
    names = {name if isinstance(name, bytes) else name[0] for name in headers}
    return {b"transfer-encoding", b"content-length"} <= names


def _is_own_secret(name: bytes, value: bytes, sandbox: SandboxId) -> bool:
    """Return whether a header has a key or a token of this service, which a program must not get."""
    return name in _CREDENTIALS and (b".%s." % sandbox.encode() in value or _KEY.search(value) is not None)


def _wants_websocket(fields: dict[bytes, list[bytes]]) -> bool:
    """Return whether a request asks for an upgrade to WebSocket.

    Raises:
        InvalidRequestError: It asks for another protocol, or has a body.
    """
    protocols = {each.strip().lower() for value in fields.get(b"upgrade", ()) for each in value.split(b",")} - {b"h2c", b""}
    if not protocols:
        return False  # some clients offer HTTP/2 in each request, and go on in HTTP/1.1
    if protocols != {b"websocket"}:
        raise InvalidRequestError("The request asks for an upgrade to another protocol than WebSocket.", hint="Send it without the Upgrade header.")
    if b"transfer-encoding" in fields or fields.get(b"content-length", [b"0"]) != [b"0"]:
        raise InvalidRequestError("The request to upgrade the connection has a body.", hint="Send it without a body.")
    return True


def _is_from_own_page(method: bytes, fields: dict[bytes, list[bytes]], origin: str) -> bool:
    """Return whether the cookie of a request may count: the preview's own page sent the request, or the user opened the address.

    Pages of other sandboxes can be of the same site, whose requests carry the cookie. Browsers say who sends a request: in Origin, with WebSockets
    and with all methods but GET and HEAD, and in the headers of Fetch Metadata. A link on any page may open the preview in a tab, but not in a frame.
    Over HTTP, a frame of another page cannot be told from a tab.
    """
    if b"origin" in fields:
        return _first(fields, b"origin") == origin
    site = _first(fields, b"sec-fetch-site")
    if not site:
        # Browsers send Fetch Metadata to HTTPS and to localhost only, and old ones not at all. No script can add Upgrade-Insecure-Requests to a
        # request for another host.
        return b"upgrade-insecure-requests" in fields or _first(fields, b"referer").startswith(f"{origin}/")
    if site in {"same-origin", "none"}:
        return True
    return method == b"GET" and (_first(fields, b"sec-fetch-mode"), _first(fields, b"sec-fetch-dest")) == ("navigate", "document")


def _cookie_tokens(fields: dict[bytes, list[bytes]]) -> tuple[str, ...]:
    pairs = [pair for value in fields.get(b"cookie", ()) for pair in _PAIR.split(value)]
    return tuple(pair.partition(b"=")[2].decode("latin-1") for pair in pairs if _name_of(pair) in {COOKIE, HOST_COOKIE})


def _take_query_token(target: bytes) -> tuple[bytes, list[str]]:
    path, question, query = target.partition(b"?")
    prefix = f"{TOKEN_PARAMETER}=".encode()
    parts = query.split(b"&") if question else []
    tokens = [unquote(part[len(prefix) :].decode("latin-1")) for part in parts if part.startswith(prefix)]
    if not tokens:
        return target, []
    kept = b"&".join(part for part in parts if not part.startswith(prefix))
    return (path + b"?" + kept if kept else path), tokens


def _own_target(value: bytes, request: PreviewRequest) -> bytes | None:
    """Return the part of a URL behind the preview's own address, without a token; None for another address."""
    prefix = (request.origin + (request.path or "")).encode("latin-1")
    if not value.startswith(prefix):
        return None
    rest = value[len(prefix) :]
    if rest and not rest.startswith(b"/"):
        return None
    return _take_query_token(rest or b"/")[0]


def _location(value: bytes, program_origin: bytes, request: PreviewRequest) -> bytes:
    """Return an address of a response as the client must see it."""
    own = (request.origin + (request.path or "")).encode("latin-1")
    if value == program_origin or value.startswith((program_origin + b"/", program_origin + b"?", program_origin + b"#")):
        return own + value[len(program_origin) :]
    if request.path is not None and value.startswith(b"/") and not value.startswith(b"//"):
        return request.path.encode("latin-1") + value
    return value


def _relative(target: bytes) -> bytes:
    """Return a target as a redirect to the same host. ``//`` at the beginning would name another host."""
    return b"/" + target.lstrip(b"/\\")


def _own_host_only(cookie: bytes) -> bytes | None:
    """Return a cookie of a program without ``Domain``; None if its name is one of the service's."""
    pair, *attributes = cookie.split(b";")
    if _name_of(pair) in {b"", COOKIE, HOST_COOKIE}:  # browsers send a cookie without a name as its value alone
        return None
    return b";".join([pair, *(each for each in attributes if _name_of(each).lower() != b"domain")])


def _name_of(pair: bytes) -> bytes:
    return pair.partition(b"=")[0].strip()


def _program_cookies(headers: Headers) -> list[bytes]:
    pairs = [pair for name, value in headers if name == b"cookie" for pair in _PAIR.split(value)]
    return [pair for pair in pairs if pair and _name_of(pair) not in {COOKIE, HOST_COOKIE}]


def _named_in_connection(headers: Headers) -> set[bytes]:
    return {each.strip().lower() for name, value in headers if name == b"connection" for each in value.split(b",")} - {b"content-length", b"host"}


def _without_default_port(host: str, scheme: str) -> str:
    return host.removesuffix(f":{_DEFAULT_PORTS[scheme]}")


def _first(fields: dict[bytes, list[bytes]], name: bytes) -> str:
    values = fields.get(name)
    return values[0].decode("latin-1") if values else ""
