"""Promise: a page of one sandbox reaches neither another sandbox, although the same browser may open it, nor the API."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote

import pytest

from sandlot import Network, Sandbox
from tests.support.chromium import Page, Profile, ScriptError
from tests.support.tcpservice import TcpService, tcp_service
from tests.support.web_servers import certificate

pytestmark = pytest.mark.soak

PORT = 8000
INSIDE = """
import http.server, urllib.parse
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        with open("/tmp/requests", "a") as file:
            print(self.command, self.path, self.headers.get("Cookie", "-"), file=file)
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path, _, query = self.path.partition("?")
        self.send_response(302 if path == "/redirect" else 200)
        if path == "/redirect":
            self.send_header("Location", urllib.parse.unquote(query))
        if path == "/cookie":
            self.send_header("Set-Cookie", urllib.parse.unquote(query))
        self.send_header("Access-Control-Allow-Origin", self.headers.get("Origin", "*"))
        self.send_header("Access-Control-Allow-Credentials", "true")
        self.send_header("Content-Type", "text/javascript" if path.endswith(".js") else "text/html")
        body = b"" if path.endswith(".js") else b"<p>a page</p>"
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_POST = do_OPTIONS = do_PUT = do_GET
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""
ATTEMPTS = {
    "fetch": "await fetch(url, {credentials: 'include'})",
    "fetch without CORS": "await fetch(url, {mode: 'no-cors', credentials: 'include'})",
    "fetch with the headers of a navigation": (
        "await fetch(url, {mode: 'no-cors', credentials: 'include', referrerPolicy: 'no-referrer', headers: {Accept: 'text/html'}})"
    ),
    "post without CORS": "await fetch(url, {method: 'POST', mode: 'no-cors', credentials: 'include', body: 'x'})",
    "fetch of an own address that redirects": "await fetch('/redirect?' + encodeURIComponent(url), {mode: 'no-cors', credentials: 'include'})",
    "image": "await ended(add('img', {src: url}))",
    "image without referrer": "await ended(add('img', {src: url, referrerPolicy: 'no-referrer'}))",
    "script": "await ended(add('script', {src: url}))",
    "style": "await ended(add('link', {rel: 'stylesheet', href: url}))",
    "prefetch": "await ended(add('link', {rel: 'prefetch', href: url}))",
    "frame": "await ended(add('iframe', {src: url}))",
    "object": "await ended(add('object', {data: url, type: 'text/html'}))",
    "form in a frame": (
        "const frame = add('iframe', {name: 'frame'}); add('form', {action: url, method: 'post', target: 'frame'}).submit(); await ended(frame)"
    ),
    "WebSocket": "await ended(new WebSocket(url.replace('http', 'ws')))",
    "events": "await ended(new EventSource(url, {withCredentials: true}))",
    "beacon": "navigator.sendBeacon(url, 'x')",
}
HELPERS = """
const add = (name, values) => document.body.appendChild(Object.assign(document.createElement(name), values))
const ended = each => new Promise(done => ['load', 'error', 'open'].forEach(name => each.addEventListener(name, done)))
"""


@dataclass(frozen=True, slots=True)
class Sandboxes:
    """Two sandboxes with a server in each.

    Args:
        service: Their service.
        hostile: Sandbox whose page attacks.
        other: Sandbox that the user has opened in the same browser.
    """

    service: TcpService
    hostile: Sandbox
    other: Sandbox

    def requests(self) -> list[str]:
        """Return the requests that the server of the other sandbox has received: method, target and cookies."""
        return self.other.commands.run("cat /tmp/requests").check().stdout.splitlines()

    def refused(self) -> int:
        """Return the number of requests that the listener has refused."""
        return sum(each.get("event") == "preview.request" and each["status"] == HTTPStatus.UNAUTHORIZED for each in self.service.records())


@pytest.fixture(scope="module", params=["localhost", "http", "https"])
def sandboxes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandboxes]:
    with (
        tcp_service(_settings(request.param, tmp_path_factory.mktemp("certificate"))) as service,
        service.create(network=Network("none"), timeout=1200) as hostile,
        service.create(network=Network("none"), timeout=1200) as other,
    ):
        for each in (hostile, other):
            each.files.write("/tmp/server.py", INSIDE)
            each.commands.run("touch /tmp/requests; python3 /tmp/server.py", background=True)
            while not any(found.port == PORT for found in each.ports()):
                time.sleep(0.05)
        yield Sandboxes(service, hostile, other)


