"""A model that never was one: OpenAI's chat completions over HTTP, where what is answered is decided by a function of the messages.

The server, its HTTP and its JSON are real, so that the real ``openai`` package talks to it; only the thinking is a test's.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Say:
    """What the model says at last."""

    text: str


@dataclass(frozen=True)
class Call:
    """A tool that it calls."""

    name: str
    arguments: Mapping[str, Any]


Think = Callable[[Sequence[Message]], Say | Call]


@dataclass
class Model:
    """Where it is reached, and what it was asked."""

    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)


@contextmanager
def model(think: Think) -> Iterator[Model]:
    """A model that thinks like this.

    Args:
        think: What it answers to all messages so far.
    """
    made = Model()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            made.asked.append(body)
            answer = _completion(body, think(body["messages"]), len(made.asked))
            content = json.dumps(answer).encode()
            self.send_response(200 if self.path == "/v1/chat/completions" else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()


def _completion(body: Mapping[str, Any], answer: Say | Call, number: int) -> dict[str, Any]:
    """An answer as the API has it (OpenAI's API reference, "chat completion object")."""
    message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
    if isinstance(answer, Say):
        message["content"] = answer.text
    else:
        assert answer.name in {tool["function"]["name"] for tool in body["tools"]}
        function = {"name": answer.name, "arguments": json.dumps(answer.arguments)}
        message["tool_calls"] = [{"id": f"call_{number}", "type": "function", "function": function}]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop" if isinstance(answer, Say) else "tool_calls"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return {"id": f"chatcmpl-{number}", "object": "chat.completion", "created": 0, "model": body["model"], "choices": [choice], "usage": usage}
