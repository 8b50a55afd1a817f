"""Output in the form that a model reads: text and images of bounded size, and errors that say what to do next."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from sandlot.model.errors import SANDBOX_GONE, SandlotError
from sandlot.model.faults import Fault
from sandlot.toolset.backend import FileInfo, RichResult, RunResult
from sandlot.toolset.images import check_image, decode_image, media_type

MAX_OUTPUT_CHARS: Final = 30_000
"""Default of the largest text of a result, in characters: about 8,000 tokens."""
MAX_IMAGES: Final = 8
"""Largest number of images in one result."""
MAX_IMAGES_CHARS: Final = 8 * 1024 * 1024
"""Largest size of all images in one result, in characters of base64."""

IMAGE_TYPES: Final = ("image/png", "image/jpeg", "image/webp", "image/gif")
_TEXT_TYPES: Final = ("text/plain", "text/markdown", "application/json", "text/latex", "image/svg+xml", "text/html")
"""MIME types of the text of a value, the best one first. HTML stays text."""

_STATUS_NOTES: Final[Mapping[str, str]] = {
    "oom": "killed: the memory limit of the sandbox was reached; use less memory",
    "pids": "killed: it started more processes than the sandbox allows",
    "died": "the interpreter ended; its variables are lost",
    "killed": "killed by a request from outside; the variables are lost",
    "aborted": "not run: withdrawn before its turn",
    "lost": "the outcome is unknown, because the sandbox or the service ended",
}
"""Status of a run -> note for the model. Other statuses are shown by the exit code."""

_FAULT_NOTES: Final[Mapping[Fault, str]] = {
    Fault.CODE: "The program failed.",
    Fault.REQUEST: "Change the arguments of the call.",
    Fault.LIMIT: "A limit was reached: use less, or ask for a higher limit.",
    Fault.CAPACITY: "The service has no room now: try again later.",
    Fault.PLATFORM: "The sandbox service failed, not your program: try again once, then report the problem.",
    Fault.LOST: "The sandbox was lost with its files and variables.",
}
"""Fault class -> sentence for the model. A test checks that the table has every class."""


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of text of a result."""

    text: str


@dataclass(frozen=True, slots=True)
class Image:
    """An image of a result.

    Args:
        media_type: ``image/png``, ``image/jpeg``, ``image/gif`` or ``image/webp``.
        data: Content in base64.
    """

    media_type: str
    data: str


Content: TypeAlias = Text | Image


@dataclass(frozen=True, slots=True)
class ToolResult:
    """Result of a tool call.

    Args:
        content: Text and images for the model. There is always a text.
        structured: The same as values of JSON, without images.
        is_error: True if the tool failed. A program that failed is no error of the tool.
        fault: Fault class of the error or of the program; None if nothing failed.
        sandbox_ended: True if the sandbox does not exist any more. The caller may use a new one for the next call.
        execution: Id of the run in the execution log; None if nothing was run.
    """

    content: tuple[Content, ...]
    structured: Mapping[str, Any] = field(default_factory=dict)
    is_error: bool = False
    fault: Fault | None = None
    sandbox_ended: bool = False
    execution: str | None = None

    @property
    def text(self) -> str:
        """All text of the result."""
        return "\n".join(each.text for each in self.content if isinstance(each, Text))

    @property
    def size_chars(self) -> int:
        """Size of the content, in characters of text and of base64."""
        return sum(len(each.text if isinstance(each, Text) else each.data) for each in self.content)

    @property
    def images(self) -> tuple[Image, ...]:
        """All images of the result."""
        return tuple(each for each in self.content if isinstance(each, Image))


def text_result(text: str, structured: Mapping[str, Any] | None = None) -> ToolResult:
    """Return a result that is one text."""
    return ToolResult((Text(text),), structured or {})


def error_result(error: SandlotError) -> ToolResult:
    """Return the result of a call that raised an error."""
    ended = error.code in SANDBOX_GONE
    text = f"Error: {error}\n{_FAULT_NOTES[error.fault]} [code: {error.code}, fault: {error.fault}]"
    if ended:
        text += "\nThe sandbox is gone, with its files, variables and installed packages."
    details = {"code": str(error.code), "message": error.message, "hint": error.hint, "fault": str(error.fault), "retryable": error.retryable}
    return ToolResult((Text(text),), {"error": details}, is_error=True, fault=error.fault, sandbox_ended=ended)


def invalid_call(message: str) -> ToolResult:
    """Return the result of a call that the model made wrongly."""
    details = {"code": "invalid_request", "message": message, "hint": "", "fault": str(Fault.REQUEST), "retryable": False}
    text = f"Error: {message}\nNothing was run. Correct the call and try again."
    return ToolResult((Text(text),), {"error": details}, is_error=True, fault=Fault.REQUEST)


