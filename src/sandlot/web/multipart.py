"""Uploads as forms send them: ``multipart/form-data`` (RFC 7578), taken apart while it arrives.

Laws:
- Nothing of a file waits here but the piece that was read last; other fields are passed over, but for short texts that somebody asks for.
- A form that ends before its last boundary was cut, and is no upload.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from sandlot.model.errors import InvalidRequestError
from sandlot.web.dependencies import iter_body

MULTIPART = "multipart/form-data"

MAX_PARTS = 100
MAX_HEADERS = 16
"""Of one part."""
MAX_HEADER_BYTES = 4096
MAX_TEXT_BYTES = 8192
"""Of a text beside the file."""

_HINT = "Send it as curl -F file=@data.csv does, or as the body itself."


@dataclass(frozen=True, slots=True)
class Upload:
    """One file of a form.

    Args:
        filename: As the client named it; nothing is known of it.
        media_type: As the client said; None where it did not.
        chunks: Its content as it arrives. Iterate it to its end, or give the request up.
    """

    filename: str
    media_type: str | None
    chunks: AsyncIterator[bytes]


def is_multipart(request: Request) -> bool:
    """Whether a request's body is a form with files."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == MULTIPART


async def read_uploads(request: Request, field: str = "file", *, most_parts: int = MAX_PARTS) -> AsyncIterator[Upload]:
    """All files that a form carries, one after another, as they arrive.

    Args:
        request: Its body is such a form, and nothing of it was read.
        field: The name of the files' field.
        most_parts: Of the form.

    Yields:
        Each; iterate its content to its end before the next is asked for, or give the request up.

    Raises:
        InvalidRequestError: It is no form, or has no such file.
        LimitError: ``too_large``; also while a content is read.
    """
    _, options = parse_options_header(request.headers.get("content-type", ""))
    told = _FormParser(options.get(b"boundary", b""), most_parts).told(request)
    found = False
    async for part in told:
        if isinstance(part, _PartHeaders):
            name, filename = part.names()
            if name == field and filename is not None:
                found = True
                yield Upload(filename, part.media_type(), _part_content(told))
    if not found:
        raise _missing_file(field)


class FormFields:
    """Texts of a form beside its file: those before the file are there when it is, those after it once its content was read.

    The first of a name counts.

    Args:
        names: Which ones; others are passed over.
    """

    __slots__ = ("_names", "_texts")

    def __init__(self, *names: str) -> None:
        self._names = frozenset(names)
        self._texts: dict[str, str] = {}

    def get(self, name: str) -> str | None:
        """A text; None where there is none, or none yet."""
        return self._texts.get(name)

    async def take(self, head: _PartHeaders, told: AsyncIterator[_PartHeaders | bytes | None]) -> None:
        """Take a part that the form is at, where it is one of these.

        Raises:
            InvalidRequestError: It is too long, or no UTF-8.
        """
        name, filename = head.names()
        if name not in self._names or name in self._texts or filename is not None:
            return
        content = bytearray()
        async for piece in _part_content(told):
            content += piece
            if len(content) > MAX_TEXT_BYTES:
                raise InvalidRequestError(f"The form's field {name!r} has more than {MAX_TEXT_BYTES} bytes.", hint=_HINT, fields={"field": name})
        try:
            self._texts[name] = content.decode()
        except UnicodeDecodeError:
            raise InvalidRequestError(f"The form's field {name!r} is no UTF-8.", hint=_HINT, fields={"field": name}) from None


async def read_upload(request: Request, field: str = "file", *, beside: FormFields | None = None) -> Upload:
    """The file that a form carries; the form is read up to its content.

    Args:
        request: Its body is such a form, and nothing of it was read.
        field: The name of the file's field.
        beside: Is given the texts that come along.

    Raises:
        InvalidRequestError: It is no form, or has no such file.
        LimitError: ``too_large``; also while the content is read.
    """
    _, options = parse_options_header(request.headers.get("content-type", ""))
    form = _FormParser(options.get(b"boundary", b""))
    told = form.told(request)
    async for part in told:
        if isinstance(part, _PartHeaders):
            name, filename = part.names()
            if name == field and filename is not None:
                return Upload(filename, part.media_type(), _file_content(told, beside))
            if beside is not None:
                await beside.take(part, told)
    raise _missing_file(field)


