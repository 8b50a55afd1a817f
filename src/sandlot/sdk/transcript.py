"""Transcript of a run: joins the events of a stream into a result, and yields pieces for callbacks. Pure.

Invariants:
- Callbacks get whole characters, wherever the bytes were cut: each stream has its own decoder.
- The first and the last MiB of each stream are kept, as in a result of the service; the bytes between are counted.
- Bytes are counted by offset and other events by number, so that a reader that returns continues where it was and knows what it missed.
- Results and text are those that a notebook shows in the end: an update replaces its display, and what was cleared is removed.
"""

from __future__ import annotations

import base64
import codecs
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from sandlot.model.output_capture import OutputCapture
from sandlot.sdk.converter import structure
from sandlot.sdk.models.code import ExceptionInfo, Execution, ExecutionStarted, OutputCleared, Result
from sandlot.sdk.models.processes import CommandResult, Output, PrintedUrl, Stream
from sandlot.sdk.sse import Event

Piece: TypeAlias = Output | Result | ExceptionInfo | ExecutionStarted | OutputCleared
"""Content of an event for callbacks and readers."""


class StreamOutput:
    """Output of one stream: kept text, current offset and decoder."""

    __slots__ = ("_capture", "_decoder", "offset")

    def __init__(self) -> None:
        self._capture = OutputCapture()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.offset = 0

    def add(self, data: bytes) -> None:
        """Keep the next bytes."""
        self.offset += len(data)
        self._capture.add(data)

    def skip(self, count: int) -> None:
        """Count bytes that were not received."""
        self.offset += count
        self._capture.skip(count)

    def clear(self) -> None:
        """Drop the kept text. The offset stays."""
        self._capture = OutputCapture()

    def decode(self, data: bytes, *, final: bool = False) -> str:
        """Return the characters that the next bytes complete."""
        return self._decoder.decode(data, final)

    def text(self) -> str:
        """Return the kept text, with a line in place of bytes that are left out."""
        return self._capture.text()

    @property
    def omitted(self) -> int:
        """Number of bytes that are left out."""
        return self._capture.omitted


@dataclass(slots=True)
class Transcript:
    """Events of one process or run of code so far."""

    id: str = ""
    pid: int | None = None
    stdout: StreamOutput = field(default_factory=StreamOutput)
    stderr: StreamOutput = field(default_factory=StreamOutput)
    results: list[Result] = field(default_factory=list)
    error: ExceptionInfo | None = None
    urls: list[PrintedUrl] = field(default_factory=list)
    end: dict[str, Any] | None = None
    events: int = 0
    """Number of events of code without those of output; a reader that returns continues after them."""
    _clearing: bool = False

    def feed(self, event: Event) -> Piece | None:
        """Add the next event. Return its content for callbacks and readers; None if it has none."""
        data = event.data
        match event.name:
            case "output":
                return self._output(data)
            case "lost":
                return self._lost(data)
            case "display" | "error" | "clear":
                self.events += 1
                return self._content(event.name, data)
            case "accepted" | "started":
                self.id = str(data.get("id") or self.id)
                self.pid = data.get("pid")
                if event.name == "started" and "execution_count" in data:
                    self.events += 1
                    return ExecutionStarted(self.id, int(data["execution_count"]))
            case "url":
                self._add_url(structure(PrintedUrl, data))
            case "exit":
                self.end = data
            case _:
                pass  # an event of a newer service
        return None

    def _content(self, name: str, data: dict[str, Any]) -> Result | ExceptionInfo | OutputCleared:
        if name == "error":
            self.error = structure(ExceptionInfo, data)
            return self.error
        if name == "clear":
            cleared = OutputCleared(bool(data.get("wait", False)))
            self._clearing = cleared.wait
            if not cleared.wait:
                self._clear()
            return cleared
        result = structure(Result, data)
        if self._clearing:
            self._clear()
        places = [place for place, each in enumerate(self.results) if result.update and each.display_id == result.display_id]
        for place in places:
            self.results[place] = replace(result, main=self.results[place].main, update=False)
        if not places:
            self.results.append(result)
        return result

    def _add_url(self, url: PrintedUrl) -> None:
        """Keep a URL. A stream that is continued may repeat the last ones, with other tokens."""
        if all(each.printed != url.printed for each in self.urls):
            self.urls.append(url)

    def over(self) -> bool:
        """Return True after the last event."""
        return self.end is not None

    def stream(self, stream: Stream) -> StreamOutput:
        """Return the output of one stream."""
        return self.stdout if stream == "stdout" else self.stderr

    def remainders(self) -> Iterator[tuple[Stream, str]]:
        """Yield characters that are still incomplete at the end of the run."""
        streams: tuple[Stream, Stream] = ("stdout", "stderr")
        for stream in streams:
            if text := self.stream(stream).decode(b"", final=True):
                yield stream, text

    def command_result(self) -> CommandResult | None:
        """Return the result; None before the last event."""
        return None if self.end is None else replace(structure(CommandResult, self.end), **self._collected())

    def execution(self) -> Execution | None:
        """Return the result; None before the last event."""
        if self.end is None:
            return None
        return replace(structure(Execution, self.end), **self._collected(), results=tuple(self.results), error=self.error)

    def _clear(self) -> None:
        self._clearing = False
        self.results.clear()
        self.stdout.clear()
        self.stderr.clear()

    def _collected(self) -> dict[str, Any]:
        return {
            "stdout": self.stdout.text(),
            "stderr": self.stderr.text(),
            "stdout_omitted_bytes": self.stdout.omitted,
            "stderr_omitted_bytes": self.stderr.omitted,
            "urls": tuple(self.urls),
        }

    def _output(self, data: dict[str, Any]) -> Output | None:
        stream: Stream = "stderr" if data["stream"] == "stderr" else "stdout"
        reading = self.stream(stream)
        content = base64.b64decode(data["data"]) if data.get("encoding") == "base64" else data["data"].encode()
        missed = int(data.get("offset", reading.offset)) - reading.offset
        if missed < 0:
            content = content[-missed:]  # the rest was received before
        if content and self._clearing:
            self._clear()
        if missed > 0:
            reading.skip(missed)
        reading.add(content)
        return Output(stream, content, max(0, missed)) if content or missed > 0 else None

    def _lost(self, data: dict[str, Any]) -> Output:
        stream: Stream = "stderr" if data["stream"] == "stderr" else "stdout"
        if self._clearing:
            self._clear()
        self.stream(stream).skip(int(data["lost_bytes"]))
        return Output(stream, b"", int(data["lost_bytes"]))