def _settings(kind: str, folder: Path) -> dict[str, str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {"SANDLOT_PREVIEW_PORT": str(port)}
    if kind != "localhost":
        settings["SANDLOT_PREVIEW_DOMAIN"] = f"{kind}://preview.example.com:{port}"
    if kind == "https":
        _, file = certificate(folder, "*.preview.example.com")
        settings |= {"SANDLOT_PREVIEW_TLS_CERT": str(file), "SANDLOT_PREVIEW_TLS_KEY": str(folder / "key.pem")}
    return settings


@pytest.fixture
def victim(sandboxes: Sandboxes, profile: Profile) -> Page:
    """Page of the other sandbox, opened by the user."""
    return profile.open(sandboxes.other.get_url(PORT))


@pytest.fixture
def attacker(sandboxes: Sandboxes, profile: Profile, victim: Page) -> Page:
    """Page of the hostile sandbox in the same browser."""
    assert victim.text == "a page"
    return profile.open(sandboxes.hostile.get_url(PORT))


def get(page: Page, target: str) -> int:
    """Let a page request a path of its own sandbox; return the status."""
    return int(page.evaluate(f"fetch({json.dumps(target)}).then(response => response.status)"))


def attempt(page: Page, script: str) -> None:
    """Run an attempt, which may end with an error."""
    page.evaluate(f"(async () => {{ {HELPERS} try {{ {script} }} catch (error) {{ return String(error) }} }})()")


@pytest.mark.parametrize("name", ATTEMPTS)
def test_requests_of_a_page_do_not_reach_another_private_sandbox(sandboxes: Sandboxes, victim: Page, attacker: Page, name: str) -> None:
    if name in {"frame", "object"} and victim.evaluate("!isSecureContext"):
        pytest.xfail("over HTTP, browsers do not say that a page is opened in a frame")
    get(victim, "/own")  # the cookie opens the preview for its own page
    before, refused = sandboxes.requests(), sandboxes.refused()
    assert before[-1] == "GET /own -"
    target = victim.evaluate("location.origin") + "/stolen"
    attempt(attacker, f"const url = {json.dumps(target)}; {ATTEMPTS[name]}")
    while sandboxes.refused() == refused and sandboxes.requests() == before:
        time.sleep(0.02)
    get(victim, "/last")
    assert [each for each in sandboxes.requests()[len(before) :] if not each.startswith("GET /favicon")] == ["GET /last -"]


def test_page_reads_nothing_of_another_sandbox(victim: Page, attacker: Page) -> None:
    url = victim.evaluate("location.href")
    with pytest.raises(ScriptError):
        attacker.evaluate(f"fetch({json.dumps(url)}, {{credentials: 'include'}}).then(response => response.text())")
    attacker.evaluate(f"window.opened = open({json.dumps(url)}); null")
    victim.evaluate("localStorage.setItem('own', '1'); document.cookie = 'own=1'")
    assert attacker.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    with pytest.raises(ScriptError):
        attacker.evaluate("new Promise(done => setTimeout(done, 500)).then(() => opened.document.body.innerText)")


@pytest.mark.parametrize("domain", ["localhost", "preview.example.com", ""])
def test_cookie_of_a_program_is_for_its_own_host_only(sandboxes: Sandboxes, victim: Page, attacker: Page, domain: str) -> None:
    attribute = f"; Domain={domain}" if domain else ""
    get(attacker, "/cookie?" + quote(f"header=1; Path=/{attribute}"))
    assert attacker.evaluate("document.cookie") == "header=1"
    get(victim, "/cookies")
    assert sandboxes.requests()[-1] == "GET /cookies -"


def test_cookie_of_a_script_reaches_no_other_sandbox_of_a_public_suffix(sandboxes: Sandboxes, victim: Page, attacker: Page) -> None:
    host = victim.evaluate("location.hostname")
    domain = host.partition(".")[2]
    attacker.evaluate(f"document.cookie = 'script=1; Domain={host}'; document.cookie = 'script=1; Domain={domain}'")
    get(victim, "/cookies")
    is_public_suffix = domain == "localhost"
    assert sandboxes.requests()[-1] == ("GET /cookies -" if is_public_suffix else "GET /cookies script=1")


def test_script_cannot_take_the_place_of_the_cookie_of_the_service(sandboxes: Sandboxes, victim: Page, attacker: Page) -> None:
    domain = victim.evaluate("location.hostname").partition(".")[2]
    for name in ("sandlot_preview", "__Host-sandlot_preview"):
        attacker.evaluate(f"document.cookie = '{name}=wrong; Path=/own; Domain={domain}'")
    assert get(victim, "/own/page") == HTTPStatus.OK
    assert sandboxes.requests()[-1] == "GET /own/page -"


def test_page_cannot_call_the_api(sandboxes: Sandboxes, attacker: Page) -> None:
    before = {each.id for each in sandboxes.service.client.sandboxes.list()}
    for host in ("127.0.0.1", "localhost"):
        url = f"http://{host}:{sandboxes.service.port}/v1/sandboxes"
        with pytest.raises(ScriptError):
            attacker.evaluate(f"fetch('{url}').then(response => response.text())")
        with pytest.raises(ScriptError):
            attacker.evaluate(f"fetch('{url}', {{method: 'POST', headers: {{'Content-Type': 'application/json'}}, body: '{{}}'}})")
        attempt(attacker, f"await fetch('{url}', {{method: 'POST', mode: 'no-cors', credentials: 'include', body: '{{}}'}})")
    assert attacker.evaluate("fetch('/v1/sandboxes').then(response => response.text())") == "<p>a page</p>"  # its own program
    assert {each.id for each in sandboxes.service.client.sandboxes.list()} == before
