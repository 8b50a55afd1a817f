"""How a program that the host started talks with it.

Descriptor 0 carries what the host sends: one message, the request, and then whatever the program is about. Descriptor 1 carries bytes,
2 carries messages (``protocol/values.py``).

Laws:
- The last message is ``{"result": ...}`` or ``{"error": ..., "message": ..., "hint": ...}``; a program that ends without one has failed.
- A program ends when its input does, on SIGTERM, and when nobody takes its output; it cleans up behind itself then.
"""

from __future__ import annotations

import os

from sandlot.protocol import values
from sandlot.protocol.fast_imports import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

REQUESTS, BYTES, MESSAGES = 0, 1, 2
MESSAGE_BYTES = 1024 * 1024
"""One message at most; the host refuses longer ones."""
TRACE_CHARS = 2000


class Refused(Exception):  # noqa: N818 - an answer, not a defect
    """It cannot be done, and the host is told so. ``code`` is one of the model's ErrorCode texts."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint


def failed(error: OSError, path: str) -> Refused:
    """What the host is told of a system call that failed."""
    from sandlot.guest.fs.paths import path_error  # noqa: PLC0415 - seldom needed

    told = path_error(error, path)
    return Refused(told.code, told.message, told.hint)


def tell(message: dict[str, Any]) -> None:
    """Send one message; waits while the host does not take it."""
    send(values.encode_message(message), MESSAGES)


def send(data: bytes | memoryview, to: int = BYTES) -> None:
    """Send bytes; waits while the host does not take them."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(to, rest) :]


def receive() -> Any:
    """The next message of the host.

    Raises:
        EOFError: There is none any more.
    """
    # Read no byte beyond the message: an archive may follow it, which another part of the program reads from the descriptor.
    return values.decode(_exactly(values.message_length(_exactly(values.HEAD_BYTES))))


def serve(work: Callable[[dict[str, Any]], dict[str, Any]]) -> NoReturn:
    """Do what the host asks, tell it how that went, and end.

    Args:
        work: Takes the request; gives the result, or raises Refused or OSError.
    """
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        tell(_done(work))
    except (EOFError, BrokenPipeError):
        os._exit(1)  # nobody is there to be told
    os._exit(0)  # nothing is left to be tidied up, and an interpreter takes milliseconds for it


def _done(work: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    try:
        return {"result": work(receive())}
    except Refused as refused:
        return {"error": refused.code, "message": refused.message, "hint": refused.hint}
    except (EOFError, BrokenPipeError, SystemExit):
        raise
    except MemoryError:
        return {"error": "limit_exceeded", "message": "The sandbox has no memory for this.", "hint": "Ask for more memory, or for less at once."}
    except Exception:  # noqa: BLE001 - the host is told of every defect
        import traceback  # noqa: PLC0415 - slow to import, and never needed

        return {"error": "internal", "message": traceback.format_exc()[-TRACE_CHARS:], "hint": ""}


def _leave(_number: int, _frame: object) -> NoReturn:
    raise SystemExit(1)


def _exactly(size: int) -> bytes:
    if size > MESSAGE_BYTES:
        raise EOFError
    parts = []
    while size:
        part = os.read(REQUESTS, size)
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
