"""Transcripts for people: nothing that a model or a sandbox wrote becomes markup, and no control character reaches the terminal."""

from __future__ import annotations

import base64
import io
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from sandlot.agents import show_transcript, transcript_to_html, transcript_to_markdown
from sandlot.agents.transcript import TranscriptFile, content_of, read_transcript
from sandlot.toolset.output import Image, Text, ToolResult
from tests.unit.agents.conftest import PNG

HOSTILE = "<script>alert(1)</script> </pre><img src=x onerror=alert(1)> \x1b]0;owned\x07\x9b31m [bold]x[/] ```\n# heading\n````"


@pytest.fixture
def transcript(tmp_path: Path) -> Path:
    path = tmp_path / "t.jsonl"
    file = TranscriptFile(path)
    file.write("start", model="m <b>", api="chat", system="", prompt=HOSTILE, tools=[])
    calls = [{"id": "c", "name": "run_code", "arguments": '{"code": "print(1)\\nprint(2)"}'}, {"id": "d", "name": HOSTILE, "arguments": HOSTILE}]
    file.write("answer", turn=1, text=HOSTILE, calls=calls, stop="called", usage={}, duration_s=0.1)
    images = (Image("image/png", base64.b64encode(PNG).decode()), Image("image/png", '"><script>alert(2)</script>'))
    content = content_of(ToolResult((Text(HOSTILE), *images)))
    file.write("result", call="c", name="run_code", content=content, is_error=True, fault=None, sandbox="sb", duration_s=0.1)
    usage = {"input_tokens": 100, "output_tokens": 20}
    file.write("end", stop="answered", text="", problem="", turns=1, calls=1, usage=usage, cost_usd="0.01", duration_s=1.25)
    file.write("error", error=HOSTILE)
    file.write("type of a newer version")
    file.close()
    return path


def test_html_has_no_markup_of_the_model_or_the_sandbox(transcript: Path) -> None:
    tags: list[tuple[str, dict[str, str | None]]] = []
    texts: list[str] = []

    class Parser(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            tags.append((tag, dict(attrs)))

        def handle_data(self, data: str) -> None:
            texts.append(data)

    page = transcript_to_html(transcript)
    Parser().feed(page)
    assert {tag for tag, _ in tags} == {"html", "head", "meta", "title", "style", "body", "p", "small", "h3", "pre", "img"}
    assert [attributes["src"] for tag, attributes in tags if tag == "img"] == [f"data:image/png;base64,{base64.b64encode(PNG).decode()}"]
    assert not any(name.startswith("on") for _, attributes in tags for name in attributes)
    assert "<script>alert(1)</script>" in "".join(texts)
    assert "default-src 'none'" in page


def test_markdown_fences_all_text(transcript: Path) -> None:
    text = transcript_to_markdown(transcript)
    lines = text.splitlines()
    assert "# heading" in lines
    at = lines.index("# heading")
    fence = next(line for line in reversed(lines[:at]) if line.endswith("`text"))
    assert fence == "`````text"  # longer than the fences inside
    assert "\x1b" not in text
    assert "![image](data:image/png;base64,iVBOR" in text
    assert "an image that cannot be shown" in text
    assert "print(1)\nprint(2)" in text


def test_terminal_gets_no_control_characters_and_no_markup(transcript: Path) -> None:
    out = io.StringIO()
    show_transcript(transcript, Console(file=out, width=200, force_terminal=False))
    shown = out.getvalue()
    assert not any(char in shown for char in "\x1b\x07\x9b")
    assert "[bold]x[/]" in shown
    assert "End: answered after 1 turns, 120 tokens, 0.01 USD, 1.2 s" in shown


def test_incomplete_last_line_is_left_out(transcript: Path) -> None:
    whole = read_transcript(transcript)
    transcript.write_bytes(transcript.read_bytes()[:-5])
    assert read_transcript(transcript) == whole[:-1]
