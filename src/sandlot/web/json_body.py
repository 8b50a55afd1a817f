"""Parse JSON bodies: small ones at once, large ones in a thread, within limits that keep the event loop free.

The parsers of JSON and pydantic hold the interpreter's lock (GIL) for the whole of a call, also in a thread. A thread therefore frees the loop only
if each call is short: the number of values is limited before any object is built. Measured on 2 cores: 8 MiB with 700,000 keys hold the lock for
0.5 s, 24,000 values for 10 ms, one string of 8 MiB for 20 ms.

Invariants:
- A body of more than 64 KiB has at most 24,000 values, at most 100 levels deep, and is UTF-8.
- Large bodies are parsed one after another, so the loop competes with one thread for the lock.
"""

from __future__ import annotations

import asyncio
import email.message
import functools
import re
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from fastapi import Request, Response
from fastapi._compat import ModelField
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic_core import from_json

from sandlot.model.errors import ErrorCode, InvalidRequestError, LimitError
from sandlot.model.specs import KIB

INLINE_MAX_BYTES: Final = 64 * KIB
MAX_VALUES: Final = 24_000
"""The arguments and environment of the largest command have 20,480 values (:mod:`sandlot.model.specs`)."""
MAX_DEPTH: Final = 100
THREAD: Final = "sandlot-json"
"""Prefix of the name of the thread."""

WINDOW_BYTES = 64 * KIB
"""Bytes that one call of a pattern looks at: each call holds the lock."""
_TOKEN = re.compile(rb'["\[\]{},]')
_IN_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_QUOTE = ord('"')

_Parsed = TypeVar("_Parsed")


class JsonParser:
    """Parses the JSON bodies of a service."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, THREAD)

    async def parse(self, content: bytes, parse: Callable[[bytes], _Parsed]) -> _Parsed:
        """Return ``parse(content)``; for a large content, the result of a thread.

        Raises:
            LimitError: A large content has too many values (``too_large``).
            InvalidRequestError: A large content is nested too deeply, or is not UTF-8.
        """
        if len(content) <= INLINE_MAX_BYTES:
            return parse(content)
        return await asyncio.get_running_loop().run_in_executor(self._executor, _check_and_parse, content, parse)


class JsonRoute(APIRoute):
    """A route whose large JSON body is parsed and validated by the :class:`JsonParser` of the app."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of the route, behind the parser."""
        handle, field = super().get_route_handler(), self.body_field
        if field is None:
            return handle

        async def parse_and_handle(request: Request) -> Response:
            content = await request.body()
            if len(content) > INLINE_MAX_BYTES and _is_json(request.headers.get("content-type", "")):
                # FastAPI takes this for the parsed body. It validates an instance of the model by its type.
                request._json = await get_json_parser(request).parse(content, functools.partial(_validate, field))  # noqa: SLF001
            return await handle(request)

        return parse_and_handle


def get_json_parser(request: Request) -> JsonParser:
    """Return the parser of the app."""
    parser: JsonParser = request.app.state.json_parser
    return parser


def check_shape(content: bytes) -> None:
    """Refuse JSON that has too many values or is nested too deeply. Whether it is JSON at all is not checked.

    Raises:
        LimitError: It has too many values (``too_large``).
        InvalidRequestError: It is nested too deeply.
    """
    # Most bodies are a few long strings, and can be accepted without a look at what is inside of the strings.
    brackets = content.count(b"[") + content.count(b"{")
    if brackets <= MAX_DEPTH and content.count(b",") <= MAX_VALUES - brackets:
        return
    values = depth = at = 0
    while at < len(content):
        found = _TOKEN.search(content, at, at + WINDOW_BYTES)
        if found is None:
            at += WINDOW_BYTES
            continue
        at = found.end()
        match found[0]:
            case b'"':
                at = _string_end(content, at)
            case b"[" | b"{":
                depth += 1
                values += 1
            case b",":
                values += 1
            case _:
                depth -= 1
        if depth > MAX_DEPTH:
            raise InvalidRequestError(
                f"The JSON of the request is nested more than {MAX_DEPTH} levels deep.", hint="Upload deeply nested data as a file."
            )
        if values > MAX_VALUES:
            raise LimitError(
                f"The JSON of the request has more than {MAX_VALUES} values.",
                code=ErrorCode.TOO_LARGE,
                hint="Upload large data as a file, and refer to the file.",
                fields={"max_values": MAX_VALUES},
            )


def _string_end(content: bytes, at: int) -> int:
    """Return the position after the string whose first byte is at ``at``."""
    while at < len(content):
        found = _IN_STRING.match(content, at, at + WINDOW_BYTES)
        end = at if found is None else found.end()
        if end < len(content) and content[end] == _QUOTE:
            return end + 1
        if end == at:
            break  # a backslash is the last byte
        at = end
    return len(content)


def parse_json(content: bytes) -> Any:  # noqa: ANN401 - any JSON
    """Return the value of JSON in UTF-8.

    json.loads takes twice the time for large bodies, and reads UTF-16, whose strings :func:`check_shape` does not find.

    Raises:
        ValueError: It is not JSON, or not UTF-8.
    """
    return from_json(content)


def _check_and_parse(content: bytes, parse: Callable[[bytes], _Parsed]) -> _Parsed:
    check_shape(content)
    return parse(content)


def _validate(field: ModelField, content: bytes) -> object:
    try:
        value = parse_json(content)
    except ValueError as error:
        raise InvalidRequestError("The request body is not JSON.", hint="Send a JSON object in UTF-8.", fields={"body": str(error)}) from None
    validated, errors = field.validate(value, {}, loc=("body",))
    if errors:
        raise RequestValidationError(errors)
    return validated


def _is_json(content_type: str) -> bool:
    """Return True if FastAPI parses a body of this type as JSON."""
    message = email.message.Message()
    message["content-type"] = content_type
    subtype = message.get_content_subtype()
    return message.get_content_maintype() == "application" and (subtype == "json" or subtype.endswith("+json"))
