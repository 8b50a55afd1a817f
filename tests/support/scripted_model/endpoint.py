"""The scripted model as an HTTP server that the packages of OpenAI and Anthropic talk to.

It speaks chat completions, Responses and Messages, streamed or not. The server, its HTTP and its JSON are real, and like the real services it refuses
conversations in which a tool call has no result; only the thinking is a test's.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from tests.support.scripted_model import chat, messages, responses
from tests.support.scripted_model.steps import Conversation, Cut, Fail, Hang, RefusedRequestError, Script, Step


class Encoder(Protocol):
    """One protocol: the functions of its module."""

    def read(self, body: Mapping[str, Any]) -> Conversation: ...

    def answer(self, body: Mapping[str, Any], steps: Sequence[Step], number: int) -> dict[str, Any]: ...

    def events(self, body: Mapping[str, Any], whole: Mapping[str, Any], steps: Sequence[Step]) -> Iterator[str]: ...

    def error(self, status: int, message: str) -> dict[str, Any]: ...


ENCODERS: Mapping[str, Encoder] = {module.PATH: module for module in (chat, responses, messages)}


@dataclass
class Endpoint:
    """A running endpoint.

    Args:
        address: Scheme, host and port.
        conversations: Conversations of the requests so far, refused ones left out.
        refused: Messages of the requests that were refused with 400.
        keys: API keys of the requests.
    """

    address: str
    conversations: list[Conversation] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)

    @property
    def openai_url(self) -> str:
        """Base URL for the packages of OpenAI."""
        return f"{self.address}/v1"

    @property
    def env(self) -> dict[str, str]:
        """Variables by which the packages of all vendors find the endpoint and call nothing else."""
        return {
            "ANTHROPIC_API_KEY": "scripted",
            "ANTHROPIC_BASE_URL": self.address,
            "CREWAI_DISABLE_TELEMETRY": "true",
            "LITELLM_LOCAL_MODEL_COST_MAP": "true",
            "OPENAI_AGENTS_DISABLE_TRACING": "1",
            "OPENAI_API_KEY": "scripted",
            "OPENAI_BASE_URL": self.openai_url,
            "NO_PROXY": "127.0.0.1",
        }


class _Server(ThreadingHTTPServer):
    def __init__(self, script: Script) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script = script
        self.endpoint = Endpoint(f"http://127.0.0.1:{self.server_address[1]}")
        self.closing = threading.Event()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as in `socketserver`
        """Ignore clients that have left, for example a program at its time limit; report what else goes wrong."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server  # type: ignore[mutable-override]  # the only server that it has

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        encoder = ENCODERS.get(self.path.partition("?")[0])
        if encoder is None:
            self._send(404, chat.error(404, f"No such route: {self.path}"))
            return
        key = self.headers["x-api-key"] or (self.headers["Authorization"] or "").removeprefix("Bearer ")
        if not key:
            self._send(401, encoder.error(401, "No API key was sent."))
            return
        self.server.endpoint.keys.add(key)
        try:
            conversation = encoder.read(body)
        except RefusedRequestError as error:
            self.server.endpoint.refused.append(str(error))
            self._send(400, encoder.error(400, str(error)))
            return
        self.server.endpoint.conversations.append(conversation)
        steps = self.server.script(conversation)
        self._answer(encoder, body, steps if isinstance(steps, Sequence) else [steps])

    def _answer(self, encoder: Encoder, body: Mapping[str, Any], steps: Sequence[Step]) -> None:
        for step in steps:
            if isinstance(step, Fail):
                self._send(step.status, encoder.error(step.status, step.message))
                return
            if isinstance(step, Hang):
                self.server.closing.wait()
                self.close_connection = True
                return
        is_cut = any(isinstance(step, Cut) for step in steps)
        whole = encoder.answer(body, steps, len(self.server.endpoint.conversations))
        if body.get("stream"):
            self._stream([*encoder.events(body, whole, steps)], is_cut=is_cut)
        else:
            self._send(200, whole, is_cut=is_cut)

    def _send(self, status: int, answer: Mapping[str, Any], *, is_cut: bool = False) -> None:
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if status >= 429:
            self.send_header("retry-after-ms", "1")  # the packages of both vendors repeat such requests, by default after half a second
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if is_cut else content)
        self.close_connection = is_cut

    def _stream(self, events: Sequence[str], *, is_cut: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in events[: len(events) // 2] if is_cut else events:
            content = event.encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))
        if not is_cut:
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection = is_cut

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def scripted_model(script: Script) -> Iterator[Endpoint]:
    """Serve a script on a port of the loopback interface.

    Args:
        script: Called with the conversation of each request; returns the steps that answer it.
    """
    with _Server(script) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.endpoint
        finally:
            server.closing.set()
            server.shutdown()
            thread.join()
