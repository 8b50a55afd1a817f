"""A service with scripted responses, for behaviour that the real service shows only by accident: faults, cut streams, other versions."""

from __future__ import annotations

import json
import socketserver
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

SANDBOX = {"id": "sb-abcd-abcdefghijklmnop", "state": "running", "template": "base"}


@dataclass(slots=True)
class Seen:
    """One request as it arrived."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:  # noqa: ANN401 - JSON
        return json.loads(self.body)


@dataclass(slots=True)
class Reply:
    """One answer. A list of pieces is sent chunked; ``cut`` closes the connection before the last chunk, ``gone`` before anything."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    pieces: Iterable[bytes] | None = None
    cut: bool = False
    gone: bool = False


Handler = Callable[[Seen], Reply]


class Script:
    """The service: answers are given in the order in which they were put in, the last one again and again."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.seen: list[Seen] = []
        self.replies: list[Reply | Handler] = []

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def say(self, *replies: Reply | Handler) -> None:
        self.replies = list(replies)

    def answer(self, seen: Seen) -> Reply:
        self.seen.append(seen)
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        return reply(seen) if callable(reply) else reply


def problem(status: int, code: str, **more: Any) -> Reply:  # noqa: ANN401 - JSON
    retry_after = more.pop("retry_after", None)
    headers = {"Content-Type": "application/problem+json", **({} if retry_after is None else {"Retry-After": str(retry_after)})}
    return Reply(status, {"status": status, "code": code, "detail": f"it is {code}", "hint": "do this", "fields": {}, **more}, headers)


def events(*told: tuple[str, dict[str, Any]], ids: str | None = None, cut: bool = False) -> Reply:
    """Return an event stream.

    Args:
        told: Name and data of each event.
        ids: Field of the data whose value is the id of its event. None: no event has an id.
        cut: True to cut the stream after the events.
    """
    numbers = ["" if ids is None or ids not in data else f"id: {data[ids]}\n" for _, data in told]
    pieces = [f"{number}event: {name}\ndata: {json.dumps(data)}\n\n".encode() for number, (name, data) in zip(numbers, told, strict=True)]
    return Reply(headers={"Content-Type": "text/event-stream"}, pieces=pieces, cut=cut)


class Connection(BaseHTTPRequestHandler):
    """Reads a request, lets the script answer it."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def script(self) -> Script:
        assert isinstance(self.server, Server)
        return self.server.script

    def handle_any(self) -> None:
        parts = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        reply = self.script().answer(Seen(self.command, parts.path, parts.query, headers, self.read_body()))
        if reply.gone:
            self.close_connection = True
            return
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if reply.pieces is None:
            self.send_whole(reply)
        else:
            self.send_pieces(reply.pieces, cut=reply.cut)
        self.close_connection = self.close_connection or reply.cut

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815 - the standard library's names

    def send_whole(self, reply: Reply) -> None:
        body = b"" if reply.body is None else reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        self.send_header("Content-Length", str(len(body) + (100 if reply.cut else 0)))
        self.end_headers()
        self.wfile.write(body)

    def send_pieces(self, pieces: Iterable[bytes], *, cut: bool) -> None:
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in pieces:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.flush()
        if not cut:
            self.wfile.write(b"0\r\n\r\n")

    def read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body


class Server(socketserver.ThreadingUnixStreamServer):
    """One thread for each connection."""

    daemon_threads = True

    def __init__(self, script: Script) -> None:
        super().__init__(str(script.socket), Connection)
        self.script = script

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a client that went away is what some tests are about
            super().handle_error(request, client_address)  # type: ignore[arg-type]
