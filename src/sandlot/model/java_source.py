"""File name and main class of a Java program, found in its source text.

The compiler wants the file name of the public class, and the launcher the name of the class with ``main``, which can be another one.

Invariant: The time of a search is bounded, because the text is untrusted and the search blocks the event loop.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

MAX_SEARCHED_CHARS: Final = 1 << 17
"""Characters of a program that are searched. A class that begins after them is not found."""

_DEFAULT: Final = "Main"
_TOKEN: Final = re.compile(
    # Comments, text blocks, strings and characters, which may contain anything.
    r"""//[^\n]*|/\*.*?(?:\*/|\Z)|\"\"\"(?:[^\\]|\\.)*?(?:\"\"\"|\\?\Z)|"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?"""
    r"|(?P<open>\{)|(?P<close>\})|(?P<end>;)|(?P<modifier>\b(?:public|static)\b)|\bpackage\s+(?P<package>[\w.]+)\s*;"
    r"|\b(?:class|enum|interface|record)\s+(?P<type>\w+)|(?P<main>\bvoid\s+main\s*\()",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Source:
    """Names of the source file of a program, in any language.

    Args:
        filename: File name, with the extension.
        entry: Name by which an interpreter starts the program: the full name of the main class in Java, else the file name without the extension.
    """

    filename: str
    entry: str


@dataclass(slots=True)
class _Type:
    """A class, enum, interface or record that is not inside another one.

    Args:
        rank: 2 if it has a static method ``main``, 1 if it has another method of this name, otherwise 0.
    """

    name: str
    is_public: bool
    rank: int = 0


def find_java_source(code: str) -> Source:
    """Return the names of the source file of a program: ``Main`` if it has no class."""
    package, types, modifiers, depth = "", list[_Type](), set[str](), 0
    for token in _TOKEN.finditer(code[:MAX_SEARCHED_CHARS]):
        match token.lastgroup:
            case "modifier":
                modifiers.add(token[0])
                continue
            case "package" if not types:
                package = f"{token['package']}."
            case "type" if depth == 0:
                types.append(_Type(token["type"], "public" in modifiers))
            case "main" if depth == 1 and types:
                types[-1].rank = max(types[-1].rank, 2 if "static" in modifiers else 1)
            case "open":
                depth += 1
            case "close":
                depth = max(0, depth - 1)
            case None:
                continue
            case _:
                pass
        modifiers.clear()
    public = next((each for each in types if each.is_public), None)
    main = max(types, key=lambda each: (each.rank, each.is_public), default=_Type(_DEFAULT, is_public=False))
    if not main.rank:  # `main` is inherited, or there is none
        main = public or main
    return Source(f"{(public or main).name}.java", f"{package}{main.name}")
