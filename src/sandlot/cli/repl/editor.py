"""The line editor of a session: history, several lines, and completeness of the typed code.

Enter runs complete code, and inserts a line break into incomplete code. Alt-Enter always inserts a line break.
"""

from __future__ import annotations

import ast
import codeop
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.key_binding import KeyPressEvent
    from prompt_toolkit.lexers import Lexer

PROMPTS = {"python": ">>> ", "bash": "$ ", "javascript": "> ", "typescript": "> ", "r": "> "}
CONTINUATION_PROMPT = "... "
EXIT_WORDS = frozenset({"exit", "quit", "exit()", "quit()"})
"""Inputs that end the session; as code, they would end the interpreter."""
INDENT = "    "
_LEXERS = {"python": "PythonLexer", "bash": "BashLexer", "javascript": "JavascriptLexer", "typescript": "TypeScriptLexer", "r": "SLexer"}


def is_complete(code: str, language: str) -> bool:
    """Return True if code can be run, and False if it continues on another line.

    In languages other than Python, code continues after a line that ends with a backslash.
    """
    *before, last = code.split("\n")
    if language != "python":
        return not last.endswith("\\")
    if not last.strip():
        return True  # an empty line also ends wrong code; the kernel reports the error
    first = code.lstrip()
    if first.startswith(("%", "!", "?")) or last.endswith("?"):
        return not first.startswith("%%")
    if last[:1].isspace() and any(line.rstrip().endswith(":") for line in before):
        return False  # the block can have another line
    return _compiles(code)


def _compiles(code: str) -> bool:
    compiler = codeop.CommandCompiler()
    compiler.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        return compiler(code, "<cell>", "exec") is not None
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
        return True  # the kernel reports the error


def indentation(code: str, language: str) -> str:
    """Return the indentation of the next line."""
    last = code.rpartition("\n")[2]
    indent = last[: len(last) - len(last.lstrip())]
    return indent + INDENT if language == "python" and last.rstrip().endswith(":") else indent


def history_file(language: str) -> Path:
    """Return the file with the inputs of earlier sessions."""
    from platformdirs import user_state_path

    return user_state_path("sandlot", appauthor=False) / f"history-{language}"


def create_editor(language: str) -> PromptSession[str]:
    """Return a line editor for code of a language."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory, History, InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("enter")
    def _enter(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        ended = not buffer.document.text_after_cursor.strip()
        if ended and is_complete(buffer.document.text, language):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n" + indentation(buffer.document.text_before_cursor, language))

    @keys.add("escape", "enter")
    def _break(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("tab")
    def _tab(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text(INDENT)

    history: History
    try:
        path = history_file(language)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600, exist_ok=True)
        history = FileHistory(str(path))
    except OSError:
        history = InMemoryHistory()
    return PromptSession(
        history=history,
        multiline=True,
        key_bindings=keys,
        lexer=_lexer(language),
        prompt_continuation=CONTINUATION_PROMPT,
        include_default_pygments_style=False,
    )


def _lexer(language: str) -> Lexer | None:
    from importlib import import_module

    from prompt_toolkit.lexers import PygmentsLexer

    name = _LEXERS.get(language)
    return None if name is None else PygmentsLexer(getattr(import_module("pygments.lexers"), name))
