"""Programming languages: one table, which one-shot programs, contexts, the command line and the compatibility APIs read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from sandlot.model.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class Language:
    """A programming language.

    Args:
        name: Name in requests and results.
        title: Name to display.
        aliases: Other names that requests may use.
        extensions: Endings of the files with programs, with the dot; the usual ending first.
        filename: File name of the code of a program in its working directory.
        interpreter: Program that runs a file of the language.
        context: Id of the default context for code of the language; None if no context runs such code.
        example: A program that prints one line.
    """

    name: str
    title: str
    aliases: tuple[str, ...]
    extensions: tuple[str, ...]
    filename: str
    interpreter: str
    context: str | None = None
    example: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Name and aliases."""
        return (self.name, *self.aliases)


LANGUAGES: Final = (
    Language(
        "python",
        "Python",
        ("python3", "py"),
        (".py",),
        "main.py",
        "python3",
        context="default",
        example="print('Hello, World!')",
    ),
    Language(
        "bash",
        "Bash",
        ("sh", "shell"),
        (".sh", ".bash"),
        "main.sh",
        "bash",
        context="bash",
        example="echo 'Hello, World!'",
    ),
    Language(
        "javascript",
        "JavaScript (Node.js)",
        ("js", "node"),
        (".js", ".cjs", ".mjs"),
        "main.js",
        "node",
        context="javascript",
        example="console.log('Hello, World!')",
    ),
)

_BY_NAME: Final[Mapping[str, Language]] = MappingProxyType({name: language for language in LANGUAGES for name in language.names})
_BY_EXTENSION: Final[Mapping[str, Language]] = MappingProxyType({ending: language for language in LANGUAGES for ending in language.extensions})

CONTEXT_LANGUAGES: Final[Mapping[str, str]] = MappingProxyType(
    {name: language.name for language in LANGUAGES if language.context for name in language.names}
)
"""Name of a language in a request -> language of the contexts that run its code."""

DEFAULT_CONTEXTS: Final[Mapping[str, str]] = MappingProxyType({language.name: language.context for language in LANGUAGES if language.context})
"""Language -> id of the default context of the language."""


def language_of(name: str) -> Language:
    """Return the language with the given name or alias, in upper or lower case.

    Raises:
        InvalidRequestError: The language is not supported; the hint lists all languages.
    """
    known = _BY_NAME.get(name.lower())
    if known is None:
        raise InvalidRequestError(
            f"The language {name[:50]!r} is not supported.",
            hint=f"Use one of: {list_names(LANGUAGES)}.",
            fields={"field": "language", "languages": [each.name for each in LANGUAGES]},
        )
    return known


def language_of_file(filename: str) -> Language | None:
    """Return the language of a file by its ending, or None if the ending is unknown."""
    stem, dot, ending = filename.rpartition(".")
    return _BY_EXTENSION.get(f".{ending.lower()}") if stem and dot else None


def list_names(languages: Iterable[Language]) -> str:
    """Return the names and aliases of languages as text."""
    return "; ".join(f"{each.name} ({', '.join(each.aliases)})" if each.aliases else each.name for each in languages)
