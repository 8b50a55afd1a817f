"""A client in a sandbox: it opens connections as a test tells, and reports how they end."""

from __future__ import annotations

import json
from typing import Any

from sandlot import Sandbox

CLIENT = '''
import errno, json, socket, time

def attempt(host, port, pieces=(), pause_s=0.0, patience_s=10.0, until="", is_udp=False):
    """Connect, send pieces, and read until the end, a reset, or a text."""
    began_s, received, outcome = time.monotonic(), b"", ""
    try:
        kind = socket.SOCK_DGRAM if is_udp else socket.SOCK_STREAM
        addresses = socket.getaddrinfo(host, port, type=kind)
    except socket.gaierror:
        return {"outcome": "no name", "received": "", "took_s": time.monotonic() - began_s}
    family, kind, protocol, _, address = addresses[0]
    with socket.socket(family, kind, protocol) as connection:
        connection.settimeout(patience_s)
        try:
            connection.connect(address)
            for piece in pieces:
                connection.sendall(bytes.fromhex(piece))
                time.sleep(pause_s)
            while piece := connection.recv(65536):
                received += piece
                if until and until.encode() in received:
                    outcome = "open"
                    break
            else:
                outcome = "closed"
        except TimeoutError:
            outcome = "silent"
        except OSError as error:
            outcome = errno.errorcode.get(error.errno, str(error.errno))
    return {"outcome": outcome, "received": received.decode("latin-1"), "took_s": time.monotonic() - began_s}
'''
"""Defines ``attempt`` in the Python kernel of a sandbox."""


class Attempt:
    """Result of ``attempt`` in a sandbox.

    Attributes:
        outcome: ``closed``: the connection was ended in order; ``open``: the expected text arrived; ``silent``; ``no name``; or the name of an error.
        received: Bytes that the client has received.
        took_s: Seconds of the whole attempt.
    """

    def __init__(self, result: dict[str, Any]) -> None:
        self.outcome: str = result["outcome"]
        self.received = str(result["received"]).encode("latin-1")
        self.took_s: float = result["took_s"]

    def __repr__(self) -> str:
        return f"Attempt({self.outcome}, {self.received!r}, {self.took_s:.3f} s)"

    @property
    def status(self) -> int:
        """Status of the last HTTP response; 0 if there is none."""
        return int(self.received.rpartition(b"HTTP/1.1 ")[2][:3] or b"0") if b"HTTP/1.1 " in self.received else 0

    @property
    def refusal(self) -> dict[str, Any]:
        """Body of the last HTTP response, which must be that of a refusal."""
        body: dict[str, Any] = json.loads(self.received.rpartition(b"\r\n\r\n")[2])
        return body


class Client:
    """A program in a sandbox that opens connections."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        sandbox.run_code(CLIENT).check()

    def attempt(self, host: str, port: int, *pieces: bytes, **options: Any) -> Attempt:  # noqa: ANN401 - arguments of ``attempt``
        """Connect to a host, send pieces, and read until the end."""
        arguments = {"host": host, "port": port, "pieces": [piece.hex() for piece in pieces], **options}
        result = self.sandbox.run_code(f"print(json.dumps(attempt(**json.loads({json.dumps(arguments)!r}))))").check()
        return Attempt(json.loads(result.stdout))

    def get(self, host: str, path: str = "/", *, port: int = 80, method: str = "GET") -> Attempt:
        """Send one HTTP request, in the way in which programs do."""
        at = host if port == 80 else f"{host}:{port}"
        return self.attempt(host, port, f"{method} {path} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n".encode(), until="served")