async def _part_content(told: AsyncIterator[_PartHeaders | bytes | None]) -> AsyncIterator[bytes]:
    """The content of the part that the form is at."""
    async for part in told:
        if not isinstance(part, bytes):
            return
        yield part


async def _file_content(told: AsyncIterator[_PartHeaders | bytes | None], beside: FormFields | None) -> AsyncIterator[bytes]:
    async for piece in _part_content(told):
        yield piece
    # What comes after it is of no interest but for such texts, but it has to be whole.
    async for part in told:
        if isinstance(part, _PartHeaders) and beside is not None:
            await beside.take(part, told)


class _PartHeaders:
    """The headers of one part; so many of them as the parser allows."""

    __slots__ = ("fields",)

    def __init__(self) -> None:
        self.fields: dict[str, bytes] = {}

    def names(self) -> tuple[str, str | None]:
        """The field's name, and the file's where it is one.

        Raises:
            InvalidRequestError: They are no UTF-8.
        """
        _, options = parse_options_header(self.fields.get("content-disposition", b""))
        filename = options.get(b"filename")
        try:
            return options.get(b"name", b"").decode(), None if filename is None else filename.decode()
        except UnicodeDecodeError:
            raise InvalidRequestError("The name of the file is no UTF-8.", hint=_HINT, fields={"field": "filename"}) from None

    def media_type(self) -> str | None:
        """What the client says that it is."""
        return self.fields.get("content-type", b"").decode("latin-1").strip() or None


class _FormParser:
    """A form that arrives: heads, pieces of content, and None at the end of each part."""

    def __init__(self, boundary: bytes, most_parts: int = MAX_PARTS) -> None:
        if not boundary:
            raise InvalidRequestError("The form says no boundary.", hint=_HINT)
        self._most_parts = most_parts
        self._told: deque[_PartHeaders | bytes | None] = deque()
        self._head = _PartHeaders()
        self._name = b""
        self._value = b""
        self._parts = 0
        self._ended = False
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin,
                    "on_header_field": self._on_name,
                    "on_header_value": self._on_value,
                    "on_header_end": self._on_header,
                    "on_headers_finished": self._on_headers,
                    "on_part_data": self._on_data,
                    "on_part_end": lambda: self._told.append(None),
                    "on_end": self._end,
                },
                max_header_count=MAX_HEADERS,
                max_header_size=MAX_HEADER_BYTES,
            )
        except FormParserError as error:
            raise _invalid_form(error) from None

    async def told(self, request: Request) -> AsyncIterator[_PartHeaders | bytes | None]:
        """What arrives.

        Raises:
            InvalidRequestError: It is no form, or is cut.
        """
        async for piece in iter_body(request):
            try:
                self._parser.write(piece)
            except FormParserError as error:
                raise _invalid_form(error) from None
            if self._parts > self._most_parts:
                raise InvalidRequestError(f"The form has more than {self._most_parts} parts.", hint=_HINT)
            while self._told:
                yield self._told.popleft()
        if not self._ended:
            raise InvalidRequestError("The form breaks off before its end.", hint="Send it again.")

    def _begin(self) -> None:
        self._parts += 1
        self._head = _PartHeaders()

    def _on_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _on_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header(self) -> None:
        self._head.fields[self._name.decode("latin-1").lower()] = self._value
        self._name = self._value = b""

    def _on_headers(self) -> None:
        self._told.append(self._head)

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        self._told.append(data[start:end])

    def _end(self) -> None:
        self._ended = True


def _missing_file(field: str) -> InvalidRequestError:
    return InvalidRequestError(f"The form has no file in a field {field!r}.", hint=_HINT, fields={"field": field})


def _invalid_form(error: FormParserError) -> InvalidRequestError:
    return InvalidRequestError("The body is no form as its head says.", hint=_HINT, fields={"body": str(error)[:200]})
