"""Transcript of an agent: a file that grows with the run, one JSON object in each line.

Each line has ``type`` and ``time``. The types are ``start``, ``answer`` (of the model), ``result`` (of a tool call), ``end``, and ``error`` in place
of ``end`` if the run raised an exception. A run that continues a conversation appends another ``start``.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from sandlot.toolset.output import Image, ToolResult


class TranscriptFile:
    """A transcript that is being written. The file is readable by its owner only.

    Args:
        path: File to append to; None: write nothing.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self._file: IO[bytes] | None = None
        if path is not None:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self._file = os.fdopen(descriptor, "ab", buffering=0)

    def write(self, kind: str, **fields: Any) -> None:  # noqa: ANN401 - JSON
        """Append a line."""
        if self._file is not None:
            line = {"type": kind, "time": datetime.now(UTC).isoformat(), **fields}
            self._file.write(json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def content_of(result: ToolResult) -> list[dict[str, str]]:
    """Return the content of a result for a transcript."""
    return [
        {"type": "image", "media_type": each.media_type, "data": each.data} if isinstance(each, Image) else {"type": "text", "text": each.text}
        for each in result.content
    ]


def read_transcript(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the lines of a transcript. A last line that is not complete, because the run still writes it or was killed, is left out."""
    lines = Path(path).read_bytes().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith(b"\n")]
