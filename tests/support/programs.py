"""The guest's programs as processes of this machine, spoken to as the host speaks to them in a sandbox."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Any

from sandlot.protocol import values


def decoded(raw: bytes) -> list[dict[str, Any]]:
    """Return the messages that make up some bytes."""
    reader = values.MessageReader()
    reader.feed(raw)
    found = list(reader.messages())
    assert reader.buffered_bytes == 0, "the last message is cut short"
    return found


def begin(name: str) -> subprocess.Popen[bytes]:
    """Start a program."""
    start = f"from sandlot.guest.helpers.{name} import main; main()"
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-P", "-X", "utf8", "-c", start], stdin=pipe, stdout=pipe, stderr=pipe)


@dataclass
class Said:
    """What a program gave until its end."""

    data: bytes
    told: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] | None = None
    error: str = ""
    message: str = ""


def run(name: str, request: Mapping[str, Any], body: bytes = b"") -> Said:
    """Run a program to its end."""
    with begin(name) as process:
        data, raw = process.communicate(values.encode_message(dict(request)) + body)
    told = decoded(raw)
    said = Said(data, told)
    last = told.pop() if told and told[-1].keys() & {"result", "error"} else {}
    said.result, said.error, said.message = last.get("result"), last.get("error", ""), last.get("message", "")
    return said


def next_message(stream: IO[bytes]) -> dict[str, Any]:
    """The next message of a program that runs."""
    size = values.message_length(stream.read(values.HEAD_BYTES))
    message: dict[str, Any] = values.decode(stream.read(size))
    return message
