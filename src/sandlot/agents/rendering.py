"""Transcripts for people: in the terminal, as Markdown and as HTML.

Invariant: text of the model and of the sandbox stays text. HTML is escaped, Markdown is fenced, and control characters do not reach the terminal.
"""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from sandlot.agents.transcript import read_transcript
from sandlot.toolset.images import check_image, decode_image, media_type

_CONTROL: Final = re.compile("(?![\\n\\t])[\\x00-\\x1f\\x7f-\\x9f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]")
_STYLE: Final = (
    "body{font:16px/1.5 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "pre{background:#f4f4f4;padding:.6rem;overflow:auto;white-space:pre-wrap}img{max-width:100%}.error{border-left:4px solid #c00}small{color:#666}"
)
_POLICY: Final = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def show_transcript(path: str | os.PathLike[str], console: Console | None = None) -> None:
    """Print a transcript in the terminal.

    Args:
        path: File of the transcript.
        console: Console to print to. Default: standard output.
    """
    out = console or Console()
    for entry in read_transcript(path):
        for title, body, kind in _parts(entry):
            shown = Text(f"[image of {len(body)} characters in base64]" if kind == "image" else _visible(body))
            out.print(shown if kind == "note" else Panel(shown, title=Text(_visible(title)), title_align="left"))


def transcript_to_markdown(path: str | os.PathLike[str]) -> str:
    """Return a transcript as Markdown. Images are data URLs."""
    blocks: list[str] = []
    for entry in read_transcript(path):
        for title, body, kind in _parts(entry):
            if kind == "image":
                url = _image_url(body)
                blocks.append(f"![image]({url})" if url else "(an image that cannot be shown)")
            elif kind == "note":
                blocks.append(f"*{_one_line(body)}*")
            else:
                blocks.append(f"**{_one_line(title)}**\n\n{_fenced(_visible(body))}")
    return "\n\n".join(blocks) + "\n"


def transcript_to_html(path: str | os.PathLike[str]) -> str:
    """Return a transcript as an HTML page without scripts. All text is escaped, and images are data URLs."""
    blocks: list[str] = []
    for entry in read_transcript(path):
        for title, body, kind in _parts(entry):
            if kind == "image":
                url = _image_url(body)
                blocks.append(f'<img alt="image" src="{html.escape(url)}">' if url else "<p>(an image that cannot be shown)</p>")
            elif kind == "note":
                blocks.append(f"<p><small>{html.escape(_visible(body))}</small></p>")
            else:
                marked = ' class="error"' if kind == "error" else ""
                blocks.append(f"<h3>{html.escape(_visible(title))}</h3><pre{marked}>{html.escape(_visible(body))}</pre>")
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_POLICY}"><title>Transcript</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(blocks)}</body></html>\n'


def _parts(entry: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Return the parts of an entry: title, text, and ``text``, ``error``, ``note`` or ``image``."""
    match entry["type"]:
        case "start":
            yield "", f"{entry['model']}, {entry['time']}", "note"
            yield "User", entry["prompt"], "text"
        case "answer":
            if entry["text"]:
                yield "Model", entry["text"], "text"
            for call in entry["calls"]:
                yield f"Call of {call['name']}", _arguments(call["arguments"]), "text"
        case "result":
            for part in entry["content"]:
                if part["type"] == "image":
                    yield "", part["data"], "image"
                else:
                    yield f"Result of {entry['name']}", part["text"], "error" if entry["is_error"] else "text"
        case "end":
            cost = "" if entry["cost_usd"] is None else f", {entry['cost_usd']} USD"
            tokens = entry["usage"]["input_tokens"] + entry["usage"]["output_tokens"]
            yield "", f"End: {entry['stop']} after {entry['turns']} turns, {tokens} tokens{cost}, {entry['duration_s']:.1f} s", "note"
        case "error":
            yield "Error", entry["error"], "error"
        case _:
            pass  # an entry of a newer version


def _arguments(raw: str) -> str:
    """Return the arguments of a call as people read them: texts with their line breaks, everything else as JSON."""
    try:
        values = json.loads(raw)
    except (ValueError, RecursionError):
        return raw
    if not isinstance(values, dict):
        return raw
    if len(values) == 1 and isinstance(only := next(iter(values.values())), str):
        return only
    return "\n".join(f"{name}: {value if isinstance(value, str) else json.dumps(value)}" for name, value in values.items())


def _image_url(data: str) -> str:
    content = decode_image(data)
    return "" if check_image(content) else f"data:{media_type(content)};base64,{''.join(data.split())}"


def _visible(text: str) -> str:
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def _one_line(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>()#!|&])", r"\\\1", " ".join(_visible(text).split()))


def _fenced(text: str) -> str:
    """Return a fenced block whose fence is longer than any run of backticks in the text."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"