def shorten(text: str, max_chars: int, note: str) -> str:
    """Return a text with its middle cut out if it is longer than ``max_chars``.

    Args:
        text: Text.
        max_chars: Largest number of characters that stay.
        note: Sentence about the rest, which follows the number of omitted characters.
    """
    if len(text) <= max_chars:
        return text
    head, tail = text[: max_chars // 2], text[len(text) - (max_chars - max_chars // 2) :]
    return f"{head}\n\n[... {len(text) - max_chars:,} characters are left out here. {note}]\n\n{tail}"


def run_text(run: RunResult, timeout_s: float | None) -> str:
    """Return the whole text of a run: standard output, standard error, values, the traceback and how it ended.

    Args:
        run: Run.
        timeout_s: Timeout of the run, for the note about it.
    """
    parts = [run.stdout.rstrip("\n")]
    if run.stderr.strip():
        parts.append(f"[stderr]\n{run.stderr.rstrip()}" if run.stdout.strip() else run.stderr.rstrip())
    parts += [text for text in map(_value_text, run.results) if text]
    if run.results_omitted:
        parts.append(f"[{run.results_omitted} more results are left out]")
    parts.append(run.error.rstrip())
    parts.append(_ending(run, timeout_s))
    return "\n".join(part for part in parts if part) or "(no output)"


def run_is_error(run: RunResult) -> bool:
    """Return True if a run failed for another reason than its program."""
    return run.fault is not None and run.fault is not Fault.CODE


def shown_images(results: Iterable[RichResult]) -> tuple[tuple[Image, ...], tuple[str, ...]]:
    """Return the images that models accept among the values of a run, and a sentence about each other image."""
    images: list[Image] = []
    problems: list[str] = []
    for result in results:
        kind = next((each for each in IMAGE_TYPES if each in result.data), None)
        if kind is None:
            continue
        image = checked_image(decode_image(result.data[kind]))
        if isinstance(image, str):
            problems.append(f"[an image is not shown: {image}]")
        elif len(images) == MAX_IMAGES:
            problems.append(f"[an image is not shown: only the first {MAX_IMAGES} are]")
        elif sum(len(each.data) for each in (*images, image)) > MAX_IMAGES_CHARS:
            problems.append("[an image is not shown: all images together are too large]")
        else:
            images.append(image)
    return tuple(images), tuple(problems)


def checked_image(content: bytes) -> Image | str:
    """Return an image for a model, or the reason why models do not accept it. Its type follows from its content."""
    problem = check_image(content)
    return problem or Image(media_type(content) or "", base64.b64encode(content).decode())


def run_structure(run: RunResult, max_chars: int, output_file: str | None) -> dict[str, Any]:
    """Return the structured form of a run.

    Args:
        run: Run.
        max_chars: Largest number of characters of each text.
        output_file: File in the sandbox that has the whole output; None if nothing is left out.
    """
    note = "" if output_file is None else f"The whole output is in {output_file}."
    values = [text for text in map(_value_text, run.results) if text]
    return {
        "status": run.status,
        "exit_code": run.exit_code,
        "stdout": shorten(run.stdout, max_chars, note),
        "stderr": shorten(run.stderr, max_chars, note),
        "results": [shorten(text, max_chars // max(1, len(values)), note) for text in values],
        "error": shorten(run.error, max_chars, note) or None,
        "fault": None if run.fault is None else str(run.fault),
        "duration_s": round(run.duration_s, 3),
        "execution": run.id or None,
        "output_file": output_file,
    }


def list_text(files: Sequence[FileInfo], *, more: bool) -> str:
    """Return the entries of a directory, one in each line."""
    lines = [_entry_line(file) for file in files]
    if more:
        lines.append("[... there are more entries. Use run_command with `find` or `ls` to see the others.]")
    return "\n".join(lines) or "(the directory is empty)"


def printable(name: str) -> str:
    """Return a file name without line breaks and other characters that cannot be printed."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape", "replace").decode() for char in name)


def _entry_line(file: FileInfo) -> str:
    match file.kind:
        case "directory":
            return f"{printable(file.name)}/"
        case "symlink":
            return f"{printable(file.name)} -> {printable(file.target or '')}"
        case _:
            return f"{printable(file.name)}  {file.size_bytes:,} bytes"


def _value_text(result: RichResult) -> str:
    has_image = any(each in result.data for each in IMAGE_TYPES)
    text = next((result.data[each] for each in _TEXT_TYPES if each in result.data), "")
    if has_image:
        return "" if text.startswith("<") else text.rstrip()  # <Figure size 640x480 with 1 Axes>
    return text.rstrip() or f"[a value of type {printable(', '.join(result.data))}]"


def _ending(run: RunResult, timeout_s: float | None) -> str:
    fault = f"; fault: {run.fault}" if run_is_error(run) else ""
    if run.status == "timeout":
        return f"[timed out{'' if timeout_s is None else f' after {timeout_s:g} s'}; pass a longer `timeout`, or run it in the background]"
    if run.status in _STATUS_NOTES:
        return f"[{_STATUS_NOTES[run.status]}{fault}]"
    if run.exit_code and not run.error:
        return f"[exit code {run.exit_code}{fault}]"
    return ""
