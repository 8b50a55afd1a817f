"""File uploads as ``multipart/form-data`` (RFC 7578), parsed while the form arrives.

Invariants:
- Of a file, only the last chunk that arrived is held. Other fields are skipped, except for short texts that the caller names.
- A form that ends before its last boundary was cut. It is refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from sandlot.model.errors import InvalidRequestError
from sandlot.web.dependencies import iter_body

MULTIPART = "multipart/form-data"

MAX_PARTS = 100
MAX_HEADERS = 16
"""Headers of one part."""
MAX_HEADER_BYTES = 4096
MAX_TEXT_BYTES = 8192
"""Maximum size of a text field, unless a route allows more."""

_HINT = "Send the form as curl -F file=@data.csv does, or send the file as the body."
_FORM_HINT = "Send `multipart/form-data` with the boundary of the header."


@dataclass(frozen=True, slots=True)
class Upload:
    """One file of a form.

    Args:
        filename: Name that the client sent, unchecked.
        media_type: Media type that the client sent; None if it sent none.
        chunks: Content as it arrives. Iterate to the end, or end the request.
        field: Name of the field.
    """

    filename: str
    media_type: str | None
    chunks: AsyncIterator[bytes]
    field: str = "file"


def is_multipart(request: Request) -> bool:
    """Return True if the body of a request is a form with files."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == MULTIPART


async def read_uploads(request: Request, field: str = "file", *, max_parts: int = MAX_PARTS, needs_filename: bool = True) -> AsyncIterator[Upload]:
    """Yield all files of a form as they arrive.

    Iterate the content of each file to its end before the next file, or end the request.

    Args:
        request: Request with a form as its body, of which nothing was read.
        field: Name of the files' field.
        max_parts: Maximum parts of the form.
        needs_filename: False to take text fields of this name as files with an empty name.

    Raises:
        InvalidRequestError: The body is not a form, or has no such file.
        LimitError: ``too_large``; also while a file is read.
    """
    _, options = parse_options_header(request.headers.get("content-type", ""))
    parts = _FormParser(options.get(b"boundary", b""), max_parts).parse(request)
    found = False
    async for part in parts:
        if isinstance(part, _PartHeaders):
            name, filename = part.names()
            if name == field and (filename is not None or not needs_filename):
                found = True
                yield Upload(filename or "", part.media_type(), _part_content(parts))
    if not found:
        raise _missing_file(field)


async def read_form(request: Request, texts: FormFields, *, max_parts: int = MAX_PARTS) -> AsyncIterator[Upload]:
    """Yield all files of a form as they arrive, whatever their fields are. Text fields are read on the way.

    Iterate the content of each file to its end before the next file, or end the request.

    Args:
        request: Request with a form as its body, of which nothing was read.
        texts: Receives text fields of the form.
        max_parts: Maximum parts of the form.

    Raises:
        InvalidRequestError: The body is not a form.
        LimitError: ``too_large``; also while a file is read.
    """
    _, options = parse_options_header(request.headers.get("content-type", ""))
    parts = _FormParser(options.get(b"boundary", b""), max_parts).parse(request)
    async for part in parts:
        if isinstance(part, _PartHeaders):
            name, filename = part.names()
            if filename is None:
                await texts.read(part, parts)
            else:
                yield Upload(filename, part.media_type(), _part_content(parts), name)


class FormFields:
    """Text fields of a form beside its file. Those after the file are known when the file has been read.

    Of several fields with one name, the first counts.

    Args:
        names: Names of the fields to keep. Others are skipped.
        max_bytes: Maximum size of a field.
    """

    __slots__ = ("_max_bytes", "_names", "_texts")

    def __init__(self, *names: str, max_bytes: int = MAX_TEXT_BYTES) -> None:
        self._names = frozenset(names)
        self._max_bytes = max_bytes
        self._texts: dict[str, str] = {}

    @property
    def texts(self) -> Mapping[str, str]:
        """Texts of the fields that have arrived."""
        return self._texts

    def get(self, name: str) -> str | None:
        """Return the text of a field; None if the form has no such field, or it has not arrived."""
        return self._texts.get(name)

    async def read(self, head: _PartHeaders, parts: AsyncIterator[_PartHeaders | bytes | None]) -> None:
        """Read the current part if it is one of the fields.

        Raises:
            InvalidRequestError: The text is too long or not UTF-8.
        """
        name, filename = head.names()
        if name not in self._names or name in self._texts or filename is not None:
            return
        content = bytearray()
        async for piece in _part_content(parts):
            content += piece
            if len(content) > self._max_bytes:
                raise InvalidRequestError(
                    f"The form field {name!r} has more than {self._max_bytes} bytes.", hint="Send a shorter text.", fields={"field": name}
                )
        try:
            self._texts[name] = content.decode()
        except UnicodeDecodeError:
            raise InvalidRequestError(f"The form field {name!r} is not UTF-8.", hint="Encode the text as UTF-8.", fields={"field": name}) from None


