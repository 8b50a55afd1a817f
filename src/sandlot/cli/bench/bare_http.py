"""An HTTP server without any part of Sandlot, for comparison: the same uvicorn, event loop and parser, with handlers of a few lines.

    python -m sandlot.cli.bench.bare_http SOCKET FOLDER

SOCKET is the number of an inherited listening socket, or the path of a new unix socket. ``GET /`` returns JSON. ``POST /run`` runs the Python code of
its body in this process and returns the output. ``PUT /NAME`` writes the body to a file in FOLDER, and ``GET /NAME`` returns the file.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import sys
from pathlib import Path
from typing import BinaryIO

import uvicorn
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

PIECE_BYTES = 64 * 1024
RESPONSE = b'{"status":"ok"}'


class BareApp:
    """The ASGI application.

    Args:
        folder: Directory of the files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to one request."""
        name = scope["path"].strip("/")
        response = RESPONSE
        if scope["method"] == "POST":
            response = run((await Request(scope, receive).body()).decode())
        elif scope["method"] == "PUT":
            with (self._folder / name).open("wb") as file:
                async for piece in Request(scope, receive).stream():
                    file.write(piece)
        elif name:
            with (self._folder / name).open("rb") as file:
                await _send_file(file, send)
            return
        await send(_head(len(response)))
        await send({"type": "http.response.body", "body": response})


async def _send_file(file: BinaryIO, send: Send) -> None:
    await send(_head(os.fstat(file.fileno()).st_size))
    while piece := file.read(PIECE_BYTES):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def run(code: str) -> bytes:
    """Run code without any isolation, and return its output as JSON."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "<code>", "exec"), {})  # noqa: S102 - the benchmark's own code
    return json.dumps({"stdout": printed.getvalue()}).encode()


def _head(length: int) -> dict[str, object]:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(length).encode())]
    return {"type": "http.response.start", "status": 200, "headers": headers}


def main(where: str, folder: Path) -> None:
    """Serve until a signal ends the process."""
    if where.isdecimal():
        listening = socket.socket(fileno=int(where))
    else:
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(where)
        listening.listen()
    config = uvicorn.Config(BareApp(folder), loop="uvloop", http="httptools", lifespan="off", access_log=False, log_level="warning")
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
