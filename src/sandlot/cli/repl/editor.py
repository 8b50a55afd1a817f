"""The line editor of a session: history, several lines, and when what was typed is whole.

Law: Enter ends what is whole and breaks the line of what is not; Alt-Enter always breaks the line.
"""

from __future__ import annotations

import ast
import codeop
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.key_binding import KeyPressEvent
    from prompt_toolkit.lexers import Lexer

PROMPTS = {"python": ">>> ", "bash": "$ ", "javascript": "> "}
CONTINUED = "... "
LEAVING = frozenset({"exit", "quit", "exit()", "quit()"})
"""What a person types who wants to leave, and not to end the kernel."""
INDENT = "    "
_LEXERS = {"python": "PythonLexer", "bash": "BashLexer", "javascript": "JavascriptLexer"}


def whole(code: str, language: str) -> bool:
    """Whether code can be run as it is, or goes on in another line. Pure.

    Args:
        code: What was typed so far.
        language: Its language; of others than Python, a line that ends with a backslash goes on.
    """
    *before, last = code.split("\n")
    if language != "python":
        return not last.endswith("\\")
    if not last.strip():
        return True  # an empty line ends everything, also what will then be told to be wrong
    first = code.lstrip()
    if first.startswith(("%", "!", "?")) or last.endswith("?"):
        return not first.startswith("%%")
    if last[:1].isspace() and any(line.rstrip().endswith(":") for line in before):
        return False  # a block may have another line
    return _compiles(code)


def _compiles(code: str) -> bool:
    compiler = codeop.CommandCompiler()
    compiler.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        return compiler(code, "<cell>", "exec") is not None
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
        return True  # the kernel says what is wrong


def indentation(code: str, language: str) -> str:
    """What the next line begins with. Pure."""
    last = code.rpartition("\n")[2]
    indent = last[: len(last) - len(last.lstrip())]
    return indent + INDENT if language == "python" and last.rstrip().endswith(":") else indent


def history_file(language: str) -> Path:
    """Where what was typed is kept (XDG Base Directory Specification: state)."""
    state = os.environ.get("XDG_STATE_HOME", "")
    return Path(state if state.startswith("/") else Path.home() / ".local" / "state") / "sandlot" / f"history-{language}"


def editor(language: str) -> PromptSession[str]:
    """A line editor for a language."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory, History, InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("enter")
    def _enter(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        ended = not buffer.document.text_after_cursor.strip()
        if ended and whole(buffer.document.text, language):
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
        prompt_continuation=CONTINUED,
        include_default_pygments_style=False,
    )


def _lexer(language: str) -> Lexer | None:
    from importlib import import_module

    from prompt_toolkit.lexers import PygmentsLexer

    name = _LEXERS.get(language)
    return None if name is None else PygmentsLexer(getattr(import_module("pygments.lexers"), name))
