"""Previews: ordinary clients of HTTP and WebSockets against a server in a sandbox."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

from sandlot import Network, Sandbox
from sandlot.model.specs import GIB, MIB
from tests.support.localservice import LocalService, local_service
from tests.support.traces import settle

PORT = 8000
INSIDE = r"""
import base64, hashlib, http.server, os, struct, sys, threading, time

content = bytes(range(256)) * 4096
events, more = [], threading.Condition()

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_expect_100(self):
        if self.path == "/refuse":
            self.reply(b"too large", 413)
            return False
        return super().handle_expect_100()

    def reply(self, body, status=200, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def pieces(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        left = int(self.headers.get("Content-Length", 0))
        while left:
            piece = self.rfile.read(min(left, 1 << 18))
            left -= len(piece)
            yield piece

    def do_GET(self):
        path, _, query = self.path.partition("?")
        if self.headers.get("Upgrade") == "websocket":
            return self.echo_frames()
        if path == "/page":
            self.reply(b"<p>hello from inside</p>", Content_Type="text/html")
        elif path == "/connection":
            self.reply(str(self.client_address[1]).encode())
        elif path == "/content":
            if wanted := self.headers.get("Range"):
                first, last = (int(each) for each in wanted.removeprefix("bytes=").split("-"))
                self.reply(content[first : last + 1], 206, Content_Range=f"bytes {first}-{last}/{len(content)}", Accept_Ranges="bytes")
            else:
                self.reply(content, ETag='"1"')
        elif path == "/large":
            self.send_response(200)
            self.send_header("Content-Length", query)
            self.end_headers()
            left, piece = int(query), bytes(1 << 18)
            while left:
                left -= self.wfile.write(piece[:left])
        elif path == "/chunks":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for word in (b"one ", b"two ", b"three"):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(word), word))
            self.wfile.write(b"0\r\n\r\n")
        elif path == "/cut":
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b"only this")
            self.close_connection = True
        elif path == "/events":
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            sent = 0
            while True:
                with more:
                    more.wait_for(lambda: len(events) > sent)
                    word, sent = events[sent], sent + 1
                self.wfile.write(b"data: %s\n\n" % word)
                if word == b"end":
                    break
            self.close_connection = True
        else:
            self.reply(b"not found", 404)

    do_HEAD = do_GET

    def do_POST(self):
        if self.path == "/event":
            body = b"".join(self.pieces())
            with more:
                events.append(body)
                more.notify_all()
            self.reply(b"", 200)
        else:
            digest, size = hashlib.sha256(), 0
            for piece in self.pieces():
                digest.update(piece)
                size += len(piece)
            self.reply(f"{size} {digest.hexdigest()}".encode())

    def echo_frames(self):
        key = self.headers["Sec-WebSocket-Key"].encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key).digest()).decode())
        self.end_headers()
        self.close_connection = True
        while True:
            first, size = self.rfile.read(2)
            size &= 127
            if size > 125:
                size = int.from_bytes(self.rfile.read(2 if size == 126 else 8), "big")
            mask = self.rfile.read(4)
            data = self.rfile.read(size)
            whole = int.from_bytes(data, "big") ^ int.from_bytes((mask * (size // 4 + 1))[:size], "big")
            length = bytes([size]) if size < 126 else struct.pack(">BH", 126, size) if size < 65536 else struct.pack(">BQ", 127, size)
            self.wfile.write(bytes([first]) + length + whole.to_bytes(size, "big"))
            if first & 15 == 8:
                return

    def log_message(self, *_):
        pass

class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128

Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


class Preview:
    """A preview in the host form, as clients see it that do not resolve ``*.localhost``."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.host = parts.netloc
        self.target = f"{parts.path}?{parts.query}"
        self.token = parts.query.partition("=")[2]
        assert parts.port is not None
        self.port = parts.port

    @property
    def headers(self) -> dict[str, str]:
        return {"Host": self.host, "X-Sandlot-Preview-Token": self.token}

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=f"http://127.0.0.1:{self.port}", headers=self.headers, timeout=60, trust_env=False)

    def websocket(self, path: str = "/") -> ClientConnection:
        return connect(
            f"ws://{self.host}{path}",
            sock=self.raw(),
            additional_headers={"X-Sandlot-Preview-Token": self.token},
            max_size=None,
            compression=None,
            proxy=None,
        )

    def raw(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def head(self, line: str, **headers: str) -> bytes:
        """Return the head of a request."""
        fields = {**self.headers, **{name.replace("_", "-"): value for name, value in headers.items()}}
        return "\r\n".join([line, *(f"{name}: {value}" for name, value in fields.items()), "", ""]).encode()


@pytest.fixture(scope="module")
def sandbox(service: LocalService) -> Iterator[Sandbox]:
    with service.create(network=Network("none"), timeout=1200) as made:
        made.files.write("/tmp/server.py", INSIDE)
        made.commands.run(["python3", "/tmp/server.py", str(PORT)], background=True)
        while not any(each.port == PORT for each in made.ports()):
            time.sleep(0.02)
        yield made


@pytest.fixture(scope="module")
def preview(sandbox: Sandbox) -> Preview:
    return Preview(sandbox.get_url(PORT))


def received(connection: socket.socket, ending: bytes = b"") -> bytes:
    """Receive until bytes with an ending have arrived; without one, until the end of the connection."""
    data = b""
    while not (ending and data.endswith(ending)) and (piece := connection.recv(65536)):
        data += piece
    return data


def test_page_and_websocket(preview: Preview) -> None:
    with preview.client() as client:
        page = client.get("/page")
        assert (page.status_code, page.text, page.headers["content-type"]) == (200, "<p>hello from inside</p>", "text/html")
    with preview.websocket("/socket") as websocket:
        for message in ("hello", b"bytes", "x" * 70_000, b"y" * MIB):
            websocket.send(message)
            assert websocket.recv() == message


def test_path_form_of_a_page(sandbox: Sandbox) -> None:
    url = sandbox.get_url(PORT, path_form=True)
    address, headers = url.replace("localhost", "127.0.0.1", 1), {"Host": urlsplit(url).netloc}
    assert httpx.get(f"{address}page", headers=headers, trust_env=False).text == "<p>hello from inside</p>"


def test_websocket_of_a_page_of_the_path_form(sandbox: Sandbox) -> None:
    url = urlsplit(sandbox.get_url(PORT, path_form=True))
    address = f"ws://{url.netloc}{url.path}socket"
    with connect(address, sock=socket.create_connection(("127.0.0.1", url.port)), origin=Origin("null"), compression=None, proxy=None) as websocket:
        websocket.send("hello")
        assert websocket.recv() == "hello"


def test_curl_opens_the_url_as_it_is(sandbox: Sandbox) -> None:
    url = sandbox.get_url(PORT).replace("/?", "/page?")
    assert subprocess.run(["curl", "-sS", "--noproxy", "*", url], capture_output=True, text=True, check=True).stdout == "<p>hello from inside</p>"


def test_url_that_a_server_prints_comes_with_its_preview(sandbox: Sandbox) -> None:
    server = sandbox.commands.run("exec python3 -u -m http.server 8001 --directory /tmp", background=True)
    try:
        while not server.urls:
            assert server.poll() is None
            time.sleep(0.02)
        assert "http://0.0.0.0:8001/" in server.stdout
        printed = server.urls[0]
        assert (printed.printed, printed.port) == ("http://0.0.0.0:8001/", 8001)
        page = Preview(printed.url.replace("/?", "/server.py?"))
        with page.client() as client:
            assert client.get("/server.py").text == INSIDE
    finally:
        server.kill()
    echoed = sandbox.commands.run("echo http://localhost:8000/page")
    assert [each.port for each in echoed.urls] == [PORT]
    assert subprocess.run(["curl", "-sS", "--noproxy", "*", echoed.urls[0].url], capture_output=True, text=True, check=True).stdout.endswith("</p>")


def test_server_sent_events_arrive_one_by_one(preview: Preview) -> None:
    with preview.client() as client, preview.client() as other, client.stream("GET", "/events") as response:
        lines = response.iter_lines()
        for word in ("first", "second", "end"):
            other.post("/event", content=word)  # only once the word before has arrived
            assert next(line for line in lines if line) == f"data: {word}"
        assert list(filter(None, lines)) == []


def test_head_and_ranges(preview: Preview) -> None:
    with preview.client() as client:
        head = client.head("/content")
        assert (head.status_code, head.headers["content-length"], head.headers["etag"], head.content) == (200, str(MIB), '"1"', b"")
        part = client.get("/content", headers={"Range": "bytes=256-511"})
        assert (part.status_code, part.headers["content-range"], part.content) == (206, f"bytes 256-511/{MIB}", bytes(range(256)))
        assert client.get("/content").content == bytes(range(256)) * 4096


def test_connections_are_kept_on_both_sides(preview: Preview) -> None:
    with closing(preview.raw()) as connection:
        bodies = []
        for _ in range(5):
            connection.sendall(preview.head("GET /connection HTTP/1.1"))
            bodies.append(response_body(connection))
    assert len(set(bodies)) == 1


def response_body(connection: socket.socket) -> bytes:
    """Receive one response with a length, and return its body."""
    head = b""
    while b"\r\n\r\n" not in head:
        head += connection.recv(65536)
    head, _, body = head.partition(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    while len(body) < length:
        body += connection.recv(65536)
    return body


def test_expected_continue_is_the_programs_own(preview: Preview) -> None:
    with closing(preview.raw()) as connection:
        connection.sendall(preview.head("POST /hash HTTP/1.1", Content_Length="5", Expect="100-continue"))
        assert received(connection, b"\r\n\r\n").startswith(b"HTTP/1.1 100 ")
        connection.sendall(b"hello")
        assert response_body(connection) == f"5 {hashlib.sha256(b'hello').hexdigest()}".encode()
    with closing(preview.raw()) as connection:
        connection.sendall(preview.head("POST /refuse HTTP/1.1", Content_Length="5", Expect="100-continue"))
        assert received(connection, b"too large").startswith(b"HTTP/1.1 413 ")


def test_http_1_0_client_gets_a_whole_response_and_the_end_of_the_connection(preview: Preview) -> None:
    with closing(preview.raw()) as connection:
        connection.sendall(preview.head("GET /chunks HTTP/1.0"))
        head, _, body = received(connection).partition(b"\r\n\r\n")
    assert b"chunked" not in head.lower()
    assert body == b"one two three"


def test_chunked_bodies_pass_in_both_directions(preview: Preview) -> None:
    with preview.client() as client:
        pieces = [b"some", b"more", b"pieces"]
        assert client.post("/hash", content=iter(pieces)).text == f"14 {hashlib.sha256(b''.join(pieces)).hexdigest()}"
        assert client.get("/chunks").text == "one two three"


def test_response_that_the_program_cuts_is_not_taken_for_whole(preview: Preview) -> None:
    with preview.client() as client, pytest.raises(httpx.HTTPError):
        client.get("/cut")


def test_request_wakes_a_hibernated_sandbox(sandbox: Sandbox, preview: Preview) -> None:
    sandbox.hibernate()
    with preview.client() as client:
        assert client.get("/page").text == "<p>hello from inside</p>"


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_gigabytes_pass_in_both_directions_without_memory(service: LocalService, preview: Preview) -> None:
    piece = os.urandom(MIB)
    digest = hashlib.sha256()
    with preview.client() as client:
        client.get("/page")
        before = resident_bytes(service.pid)
        peaks = []

        def upload() -> Iterator[bytes]:
            for number in range(GIB // MIB):
                digest.update(piece)
                yield piece
                if number % 32 == 0:
                    peaks.append(resident_bytes(service.pid))

        assert client.post("/hash", content=upload()).text == f"{GIB} {digest.hexdigest()}"
        with client.stream("GET", f"/large?{GIB}") as response:
            size = 0
            for number, data in enumerate(response.iter_bytes(MIB)):
                size += len(data)
                if number % 32 == 0:
                    peaks.append(resident_bytes(service.pid))
    assert size == GIB
    assert max(peaks) - before < 32 * MIB


def test_addresses_stay_valid_when_the_service_is_killed() -> None:
    with local_service() as own, own.create(network=Network("none")) as sandbox:
        sandbox.files.write("/tmp/server.py", INSIDE)
        sandbox.commands.run(["python3", "/tmp/server.py", str(PORT)], background=True)
        settle(lambda: any(each.port == PORT for each in sandbox.ports()), True)
        before = Preview(sandbox.get_url(PORT))
        own.end(signal.SIGKILL)
        own.start()
        with before.client() as client:
            assert client.get("/page").text == "<p>hello from inside</p>"
