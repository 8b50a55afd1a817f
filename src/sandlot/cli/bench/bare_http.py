"""An HTTP server that does nothing of Sandlot's, for comparison: the same uvicorn, event loop and parser, handlers of a few lines.

    python -m sandlot.cli.bench.bare_http SOCKET FOLDER

It serves a listening socket that it inherits as the descriptor of that number, or a unix socket that it makes at that path. ``GET /`` answers with
some JSON; ``POST /run`` runs the Python code in its body in this very process and answers with what it printed; ``PUT /NAME`` writes the body to a
file of the folder, ``GET /NAME`` sends it.
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
ANSWER = b'{"status":"ok"}'


class Bare:
    """The app.

    Args:
        folder: Where files are.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        name = scope["path"].strip("/")
        answer = ANSWER
        if scope["method"] == "POST":
            answer = run((await Request(scope, receive).body()).decode())
        elif scope["method"] == "PUT":
            with (self._folder / name).open("wb") as file:
                async for piece in Request(scope, receive).stream():
                    file.write(piece)
        elif name:
            with (self._folder / name).open("rb") as file:
                await _give(file, send)
            return
        await send(_head(len(answer)))
        await send({"type": "http.response.body", "body": answer})


async def _give(file: BinaryIO, send: Send) -> None:
    await send(_head(os.fstat(file.fileno()).st_size))
    while piece := file.read(PIECE_BYTES):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def run(code: str) -> bytes:
    """What code prints, as JSON; there is no isolation whatever."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "<code>", "exec"), {})  # noqa: S102 - the benchmark's own code
    return json.dumps({"stdout": printed.getvalue()}).encode()


def _head(length: int) -> dict[str, object]:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(length).encode())]
    return {"type": "http.response.start", "status": 200, "headers": headers}


def main(where: str, folder: Path) -> None:
    """Serve until a signal says that it is enough."""
    if where.isdecimal():
        listening = socket.socket(fileno=int(where))
    else:
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(where)
        listening.listen()
    config = uvicorn.Config(Bare(folder), loop="uvloop", http="httptools", lifespan="off", access_log=False, log_level="warning")
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
