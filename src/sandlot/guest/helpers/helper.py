"""Messages between the host and a helper process, and the main function that all helpers share.

Descriptor 0 carries the request, which is one message, and then the input of the helper: an archive or further messages. Descriptor 1
carries the bytes that the helper sends, such as an archive. Descriptor 2 carries its messages (``protocol/values.py``).

Invariants:
- The last message of a helper is ``{"result": ...}`` or ``{"error": ..., "message": ..., "hint": ...}``. A helper that ends without such
  a message has failed.
- A helper ends on SIGTERM, when it reads the end of its input, and when it writes to an output that the host has closed. Before a helper
  ends, it removes incomplete files.
"""

from __future__ import annotations

import os
import select

from sandlot.guest.errors import RpcError
from sandlot.protocol import values
from sandlot.protocol.fast_imports import signal
from sandlot.protocol.helpers import MAX_MESSAGE_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

REQUESTS, BYTES, MESSAGES = 0, 1, 2
MAX_TRACE_CHARS = 2000

_input_poll = select.poll()
_input_poll.register(REQUESTS, select.POLLIN)


def send_message(message: dict[str, Any]) -> None:
    """Send a message to the host on descriptor 2. Blocks while the host does not read."""
    send(values.encode_message(message), MESSAGES)


def send(data: bytes | memoryview, to: int = BYTES) -> None:
    """Write bytes to the host. Blocks while the host does not read.

    Args:
        data: Bytes to write.
        to: Descriptor to write to: ``BYTES`` or ``MESSAGES``.
    """
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(to, rest) :]


def read(size: int) -> bytes:
    """Wait for input on descriptor 0, and return at most ``size`` bytes. Return no bytes at the end of the input.

    Raises:
        SystemExit: The helper has received SIGTERM.
    """
    # A signal that arrives just before read(2) does not interrupt the call. It ends the poll, because it makes the wakeup descriptor readable.
    _input_poll.poll()
    return os.read(REQUESTS, size)


def receive_message() -> Any:
    """Wait for the next message of the host on descriptor 0, and return the decoded message.

    Raises:
        EOFError: The host has closed the input.
    """
    # Read no byte beyond the message: an archive may follow, which other code reads from the descriptor.
    return values.decode(_read_exactly(values.message_length(_read_exactly(values.HEAD_BYTES))))


def serve(work: Callable[[dict[str, Any]], dict[str, Any]]) -> NoReturn:
    """Receive one request of the host, execute it, send the result or the error, and end the process.

    Args:
        work: Function that gets the request, executes it and returns the result.
    """
    wakeup, wakeup_by_signal = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wakeup_by_signal, warn_on_full_buffer=False)
    _input_poll.register(wakeup, select.POLLIN)
    signal.signal(signal.SIGTERM, _exit_on_signal)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        send_message(_outcome(work))
    except (EOFError, BrokenPipeError):
        os._exit(1)  # the host has closed the input or the output
    os._exit(0)  # nothing is left to clean up, and a regular exit of the interpreter takes milliseconds


def _outcome(work: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    try:
        return {"result": work(receive_message())}
    except RpcError as error:
        return {"error": error.code, "message": error.message, "hint": error.hint}
    except (EOFError, BrokenPipeError, SystemExit):
        raise
    except MemoryError:
        return {
            "error": "limit_exceeded",
            "message": "The sandbox does not have enough memory for this request.",
            "hint": "Use a sandbox with more memory, or split the request.",
        }
    except Exception:  # noqa: BLE001 - the host logs the traceback
        import traceback  # noqa: PLC0415 - slow to import, and rarely needed

        return {"error": "internal", "message": traceback.format_exc()[-MAX_TRACE_CHARS:], "hint": ""}


def _exit_on_signal(_number: int, _frame: object) -> NoReturn:
    raise SystemExit(1)


def _read_exactly(size: int) -> bytes:
    if size > MAX_MESSAGE_BYTES:
        raise EOFError
    parts = []
    while size:
        part = read(size)
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
