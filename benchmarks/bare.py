"""An HTTP server that does nothing of Sandlot's, for comparison: the same uvicorn, event loop and parser, handlers of a few lines.

    python benchmarks/bare.py SOCKET FOLDER

``GET /`` answers with some JSON; ``PUT /NAME`` writes the body to a file of the folder, ``GET /NAME`` sends it.
"""

from __future__ import annotations

import sys
from pathlib import Path

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
        length = None
        if scope["method"] == "PUT":
            with (self._folder / name).open("wb") as file:
                async for piece in Request(scope, receive).stream():
                    file.write(piece)
        elif name:
            length = (self._folder / name).stat().st_size
        headers = [(b"content-type", b"application/json"), (b"content-length", str(length or len(ANSWER)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if length is None:
            await send({"type": "http.response.body", "body": ANSWER})
            return
        with (self._folder / name).open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


if __name__ == "__main__":
    uvicorn.run(Bare(Path(sys.argv[2])), uds=sys.argv[1], loop="uvloop", http="httptools", lifespan="off", access_log=False, log_level="warning")
