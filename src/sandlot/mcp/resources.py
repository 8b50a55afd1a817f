"""Files of sandboxes as resources: ``sandlot://SANDBOX/files/PATH`` with an absolute path. Pure, except :func:`read`."""

from __future__ import annotations

import mimetypes
import re
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from sandlot.mcp.host import SandboxHost
from sandlot.model.errors import ErrorCode, LimitError

TEMPLATE: Final = "sandlot://{sandbox}/files/{+path}"
MAX_BYTES: Final = 4 * 1024 * 1024
"""Largest file that is read as a resource."""

_URI: Final = re.compile(r"sandlot://([A-Za-z0-9][A-Za-z0-9._-]{0,99})/files/(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class FileUri:
    """Sandbox and absolute path that a URI names."""

    sandbox: str
    path: str

    def __str__(self) -> str:
        """Return the URI."""
        return f"sandlot://{self.sandbox}/files{quote(self.path)}"


def parse_uri(uri: str) -> FileUri | None:
    """Return the file that a URI names; None if it names none."""
    found = _URI.fullmatch(uri)
    return None if found is None else FileUri(found[1], f"/{unquote(found[2]).lstrip('/')}")


def media_type(path: str) -> str:
    """Return the media type of a file by its name."""
    return mimetypes.guess_type(path)[0] or "application/octet-stream"


async def read(host: SandboxHost, file: FileUri) -> bytes:
    """Read a file.

    Raises:
        LimitError: ``too_large``.
    """
    content = bytearray()
    async with aclosing(await (await host.open(file.sandbox)).read_file(file.path)) as stream:
        async for chunk in stream:
            content += chunk
            if len(content) > MAX_BYTES:
                raise LimitError(
                    f"{file.path[:200]!r} has more than {MAX_BYTES:,} bytes.", code=ErrorCode.TOO_LARGE, hint="Read parts of it with run_command."
                )
    return bytes(content)