async def read_upload(request: Request, field: str = "file", *, texts: FormFields | None = None) -> Upload:
    """Return the file of a form. The form is read up to the content of the file.

    Args:
        request: Request with a form as its body, of which nothing was read.
        field: Name of the file's field.
        texts: Receives text fields of the form.

    Raises:
        InvalidRequestError: The body is not a form, or has no such file.
        LimitError: ``too_large``; also while the file is read.
    """
    _, options = parse_options_header(request.headers.get("content-type", ""))
    parts = _FormParser(options.get(b"boundary", b"")).parse(request)
    async for part in parts:
        if isinstance(part, _PartHeaders):
            name, filename = part.names()
            if name == field and filename is not None:
                return Upload(filename, part.media_type(), _file_content(parts, texts))
            if texts is not None:
                await texts.read(part, parts)
    raise _missing_file(field)


async def _part_content(parts: AsyncIterator[_PartHeaders | bytes | None]) -> AsyncIterator[bytes]:
    """Yield the content of the current part."""
    async for part in parts:
        if not isinstance(part, bytes):
            return
        yield part


async def _file_content(parts: AsyncIterator[_PartHeaders | bytes | None], texts: FormFields | None) -> AsyncIterator[bytes]:
    async for piece in _part_content(parts):
        yield piece
    # Only text fields are needed of the rest, but the form must be complete.
    async for part in parts:
        if isinstance(part, _PartHeaders) and texts is not None:
            await texts.read(part, parts)


class _PartHeaders:
    """The headers of one part. The parser limits their number and size."""

    __slots__ = ("fields",)

    def __init__(self) -> None:
        self.fields: dict[str, bytes] = {}

    def names(self) -> tuple[str, str | None]:
        """Return the name of the field, and the file name if the part is a file.

        Raises:
            InvalidRequestError: A name is not UTF-8.
        """
        _, options = parse_options_header(self.fields.get("content-disposition", b""))
        filename = options.get(b"filename")
        try:
            return options.get(b"name", b"").decode(), None if filename is None else filename.decode()
        except UnicodeDecodeError:
            raise InvalidRequestError(
                "The file name in the form is not UTF-8.", hint="Encode the file name as UTF-8.", fields={"field": "filename"}
            ) from None

    def media_type(self) -> str | None:
        """Return the media type that the client sent."""
        return self.fields.get("content-type", b"").decode("latin-1").strip() or None


class _FormParser:
    """Parses a form into headers, chunks of content, and None at the end of each part."""

    def __init__(self, boundary: bytes, max_parts: int = MAX_PARTS) -> None:
        if not boundary:
            raise InvalidRequestError("The Content-Type header of the form has no boundary.", hint=_FORM_HINT)
        self._max_parts = max_parts
        self._parsed: deque[_PartHeaders | bytes | None] = deque()
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
                    "on_part_end": lambda: self._parsed.append(None),
                    "on_end": self._end,
                },
                max_header_count=MAX_HEADERS,
                max_header_size=MAX_HEADER_BYTES,
            )
        except FormParserError as error:
            raise _invalid_form(error) from None

    async def parse(self, request: Request) -> AsyncIterator[_PartHeaders | bytes | None]:
        """Yield the parts of a request's form.

        Raises:
            InvalidRequestError: The body is not a form, or was cut.
        """
        async for chunk in iter_body(request):
            try:
                self._parser.write(chunk)
            except FormParserError as error:
                raise _invalid_form(error) from None
            if self._parts > self._max_parts:
                raise InvalidRequestError(f"The form has more than {self._max_parts} parts.", hint="Send the files in several requests.")
            while self._parsed:
                yield self._parsed.popleft()
        if not self._ended:
            raise InvalidRequestError("The form ends before its last boundary.", hint="Send the whole form again.")

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
        self._parsed.append(self._head)

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        self._parsed.append(data[start:end])

    def _end(self) -> None:
        self._ended = True


def _missing_file(field: str) -> InvalidRequestError:
    return InvalidRequestError(f"The form has no file in the field {field!r}.", hint=_HINT, fields={"field": field})


def _invalid_form(error: FormParserError) -> InvalidRequestError:
    return InvalidRequestError("The multipart body does not match its Content-Type header.", hint=_FORM_HINT, fields={"body": str(error)[:200]})
