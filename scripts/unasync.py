#!/usr/bin/env python3
"""Generate the synchronous client from the asynchronous one, token by token.

    scripts/unasync.py           write src/sandlot/sdk/_sync
    scripts/unasync.py --check   print files that are out of date, and exit with 1 if there are any

Invariants:
- ``async`` and ``await`` are dropped as keywords; a name changes only as a whole token, by :data:`NAMES`.
- Docstrings and comments are text, in which words change by the same table.
- Files in :data:`BY_HAND` have what differs beyond that. They are written by hand in both halves.
- ruff formats the result, which passes the same checks as all other code.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "sandlot" / "sdk" / "_async"
TARGET = ROOT / "src" / "sandlot" / "sdk" / "_sync"
BY_HAND = frozenset(root / name for root in (SOURCE, TARGET) for name in ("__init__.py", "backend.py", "local_listener.py"))

NAMES: Mapping[str, str] = {
    "AbstractAsyncContextManager": "AbstractContextManager",
    "AsyncAgentSessions": "AgentSessions",
    "AsyncAgents": "Agents",
    "AsyncClient": "Client",
    "AsyncCodeHandle": "CodeHandle",
    "AsyncCommandHandle": "CommandHandle",
    "AsyncCommands": "Commands",
    "AsyncContexts": "Contexts",
    "AsyncDesktop": "Desktop",
    "AsyncEventStream": "EventStream",
    "AsyncEvents": "Events",
    "AsyncExecutions": "Executions",
    "AsyncExitStack": "ExitStack",
    "AsyncFileStore": "FileStore",
    "AsyncFileStream": "FileStream",
    "AsyncFileWatch": "FileWatch",
    "AsyncFiles": "Files",
    "AsyncForkBatch": "ForkBatch",
    "AsyncGenerator": "Generator",
    "AsyncIterable": "Iterable",
    "AsyncIterator": "Iterator",
    "AsyncKeys": "Keys",
    "AsyncPools": "Pools",
    "AsyncPortForward": "PortForward",
    "AsyncPrograms": "Programs",
    "AsyncPty": "Pty",
    "AsyncSandbox": "Sandbox",
    "AsyncSandboxNetwork": "SandboxNetwork",
    "AsyncSandboxes": "Sandboxes",
    "AsyncService": "Service",
    "AsyncSnapshots": "Snapshots",
    "AsyncTemplates": "Templates",
    "AsyncTerminal": "Terminal",
    "AsyncTransport": "Transport",
    "AsyncTunnel": "Tunnel",
    "AsyncVolumes": "Volumes",
    "AsyncWatchers": "Watchers",
    "AsyncWebhooks": "Webhooks",
    "StopAsyncIteration": "StopIteration",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "_async": "_sync",
    "aclose": "close",
    "aclosing": "closing",
    "aiter": "iter",
    "aiter_bytes": "iter_bytes",
    "anext": "next",
    "aread": "read",
    "asynccontextmanager": "contextmanager",
    "asynchronous": "synchronous",
    "enter_async_context": "enter_context",
}
"""Asynchronous name -> synchronous name."""
HEADER = "# Generated from {source} by scripts/unasync.py; change that file.\n"

_WORD = re.compile(r"\w+")
_KEYWORD = re.compile(r"\b(?:async|await) (?=\w)")

Edit = tuple[tuple[int, int], tuple[int, int], str]
"""Start and end, each as (line, column), and the new text."""


def convert(source: str, name: str) -> str:
    """Return the synchronous form of a module.

    Args:
        source: Text of the asynchronous module.
        name: Name of the module in the header.
    """
    lines = source.splitlines(keepends=True)
    for (row, start), (end_row, end), text in sorted(_edits(source), reverse=True):
        before, after = lines[row - 1][:start], lines[end_row - 1][end:]
        lines[row - 1 : end_row] = [before + text + after]
    return HEADER.format(source=name) + "".join(lines)


def _edits(source: str) -> Iterator[Edit]:
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    for index, token in enumerate(tokens):
        if token.type == tokenize.NAME and token.string in {"async", "await"}:
            # With the space after the keyword.
            yield token.start, tokens[index + 1].start, ""
        elif token.type == tokenize.NAME and token.string in NAMES:
            yield token.start, token.end, NAMES[token.string]
        elif token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.string.startswith('"""')):
            text = _KEYWORD.sub("", _WORD.sub(lambda match: NAMES.get(match[0], match[0]), token.string))
            if text != token.string:
                yield token.start, token.end, text


def tidy(files: Mapping[Path, str]) -> dict[Path, str]:
    """Return the files with sorted imports, formatted by ruff: two runs for all files."""
    with tempfile.TemporaryDirectory() as folder:
        copies = {path: Path(folder) / path.relative_to(TARGET) for path in files}
        for path, copy in copies.items():
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(files[path])
        for arguments in (["check", "--select", "I", "--fix-only"], ["format"]):
            command = [sys.executable, "-m", "ruff", *arguments, "--quiet", "--no-cache", "--config", str(ROOT / "pyproject.toml"), folder]
            subprocess.run(command, check=True, cwd=ROOT)
        return {path: copy.read_text() for path, copy in copies.items()}


def generated() -> dict[Path, str]:
    """Return the text of every generated file."""
    sources = [path for path in sorted(SOURCE.rglob("*.py")) if path not in BY_HAND]
    return tidy({TARGET / path.relative_to(SOURCE): convert(path.read_text(), path.relative_to(ROOT).as_posix()) for path in sources})


def stale(files: Mapping[Path, str]) -> list[Path]:
    """List generated files that are missing, different or no longer needed."""
    wrong = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    orphans = [path for path in sorted(TARGET.rglob("*.py")) if path not in BY_HAND and path not in files]
    return wrong + orphans


def main(arguments: list[str]) -> int:
    """Write or check the files."""
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    files = generated()
    out_of_date = stale(files)
    for path in out_of_date:
        print(path.relative_to(ROOT))
        if not arguments and path in files:
            path.parent.mkdir(exist_ok=True)
            path.write_text(files[path])
        elif not arguments:
            path.unlink()
    return 1 if arguments and out_of_date else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
